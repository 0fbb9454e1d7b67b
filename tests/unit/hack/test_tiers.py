"""`make test` skips a test only if another one covers its mechanism, which is read from its mark."""

from pathlib import Path

import pytest

from hack import layers, tiers
from tests.support import soak_marks

HOLDER = "tests/unit/test_a.py"
HOLDS = "import pytest\n\ndef test_holds() -> None: ...\n\n@in_soak\ndef test_is_out() -> None: ...\n"


def marked(mark: str, *, at: str = "def test_slow() -> None: ...") -> dict[str, tiers.Module]:
    """Return the tree of a file whose test has a mark, and the tests that the mark may name."""
    sources = {HOLDER: HOLDS, "tests/unit/test_b.py": f"{mark}\n{at}\n"}
    return {file: tiers.module(file, source) for file, source in sources.items()}


def test_no_mark_of_this_tree_is_wrong() -> None:
    modules = tiers.read(layers.ROOT)
    assert not list(tiers.problems(modules))
    assert any(mark.kind == tiers.IN_ALL for found in modules.values() for mark in found.marks)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (f'"{HOLDER}::test_holds"', ""),
        (f'"{HOLDER}::test_none"', "there is no test"),
        ('"tests/unit/test_none.py::test_holds"', "there is no test"),
        (f'"{HOLDER}::test_is_out"', "is left out of `make test` itself"),
        ("SOMETHING", "written out"),
    ],
)
def test_a_mark_must_name_a_test_of_make_test(named: str, words: str) -> None:
    found = list(tiers.problems(marked(f"@in_all({named})")))
    assert len(found) == bool(words)
    assert all(words in line for line in found)


def test_a_mark_of_a_parameter_keeps_the_test() -> None:
    modules = marked(f'@pytest.mark.parametrize("x", [1, pytest.param(2, marks=in_all("{HOLDER}::test_holds"))])')
    assert not list(tiers.problems(modules))
    assert not modules["tests/unit/test_b.py"].left_out("test_slow")
    assert marked("@in_soak")["tests/unit/test_b.py"].left_out("test_slow")


def test_the_page_lists_replacing_tests_with_reasons() -> None:
    text = tiers.page(marked(f'@in_all("{HOLDER}::test_holds")  # it takes minutes'))
    assert (
        f"| `tests/unit/test_b.py::test_slow` | `make test-all` | `{HOLDER}::test_holds` | it takes minutes |" in text
    )


def test_a_list_of_parameters_is_named_with_its_file() -> None:
    text = tiers.page(marked("", at=f'KINDS = ["x", pytest.param("y", marks=in_all("{HOLDER}::test_holds"))]'))
    row = f"| `tests/unit/test_b.py`, `KINDS` (some of its cases) | `make test-all` | `{HOLDER}::test_holds` |  |"
    assert row in text.splitlines()


def test_an_invalid_mark_prevents_the_page(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_b.py").write_text(f'@in_all("{HOLDER}::test_none")\ndef test_slow() -> None: ...\n')
    with pytest.raises(tiers.TierError, match=r"tests/test_b\.py:1: there is no test"):
        tiers.checked_page(tmp_path)


def test_a_skipped_test_names_where_it_runs() -> None:
    # not by its name, which would be read as a mark
    mark = vars(soak_marks)[tiers.IN_ALL](f"{HOLDER}::test_holds").mark
    assert mark.args == (not soak_marks.ALL,)
    assert mark.kwargs["reason"] == f"slow: make test-all runs it; here {HOLDER}::test_holds holds its mechanism"
