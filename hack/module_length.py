"""Refuse modules of more than 400 lines, and packages of the runtime with more than 12 modules.

A module above the limit usually has more than one subject. In a larger package a reader does not find a subject by its
name. Prints each module and package above its limit; the exit status is then 1.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 400
FOLDERS = ("operator", "hack", "localcluster", "examples", "tests")
MODULES_MAX = 12
"""Most modules of one package of the runtime, besides `__init__` and the packages in it."""
RUNTIME = Path("operator", "pstraining", "runtime")


def too_long(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the modules above the limit, with their numbers of lines."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LIMIT:
                yield path, lines


def too_full(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the packages of the runtime above the limit, with their numbers of modules."""
    for package in sorted({path.parent for path in (root / RUNTIME).rglob("*.py")}):
        modules = sum(path.name != "__init__.py" for path in package.glob("*.py"))
        if modules > MODULES_MAX:
            yield package, modules


def main(root: Path = ROOT) -> int:
    """Print the modules and packages above their limits, and return the exit status."""
    long, full = list(too_long(root)), list(too_full(root))
    for path, lines in long:
        print(f"{path.relative_to(root)}: {lines} lines, too many for one module")
    for path, modules in full:
        print(f"{path.relative_to(root)}: {modules} modules, too many for one package")
    return 1 if long or full else 0


if __name__ == "__main__":
    sys.exit(main())
