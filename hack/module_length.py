"""Refuse modules of more than 400 lines, which usually have more than one subject.

Prints every such module; the exit status is then 1.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

LIMIT = 400
FOLDERS = ("operator", "hack", "localcluster", "examples", "tests")


def too_long(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the modules above the limit, with their numbers of lines."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LIMIT:
                yield path, lines


def main() -> int:
    """Print the modules above the limit, and return the exit status."""
    root = Path(__file__).resolve().parents[1]
    found = list(too_long(root))
    for path, lines in found:
        print(f"{path.relative_to(root)}: {lines} lines, too many for one module")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
