"""The picture of the packages and the list of decisions agree with the contracts and the files."""

import re
import tomllib
from pathlib import Path

import pytest

from hack import package_picture

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "operator" / "pstraining"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def drawn(svg: str) -> list[list[str]]:
    """Return the names in a picture's boxes, row by row from the top: those of the left column, then those of the
    right.
    """
    found = re.findall(r'<text x="(\d+)" text-anchor="middle" y="(\d+)" font-weight="bold"[^>]*>(\w+)<', svg)
    rows: dict[tuple[bool, int], list[str]] = {}
    for x, y, name in found:
        rows.setdefault((int(x) > package_picture.MIDDLE, int(y)), []).append(name)
    return [rows[key] for key in sorted(rows)]


def test_the_committed_picture_shows_the_layers_that_import_linter_enforces() -> None:
    contracts = tomllib.loads(PYPROJECT)["tool"]["importlinter"]["contracts"]
    outer, inner = (
        [re.findall(r"(\w+)(?: \||$)", layer.replace("pstraining.", "")) for layer in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers" and contract.get("containers") in (None, ["pstraining.runtime"])
    )
    shown = drawn((ROOT / "docs" / "concepts" / "packages.svg").read_text(encoding="utf-8"))
    assert shown == [*outer[:-1], ["launcher"], outer[-1], *inner]


def test_every_package_is_drawn() -> None:
    shown = {name for row in drawn(package_picture.picture(PYPROJECT)) for name in row}
    folders = {path.parent.name for path in [*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("runtime/*/__init__.py")]}
    assert folders - {"runtime"} <= shown


def test_a_package_that_the_contracts_gain_must_have_a_description() -> None:
    with pytest.raises(KeyError, match="scheduling"):
        package_picture.picture(
            PYPROJECT.replace('"pstraining.kube",', '"pstraining.kube", "pstraining.scheduling",', 1)
        )


def questions(page: str) -> dict[str, list[str]]:
    """Return the rows `Where is ...? | files` of a page: the question and its files."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Where [^|]+\?) \| ([^|]+) \|$", text, re.MULTILINE)
    return {question: re.findall(r"`([\w/]+\.py)`", answer) for question, answer in rows}


def test_contributors_and_the_architecture_find_each_decision_in_the_same_files() -> None:
    asked = questions("CONTRIBUTING.md")
    assert len(asked) >= 10
    assert questions("docs/concepts/architecture.md").items() >= asked.items()
    missing = [file for files in questions("docs/concepts/architecture.md").values() for file in files]
    assert [file for file in missing if not (PACKAGE / file).exists()] == []
