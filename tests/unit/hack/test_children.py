"""Commands come to their end, or are ended, and have time to clean up."""

import time
from pathlib import Path

import pytest

from hack.children import EndlessError, TerminatedError, interrupted, run_child

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
