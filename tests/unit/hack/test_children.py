"""Commands run to their end, or are terminated with time to clean up."""

import time
from pathlib import Path

import pytest

from hack.children import Ended, EndlessError, TerminatedError, interrupted, run_child, run_children

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def test_a_command_has_its_exit_status_and_its_output_goes_where_it_should(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        assert run_child(("sh", "-c", "echo a; echo b >&2; exit 5"), ENVIRONMENT, 60.0, out=out) == 5
    assert (tmp_path / "out").read_text() == "a\nb\n"


@pytest.mark.parametrize("how", ["endless", "terminated"])
def test_a_terminated_command_cleans_up(tmp_path: Path, how: str) -> None:
    script = tmp_path / "cleans.sh"
    script.write_text(f"trap 'echo clean > {tmp_path}/done; exit 3' INT\necho up\nwhile true; do sleep 0.05; done\n")
    out = tmp_path / "out"

    def look() -> None:
        deadline = time.monotonic() + 60.0
        while not out.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if how == "terminated":
            interrupted(0, None)

    expected, longest_s = (EndlessError, 1.2) if how == "endless" else (TerminatedError, 60.0)
    with out.open("wb") as file, pytest.raises(expected):
        run_child(("bash", str(script)), ENVIRONMENT, longest_s, out=file, look=look)
    assert (tmp_path / "done").read_text() == "clean\n"


def test_an_endless_command_is_named() -> None:
    with pytest.raises(EndlessError, match=r"sleep was ended after 0\.1 s"):
        run_child(("sleep", "600"), ENVIRONMENT, 0.1)


def together(*scripts: str, at_once: int = 2, longest_s: float = 60.0) -> list[Ended]:
    """Run shell scripts together; return their results in the order of their ends."""
    found: list[Ended] = []
    commands = [("sh", "-c", script) for script in scripts]
    run_children(commands, ENVIRONMENT, longest_s, at_once=at_once, report=found.append)
    return found


def test_commands_run_at_the_same_time_and_keep_their_output_apart(tmp_path: Path) -> None:
    def meets(own: str, other: str) -> str:
        wait = f"until [ -e {tmp_path}/{other} ]; do sleep 0.02; done"
        return f"echo {own}; touch {tmp_path}/{own}; {wait}; echo {own} >&2; exit {len(own)}"

    found = together(meets("a", "bb"), meets("bb", "a"))
    assert sorted((ended.code, ended.output) for ended in found) == [(1, b"a\na\n"), (2, b"bb\nbb\n")]


def test_no_more_commands_run_at_the_same_time_than_allowed(tmp_path: Path) -> None:
    alone = f"mkdir {tmp_path}/busy && sleep 0.1 && rmdir {tmp_path}/busy"
    assert [ended.code for ended in together(alone, alone, alone, at_once=1)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["endless", "terminated"])
def test_all_terminated_commands_clean_up(tmp_path: Path, how: str) -> None:
    def cleans(name: str) -> tuple[str, ...]:
        trap = f"trap 'echo clean > {tmp_path}/{name}.done; exit 3' INT"
        return "bash", "-c", f"{trap}; touch {tmp_path}/{name}.up; while true; do sleep 0.05; done"

    def look() -> None:
        deadline = time.monotonic() + 60.0
        while not all((tmp_path / f"{name}.up").exists() for name in "ab"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if how == "terminated":
            interrupted(0, None)

    found: list[Ended] = []
    expected, longest_s = (EndlessError, 1.2) if how == "endless" else (TerminatedError, 60.0)
    with pytest.raises(expected):
        run_children([cleans("a"), cleans("b")], ENVIRONMENT, longest_s, at_once=2, report=found.append, look=look)
    assert [(tmp_path / f"{name}.done").read_text() for name in "ab"] == ["clean\n"] * 2
    assert len(found) == (how == "endless")
