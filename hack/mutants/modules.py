"""The tables beside this file: the modules to mutate, the survivors with their reasons, and the named mutants."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PACKAGES = "operator/"
"""The folder that contains the package."""


@dataclass(frozen=True)
class Module:
    """A module, and the tests that must notice its mutants."""

    path: str
    """The path below the package's parent folder: pstraining/....py."""
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the module's name as Python imports it."""
        return import_name(self.path)


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test notices."""

    module: str
    function: str
    was: str
    becomes: str
    reason: str = ""
    """Why no test can notice it."""

    @property
    def change(self) -> tuple[str, str, str, str]:
        """Return the change that identifies the mutant after other lines of the module have changed."""
        return self.module, self.function, self.was, self.becomes

    def as_toml(self) -> str:
        """Return the entry for survivors.toml, without a reason."""
        lines = {"module": self.module, "function": self.function, "was": self.was, "becomes": self.becomes}
        return "\n".join(["[[survivor]]", *(f"{key} = '''{value}'''" for key, value in lines.items()), 'reason = ""'])


@dataclass(frozen=True)
class Named:
    """A mutant of one of the most important lines, for `make test`."""

    name: str
    module: str
    was: str
    becomes: str
    tests: tuple[str, ...]


def import_name(path: str) -> str:
    """Return the name by which Python imports pstraining/....py."""
    return path.removesuffix(".py").replace("/", ".")


def modules() -> list[Module]:
    """Return the modules that `make mutants` mutates."""
    return [Module(each["path"], tuple(each["tests"])) for each in _table("modules.toml", "module")]


def survivors() -> list[Survivor]:
    """Return the mutants that may survive."""
    return [Survivor(**each) for each in _table("survivors.toml", "survivor")]


def named() -> list[Named]:
    """Return the mutants that `make test` tries."""
    return [Named(**{**each, "tests": tuple(each["tests"])}) for each in _table("named.toml", "mutant")]


def _table(file: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((HERE / file).read_text("utf-8")).get(key, [])
    return found
