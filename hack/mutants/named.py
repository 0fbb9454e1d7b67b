"""Try the named mutants: `python -m hack.mutants.named [NAME ...]`; exit with 1 if a test does not notice one.

Each mutant is tried in a fork of this process, which has imported pytest and no part of the package that a mutant
changes. The tests of a mutant must pass without it.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from hack.mutants.modules import PACKAGES, ROOT, Named, import_name, named

WARM = ("hypothesis", "numpy", "pstraining.api.models", "pytest_asyncio.plugin")
"""Modules that are imported before the forks: tests import them, and no mutant changes them."""
PASSED, FAILED = 0, 1


class Mutating(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with one changed line."""

    def __init__(self, mutant: Named) -> None:
        self._name = import_name(mutant.module)
        self._file, self._mutant = ROOT / PACKAGES / mutant.module, mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Find the module; other modules are left to the other finders."""
        return importlib.util.spec_from_file_location(name, self._file, loader=self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source."""
        source = mutated(self._mutant, self._file.read_text("utf-8"))
        exec(compile(source, str(self._file), "exec"), module.__dict__)


def mutated(mutant: Named, source: str) -> str:
    """Return the changed source.

    Raises:
        ValueError: the line does not occur exactly once.
    """
    if source.count(mutant.was) != 1:
        raise ValueError(f"{mutant.module} has {source.count(mutant.was)} times: {mutant.was}")
    return source.replace(mutant.was, mutant.becomes)


def exit_code(tests: Sequence[str], mutant: Named | None = None) -> int:
    """Run tests in a fork; return pytest's exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        if mutant is not None:
            assert import_name(mutant.module) not in sys.modules, "it is imported without the change"
            sys.meta_path.insert(0, Mutating(mutant))
        code = int(pytest.main([*tests, "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]))
    finally:
        os._exit(code)


def main(names: Sequence[str]) -> int:
    """Try the mutants; return the number of faulty ones."""
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / PACKAGES))
    for module in WARM:
        importlib.import_module(module)
    tried, wrong = [each for each in named() if not names or each.name in names], 0
    if exit_code(sorted({test for each in tried for test in each.tests})) != PASSED:
        print("the tests fail as they are")
        return 1
    for each in tried:
        code = exit_code(each.tests, each)
        wrong += code != FAILED
        print(f"{'killed' if code == FAILED else f'NOT NOTICED (pytest ended with {code})'}: {each.name}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
