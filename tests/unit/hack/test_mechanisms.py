"""The table of mechanisms is complete, its tests run in `make test`, and gaps are reported with a remedy."""

import re
from pathlib import Path

import pytest

from hack import mechanisms
from hack.mechanisms import Entry, MechanismError
from pstraining.api.run_policy import FailureReason
from pstraining.api.training import Codec, Mode

MARKED = """
import pytest
from tests.support.soak_marks import in_all, in_soak

def test_quick(): ...

@in_soak
def test_slow(): ...

@pytest.mark.parametrize("n", [1])
@in_all("tests/training/test_a.py::test_quick")
def test_moved(n): ...

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=in_soak)])
def test_in_part(n): ...
"""
QUICK = "tests/training/test_a.py::test_quick"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "training"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text(MARKED)
    (folder / "test_b.py").write_text(
        "from tests.support import soak_marks\npytestmark = [soak_marks.in_soak]\ndef test_any(): ..."
    )
    return tmp_path


def codec(**more: object) -> Entry:
    return Entry("codec", **({"name": "push None", "tests": {"training": (QUICK,)}} | more))  # type: ignore[arg-type]


def test_the_table_is_complete() -> None:
    mechanisms.check([*mechanisms.entries(mechanisms.TABLE.read_text()), *mechanisms.causes()], mechanisms.wanted())


def test_what_must_have_an_entry_is_read_from_its_source() -> None:
    needed = mechanisms.wanted()
    assert needed["codec"] == [f"{way} {codec}" for way in ("push", "pull") for codec in Codec]
    assert {f"mode {mode}, standby Hot" for mode in Mode} | {"standby Warm"} <= set(needed["training"])
    assert "a worker's program exits with 0" in needed["failure"]
    assert "what happens" not in needed["failure"]
    assert len(needed["failure"]) >= 14
    assert {"Names of jobs", "A separate store for Leases"} <= set(needed["limit"])
    assert {"command doctor", "example digits", "page install.md"} <= set(needed["feature"])
    assert {cause.name for cause in mechanisms.causes()} == set(FailureReason)


def test_rows_and_paragraphs() -> None:
    head = "# x\n\n| y | z |\n\n## What happens when something fails\n\n| a | b |\n|---|---|\n"
    readme = f"{head}| it ends | so |\n\n## More\n\n| c | d |\n"
    assert mechanisms.failures(readme) == ["it ends"]
    limits = "# Limits\n\nSome.\n\n## Of one kind\n\n### A name\n\nx\n\nWorkaround: y.\n\n### B\n\n"
    assert mechanisms.limits(f"{limits}z\n\nWorkaround: none.\n") == ["A name", "B"]
    with pytest.raises(MechanismError, match=r"known-limits\.md: B: end with a paragraph"):
        mechanisms.limits(f"{limits}z\n")


def test_a_valid_table_has_no_problems(root: Path) -> None:
    mechanisms.check([codec()], {"codec": ["push None"]}, root)
    mechanisms.check([codec(tests={}, untested="why")], {"codec": ["push None"]}, root)
    mechanisms.check([codec(tests={}, reason="why")], {"codec": ["push None"]}, root)
    in_part = "tests/training/test_a.py::test_in_part[1]"
    mechanisms.check([codec(tests={"training": (in_part,)})], {"codec": ["push None"]}, root)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "'push None' has no [[codec]]: add one"),
        ([codec(), codec()], "'push None' has several [[codec]]"),
        ([codec(), codec(name="push Zip")], "'push Zip' is not in"),
        ([codec(tests={})], "names no test"),
        ([codec(reason="none")], "leave one of them"),
        ([codec(tests={"e2e": (QUICK,)})], "is not of layer e2e (tests/e2e)"),
        ([codec(tests={"training": ("tests/training/test_a.py::test_gone",)})], "there is no tests/training/test_a.py"),
        ([codec(tests={"training": ("tests/training/test_a.py::test_slow",)})], "is left out of `make test`"),
        ([codec(tests={"training": ("tests/training/test_a.py::test_moved[1]",)})], "is left out of `make test`"),
        ([codec(tests={"training": ("tests/training/test_b.py::test_any",)})], "is left out of `make test`"),
        ([codec(tests={"training": ("tests/training/test_a.py::test_in_part",)})], "name one that shows it"),
    ],
)
def test_problems_are_reported(root: Path, table: list[Entry], words: str) -> None:
    with pytest.raises(MechanismError, match=re.escape(words)):
        mechanisms.check(table, {"codec": ["push None"]}, root)


def test_rows_are_found_by_their_first_words_and_features_by_what_they_cover(root: Path) -> None:
    tests = {"training": (QUICK,)}
    row = Entry("failure", "ends", first="a worker ends", tests=tests)
    mechanisms.check([row], {"failure": ["a worker ends with 0"]}, root)
    with pytest.raises(MechanismError, match="'a worker ends' is not in README"):
        mechanisms.check([row], {"failure": ["a worker fails"]}, root)
    plan = Entry("feature", "plans", covers=("command plan",), tests=tests)
    free = Entry("feature", "anything else", tests=tests)
    mechanisms.check([plan, free], {"feature": ["command plan"]}, root)
    with pytest.raises(MechanismError, match="'command plan' is not in"):
        mechanisms.check([plan], {"feature": []}, root)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[codecs]]\nname = 'x'", r"\[\[codecs\]\] is no group"),
        ("[[codec]]\nname = 'x'\ne3e = []", "e3e: neither a key nor a layer"),
    ],
)
def test_unknown_keys_are_rejected(text: str, words: str) -> None:
    with pytest.raises(MechanismError, match=words):
        mechanisms.entries(text)


def test_a_parameter_outside_make_test_is_reported() -> None:
    runs = {"tests/e2e/test_a.py::test_x[Sync]": True, "tests/e2e/test_a.py::test_x[Async]": False}
    names = ("test_x", "test_x[Sync]", "test_x[Async]", "test_x[Gone]", "test_gone")
    table = [Entry("feature", name, tests={"e2e": (f"tests/e2e/test_a.py::{name}",)}) for name in names]
    found = list(mechanisms.not_run(table, runs))
    assert [re.findall("'(.*?)'", line)[0] for line in found] == ["test_x[Async]", "test_x[Gone]", "test_gone"]
    assert "is known to pytest and not run" in found[0]
    assert "is not among the tests that run" in found[1]


def test_the_page_has_a_table_for_each_group_and_lists_untested_entries() -> None:
    page = mechanisms.page()
    assert all(f"## {title}\n" in page for title in [*mechanisms.GROUPS.values(), mechanisms.CAUSES])
    assert "| a worker's program exits with 0 | `tests/processes/" in page
    assert "| a gap: " in page
    assert "nothing to test: " in page
