"""The words and sentences that the prose linter rejects, and the text that it ignores."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.docs import prose
from hack.layers import LAYERS

LONG = "word " * 26 + "end."


def found(root: Path, name: str, text: str) -> list[str]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return list(prose.check(root))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("README.md", "# A\n\nFine here,\nbut it was\ntold so.\n", 5),
        ("docs/users/a.md", "| a | b |\n|---|---|\n| fine | nobody is |\n", 3),
        ("docs/project/decisions/0001-a.md", "- one\n- it goes\n  on.\n", 2),
        ("docs/reference/glossary.md", "Another process takes over.\n", 1),
        ("charts/pstraining/values.yaml", "# -- Whoever scrapes.\na: 1\n", 1),
        ("charts/pstraining/templates/NOTES.txt", "Fine.\nIt is reckoned.\n", 2),
        ("operator/pstraining/a.py", '"""Fine."""\n\nA = 1  # the roster\n', 3),
        ("operator/pstraining/a.py", 'A = 1\n"""Its whereabouts."""\n', 2),
    ],
)
def test_a_rejected_word_is_reported_with_its_line_and_reason(tmp_path: Path, name: str, text: str, line: int) -> None:
    reports = found(tmp_path, name, text)
    assert len(reports) == 1
    assert all(report.startswith(f"{name}:{line}: '") and len(report.split(": ")[2]) > 3 for report in reports)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "Run `nobody told` and\n\n    told\n\n```\nnobody\n```\n"),
        ("docs/reference/api.md", "Generated: nobody.\n"),
        ("charts/pstraining/values.yaml", "told: nobody\n# `told` is fine\n"),
        (
            "operator/pstraining/a.py",
            'whereabouts = "roster"  # `roster` is a name; seat is allowed in code so far\n',
        ),
    ],
)
def test_code_generated_pages_and_words_allowed_in_code_pass(tmp_path: Path, name: str, text: str) -> None:
    assert found(tmp_path, name, text) == []


@pytest.mark.parametrize(
    ("name", "mark"),
    [("README.md", ""), ("CHANGELOG.md", "- "), ("docs/users/a.md", "- "), ("charts/pstraining/values.yaml", "# ")],
)
def test_a_sentence_of_more_than_twenty_five_words_is_reported(tmp_path: Path, name: str, mark: str) -> None:
    (report,) = found(tmp_path, name, f"{mark}Short. And {LONG}\n")
    assert report == f"{name}:1: 28 words in one sentence: And {'word ' * 7}word..."
    assert found(tmp_path, name, f"{mark}{'word ' * 24}end. {'word ' * 24}end.\n") == []


def test_items_of_a_list_are_sentences_of_their_own(tmp_path: Path) -> None:
    assert found(tmp_path, "README.md", "".join(f"- {'word ' * 25}\n" for _ in range(3))) == []


def test_every_rule_has_a_scope_and_a_reason() -> None:
    known = prose.rules((prose.ROOT / "hack" / "docs" / "prose.txt").read_text(encoding="utf-8"))
    assert known
    assert all(rule.scope in {"docs", "all"} and rule.reason for rule in known)


def test_a_rejected_word_makes_lint_red(tmp_path: Path) -> None:
    """A rejected word fails lint: the command that lint runs ends with 1 in a repository with such a word, and with 0
    without it.
    """
    (lint,) = (layer for layer in LAYERS if layer.name == "lint")
    assert (sys.executable, "hack/docs/prose.py") in lint.checks
    for name in ("prose.py", "prose.txt"):
        (tmp_path / "hack" / "docs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "hack" / "docs" / name).write_text(
            (prose.ROOT / "hack" / "docs" / name).read_text(encoding="utf-8"), encoding="utf-8"
        )
    for text, status in (("A worker reports it.", 0), ("A worker is told of it.", 1)):
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "hack/docs/prose.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
