"""Refuse modules of more than 400 lines: one that needs more holds two things.

Prints every offender; the exit status is 1 if there is one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

LIMIT = 400
FOLDERS = ("operator", "hack", "localcluster", "examples", "tests")


def too_long(root: Path) -> Iterator[tuple[Path, int]]:
    """The modules over the limit, with their numbers of lines."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LIMIT:
                yield path, lines


def main() -> int:
    """The exit status."""
    root = Path(__file__).resolve().parents[1]
    found = list(too_long(root))
    for path, lines in found:
        print(f"{path.relative_to(root)}: {lines} lines, too many for one module")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
