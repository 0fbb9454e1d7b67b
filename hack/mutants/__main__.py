"""Mutate whole modules with mutmut, and report the changes that no test notices.

    python -m hack.mutants                           all modules of modules.toml
    python -m hack.mutants replication/view ...      those whose path contains one of these
    python -m hack.mutants --table PAGE.md           also writes their rows into the page's table

A surviving mutant must be in survivors.toml, with the reason why no test can notice it; otherwise the run fails. The
tool mutmut works in a copy below build/mutants, where the package is at the top. It derives a module's name from its
path. It forks a process for each mutant from one that has the tests imported, and runs the tests that reach the mutated
function.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.mutants.modules import PACKAGES, ROOT, Module, Survivor, modules, survivors

BUILD = ROOT / "build" / "mutants"
COPIED = ("hack", "localcluster", "crds", "charts", "bench", "docs")
"""Files that tests read besides the package and themselves."""
SURVIVED, NO_TESTS, NOT_CHECKED, TIMED_OUT = 0, (5, 33), None, (-24, 24, 36, 152, 255)
TIMES: Final = (15.0, 150.0)
"""Factors of the tests' usual time after which a mutant counts as killed. The second one is for a repeated run of
mutants that have exceeded the first. A busy machine would otherwise kill mutants that no test notices.
"""
DIFFS = """
import json, sys
from mutmut.mutation.diff_apply import get_diff_for_mutant
print(json.dumps({name: get_diff_for_mutant(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True)
class Result:
    """The results of a module's mutants."""

    module: Module
    mutants: int
    survived: tuple[Survivor, ...]
    unlisted: tuple[Survivor, ...]

    @property
    def row(self) -> str:
        """Return the module's row of the table."""
        killed, listed = self.mutants - len(self.survived), len(self.survived) - len(self.unlisted)
        rate = 100 * killed / self.mutants if self.mutants else 100.0
        path = f"{PACKAGES}{self.module.path}"
        return f"| `{path}` | {self.mutants} | {killed} | {rate:.1f} % | {listed} | {len(self.unlisted)} |"


def prepare(module: Module) -> Path:
    """Create the folder in which mutmut works, without the results of an earlier run."""
    folder = BUILD / module.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pstraining").symlink_to(ROOT / PACKAGES / "pstraining")
    for name in ("tests", *COPIED):
        (folder / name).symlink_to(ROOT / name)
    configure(module, folder, TIMES[0])
    return folder


def configure(module: Module, folder: Path, times: float) -> None:
    """Write mutmut's settings into its folder.

    Args:
        module: the module to mutate.
        folder: the folder.
        times: how many times as long as usual the tests of a mutant may take.
    """
    settings = {
        "timeout_multiplier": times,
        "source_paths": ["pstraining"],
        "only_mutate": [module.path],
        "also_copy": list(COPIED),
        "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": list(module.tests),
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(f"{pyproject}\n[tool.mutmut]\n{lines}", "utf-8")


def mutate(module: Module, children: int) -> Result:
    """Run mutmut on a module.

    Raises:
        RuntimeError: mutmut did not try every mutant.
    """
    folder = prepare(module)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PSTRAINING_TESTS")}
    codes = _run(module, folder, environment, children)
    if slow := [name for name, code in codes.items() if code in TIMED_OUT]:
        print(f"{module.path}: {len(slow)} mutants have exceeded their time and run again, one at a time", flush=True)
        configure(module, folder, TIMES[1])
        codes = _run(module, folder, environment, 1, slow)
    names = [name for name, code in codes.items() if code == SURVIVED or code in NO_TESTS]
    survived = tuple(_survivors(module, folder, environment, names))
    known = {each.change for each in survivors()}
    return Result(module, len(codes), survived, tuple(each for each in survived if each.change not in known))


def _run(
    module: Module, folder: Path, environment: dict[str, str], children: int, names: Sequence[str] = ()
) -> dict[str, int | None]:
    """Run mutmut on a module, or on some of its mutants; return the exit code of the tests of every mutant."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *names]
    with (folder / "log").open("a") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    found = folder / "mutants" / f"{module.path}.meta"
    codes: dict[str, int | None] = json.loads(found.read_text("utf-8"))["exit_code_by_key"] if found.exists() else {}
    if not codes or NOT_CHECKED in codes.values():
        raise RuntimeError(f"{module.path}: mutmut did not try every mutant, see {folder / 'log'}")
    return codes


def _survivors(module: Module, folder: Path, environment: dict[str, str], names: Sequence[str]) -> Iterator[Survivor]:
    if not names:
        return
    command = [sys.executable, "-c", DIFFS, *names]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    for name, diff in json.loads(done.stdout).items():
        yield survivor(module, name, diff)


def survivor(module: Module, name: str, diff: str) -> Survivor:
    """Return a survivor from mutmut's name of it and its diff."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@"))]
    was, becomes = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    function = re.sub(r"__mutmut_\d+$", "", name.rpartition(".")[2])
    # mutmut calls a function x_NAME, and a method xǁCLASSǁNAME.
    function = function.removeprefix("x_") if function.startswith("x_") else function[2:].replace("ǁ", ".")
    return Survivor(module.path, function, was, becomes)


def stale(results: Sequence[Result]) -> list[Survivor]:
    """Yield the entries of survivors.toml that match no mutant of these modules any more, or that a test kills now."""
    paths = {result.module.path for result in results}
    still = {each.change for result in results for each in result.survived}
    return [each for each in survivors() if each.module in paths and each.change not in still]


def write_rows(page: Path, results: Sequence[Result]) -> None:
    """Write the rows of these modules into a page's table, which begins with a module's row; other rows are kept."""
    lines = page.read_text("utf-8").split("\n")
    for result in results:
        begins = [f"| `{PACKAGES}{result.module.path}` |", f"| `{PACKAGES}"]
        found, last = ([n for n, line in enumerate(lines) if line.startswith(begin)] for begin in begins)
        if found:
            lines[found[0]] = result.row
        else:
            lines.insert(last[-1] + 1, result.row)
    page.write_text("\n".join(lines), "utf-8")


def main() -> int:
    """Mutate the chosen modules; return 1 if a survivor is not listed, or if a listed one is none."""
    parser = argparse.ArgumentParser(prog="python -m hack.mutants")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    chosen = [each for each in modules() if not options.modules or any(part in each.path for part in options.modules)]
    results = []
    for module in chosen:
        results.append(mutate(module, options.children))
        print(results[-1].row, flush=True)
        for each in results[-1].unlisted:
            print(f"\n{each.as_toml()}", flush=True)
    if options.table:
        write_rows(options.table, results)
    for each in (gone := stale(results)):
        print(f"\nno survivor any more:\n{each.as_toml()}")
    return 1 if not chosen or gone or any(result.unlisted for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
