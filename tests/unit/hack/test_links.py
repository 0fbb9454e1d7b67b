"""Paths in the documentation's pages, and pages that no link leads to."""

from pathlib import Path

import pytest

from hack.docs import links
from hack.docs.pages import Page, pages


def tree(root: Path, **files: str) -> Path:
    """Create a small repository: `docs__a` is docs/a.md."""
    for name, text in {"docs__README": "[a](a.md) [b](b.md)", "docs__a": "# A", "docs__b": "# B", **files}.items():
        path = root / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "hack").mkdir()
    (root / "hack" / "tool.py").write_text("def test_it() -> None: ...\n", encoding="utf-8")
    return root


def test_parsed_parts_of_a_page_have_their_line() -> None:
    page = Page(Path("x.md"), "one\n`two`\n\n| a |\n|---|\n| `b` |\n\n```sh -x\nthree\n```\n\n    four\n    five\n")
    assert [(p.line, p.text) for p in page.spans] == [(2, "two"), (6, "b")]
    assert [(b.line, b.language, b.text) for b in page.blocks] == [(9, "sh", "three\n"), (12, "", "four\nfive\n")]


@pytest.mark.parametrize(
    "text",
    [
        "`hack/tool.py`, `./hack/*.py`, `python hack/tool.py x`, `hack/tool.py::test_it`",
        "`<job>/x`, `a/b.py`, `hack/<name>.py`, `tests`, `hack.tool`",
    ],
)
def test_good_pages(tmp_path: Path, text: str) -> None:
    assert list(links.problems(tree(tmp_path, docs__a=text))) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text\n`hack/tools.py`", "docs/a.md:2: hack/tools.py: there is no such file"),
        ("`hack/*.go`", "docs/a.md:1: hack/*.go: there is no such file"),
        ("`hack/tool.py::test_that`", "docs/a.md:1: hack/tool.py::test_that: there is no such file"),
        ("```\none\npython hack/gone.py\n```", "docs/a.md:3: hack/gone.py: there is no such file"),
    ],
)
def test_bad_pages(tmp_path: Path, text: str, problem: str) -> None:
    assert list(links.problems(tree(tmp_path, docs__a=text))) == [problem]


def test_an_unlinked_page_is_reported(tmp_path: Path) -> None:
    """An unlinked page is reported. Links from outside docs/, from another unlinked page or from itself do not count; a
    link by way of a page does.
    """
    root = tree(tmp_path, README="[e](docs/e.md)", docs__b="[d](x/d.md#d)", docs__x__d="# D", docs__e="[f](f.md)")
    (root / "docs" / "f.md").write_text("[f](f.md) [e](e.md)", encoding="utf-8")
    assert list(links.problems(root)) == [
        "docs/e.md: no link leads here from docs/README.md",
        "docs/f.md: no link leads here from docs/README.md",
    ]


def test_the_documentation_is_found() -> None:
    found = {str(path.relative_to(links.ROOT)) for path in pages()}
    assert {
        "README.md",
        "CHANGELOG.md",
        "docs/README.md",
        "docs/operators/install.md",
        "charts/pstraining/README.md",
    } <= found


def test_the_exit_status_reflects_the_findings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "problems", lambda root: iter(["a.md:1: wrong"]))
    assert links.main() == 1
    assert capsys.readouterr().out == "a.md:1: wrong\n"
    monkeypatch.setattr(links, "problems", lambda root: iter([]))
    assert links.main() == 0
    assert capsys.readouterr().out == ""
