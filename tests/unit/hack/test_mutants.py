"""Tests kill the named mutants, and survivors of `make mutants` are read and listed."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.mutants import __main__ as runner
from hack.mutants.__main__ import TIMES, Result, configure, mutate, stale, survivor, write_rows
from hack.mutants.modules import PACKAGES, ROOT, Module, Named, Survivor, modules, named, survivors
from hack.mutants.named import mutated

MODULE = Module("pstraining/runtime/replication/acceptor.py", ())
DIFF = """--- a.py
+++ a.py
@@ -1,3 +1,3 @@
 def on_admit(own, view):
-    if own.is_voter or own.promised > view.ballot:
+    if own.is_voter and own.promised > view.ballot:
         return own
"""


def test_mutants_of_the_most_important_lines_are_killed() -> None:
    command = [sys.executable, "-m", "hack.mutants.named"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed: ") == len(named()) >= 5


def test_a_named_mutant_that_no_longer_applies_is_rejected() -> None:
    with pytest.raises(ValueError, match="0 times"):
        mutated(Named("", "", "if a:", "if b:", ()), "if c:")
    with pytest.raises(ValueError, match="2 times"):
        mutated(Named("", "", "if a:", "if b:", ()), "if a: if a:")
    assert mutated(Named("", "", "if a:", "if b:", ()), "if a:") == "if b:"


def test_modules_and_their_tests_exist_and_survivors_have_reasons() -> None:
    for module in modules():
        assert (ROOT / PACKAGES / module.path).is_file()
        assert all((ROOT / test).exists() for test in module.tests)
    paths = {module.path for module in modules()}
    assert all(each.module in paths and each.reason for each in survivors())


def test_survivors_are_changes_of_lines_that_exist() -> None:
    for each in survivors():
        lines = (ROOT / PACKAGES / each.module).read_text("utf-8").splitlines()
        assert each.was in " ".join(line.strip() for line in lines), each
        assert each.was != each.becomes


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("pstraining.a.x_on_admit__mutmut_1", "on_admit"),
        ("pstraining.a.x__under__mutmut_12", "_under"),
        ("pstraining.a.xǁVotersǁis_quorum__mutmut_3", "Voters.is_quorum"),
    ],
)
def test_a_survivor_is_known_by_its_change(name: str, function: str) -> None:
    found = survivor(MODULE, name, DIFF)
    assert found.change == (
        MODULE.path,
        function,
        "if own.is_voter or own.promised > view.ballot:",
        "if own.is_voter and own.promised > view.ballot:",
    )


def test_an_entry_of_a_killed_mutant_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    found = survivor(MODULE, "pstraining.a.x_on_admit__mutmut_1", DIFF)
    monkeypatch.setattr("hack.mutants.__main__.survivors", lambda: [found])
    assert stale([Result(MODULE, 1, (found,), ())]) == []
    assert stale([Result(MODULE, 1, (), ())]) == [found]
    assert stale([]) == []


def test_the_rows_of_measured_modules_are_replaced_in_the_page(tmp_path: Path) -> None:
    page, found = tmp_path / "page.md", survivor(MODULE, "pstraining.a.x_on_admit__mutmut_1", DIFF)
    page.write_text(f"| `operator/{MODULE.path}` | old |\n| `other` | old |\n")
    write_rows(page, [Result(MODULE, 40, (found,), (found,))])
    assert page.read_text() == f"| `operator/{MODULE.path}` | 40 | 39 | 97.5 % | 0 | 1 |\n| `other` | old |\n"
    write_rows(page, [Result(Module("pstraining/new.py", ()), 2, (), ())])
    assert page.read_text().split("\n")[1:] == [
        "| `operator/pstraining/new.py` | 2 | 2 | 100.0 % | 0 | 0 |",
        "| `other` | old |",
        "",
    ]


def test_mutants_that_exceeded_their_time_run_again_with_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the first run counts a mutant as killed that no test notices; the second one has a longer
    limit.
    """
    runs: list[tuple[str, ...]] = []

    def prepared(module: Module) -> Path:
        configure(module, tmp_path, TIMES[0])
        return tmp_path

    def play(command: list[str], **settings: object) -> None:
        runs.append(tuple(command[6:]))
        times = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["mutmut"]["timeout_multiplier"]
        first = len(runs) == 1
        assert times == (TIMES[0] if first else TIMES[1])
        meta = tmp_path / "mutants" / f"{MODULE.path}.meta"
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text(json.dumps({"exit_code_by_key": {"a": 1, "b": -24 if first else 0, "c": -24}}))

    monkeypatch.setattr(runner, "prepare", prepared)
    monkeypatch.setattr("subprocess.run", play)
    tried: list[str] = []

    def read(module: Module, folder: Path, environment: dict[str, str], names: list[str]) -> Iterator[Survivor]:
        tried.extend(names)
        yield survivor(MODULE, "pstraining.a.x_on_admit__mutmut_1", DIFF)

    monkeypatch.setattr(runner, "_survivors", read)
    result = mutate(MODULE, 2)
    assert (result.mutants, len(result.survived), tried) == (3, 1, ["b"])
    assert runs == [(), ("b", "c")]
