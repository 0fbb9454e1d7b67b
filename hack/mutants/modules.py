"""The tables beside this file: the modules to mutate, the survivors with their reasons, and the named mutants."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PACKAGES = "operator/"
"""The folder that the package is in."""


@dataclass(frozen=True)
class Module:
    """A module, and the tests that are to notice a change of it."""

    path: str
    """From the package's folder on: pstraining/....py."""
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The module's name as Python imports it."""
        return import_name(self.path)


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test notices."""

    module: str
    function: str
    was: str
    becomes: str
    reason: str = ""
    """Why nothing can notice it."""

    @property
    def change(self) -> tuple[str, str, str, str]:
        """What makes it the same mutant after other lines of the module have changed."""
        return self.module, self.function, self.was, self.becomes

    def as_toml(self) -> str:
        """The entry for survivors.toml, without a reason."""
        lines = {"module": self.module, "function": self.function, "was": self.was, "becomes": self.becomes}
        return "\n".join(["[[survivor]]", *(f"{key} = '''{value}'''" for key, value in lines.items()), 'reason = ""'])


@dataclass(frozen=True)
class Named:
    """A mutant of a line that matters most, for `make test`."""

    name: str
    module: str
    was: str
    becomes: str
    tests: tuple[str, ...]


def import_name(path: str) -> str:
    """The name as Python imports it of pstraining/....py."""
    return path.removesuffix(".py").replace("/", ".")


def modules() -> list[Module]:
    """The modules that `make mutants` mutates."""
    return [Module(each["path"], tuple(each["tests"])) for each in _table("modules.toml", "module")]


def survivors() -> list[Survivor]:
    """The mutants that may survive."""
    return [Survivor(**each) for each in _table("survivors.toml", "survivor")]


def named() -> list[Named]:
    """The mutants that `make test` tries."""
    return [Named(**{**each, "tests": tuple(each["tests"])}) for each in _table("named.toml", "mutant")]


def _table(file: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((HERE / file).read_text("utf-8")).get(key, [])
    return found
