"""Print the requirements of the package with the named extras, one a line, as pyproject.toml states them.

Images install these in a layer before the package itself. Standard library only: it runs before anything is installed.
"""

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def requirements(pyproject: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """The base requirements and those of the extras, sorted.

    Raises:
        KeyError: there is no such extra.
    """
    project = pyproject["project"]
    found = set(project.get("dependencies", ()))
    for extra in extras:
        found.update(project["optional-dependencies"][extra])
    return sorted(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml")
    parser.add_argument("--build-system", action="store_true", help="what building the package needs, instead")
    arguments = parser.parse_args()
    pyproject = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    lines = pyproject["build-system"]["requires"] if arguments.build_system else []
    for line in lines or requirements(pyproject, arguments.extras):
        print(line)


if __name__ == "__main__":
    main()
