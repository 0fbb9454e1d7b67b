"""Refuse pages that name files which are gone, or to which no link leads.

A code span or a block of code that looks like a path of this repository must name a file. Links of pages below docs/
lead from docs/README.md to every page there. Sphinx follows the links themselves, when it builds the site.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack.docs.pages import Page, Piece, pages  # noqa: E402 (the path comes first)
from hack.field_mutation import functions  # noqa: E402

FOLDERS = (".ci", "bench", "charts", "crds", "docs", "examples", "hack", "localcluster", "operator", "tests")
"""A path that starts with one of them is relative to the root."""
_PATH = re.compile(rf"(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w.*/-]+)(::\w+)?")
_NO_PATHS = {"examples/s": "a rate", "docs/project/decisions/NNNN-title.md": "how records are named"}
"""What looks like a path and is none, and why."""
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def problems(root: Path) -> Iterator[str]:
    """All that is wrong, each with its page and line."""
    known = pages(root)
    for page in known.values():
        where = page.path.relative_to(root)
        for word in words(page):
            if not is_there(root, word.text):
                yield f"{where}:{word.line}: {word.text}: there is no such file"
    for path in lonely(known, root / "docs"):
        yield f"{path.relative_to(root)}: no link leads here from docs/README.md"


def target_of(page: Page, file: str) -> Path:
    """The path that a link's file part means; without one it is the page."""
    return (page.path.parent / unquote(file)).resolve() if file else page.path


def words(page: Page) -> Iterator[Piece]:
    """What is written as code, word by word."""
    for span in page.spans:
        for word in span.text.split():
            yield Piece(span.line, word.strip("\"'(),;"))
    for block in page.blocks:
        for number, line in enumerate(block.text.splitlines()):
            for word in line.split():
                yield Piece(block.line + number, word.strip("\"'(),;"))


def is_there(root: Path, word: str) -> bool:
    """Whether a word is no path of the repository, or one of something that exists; a test may follow it."""
    found = _PATH.fullmatch(word)
    if not found or word in _NO_PATHS:
        return True
    path, test = found[1], found[2]
    if test:
        return functions.exists(root, path + test)
    return any(root.glob(path)) if "*" in path else (root / path).exists()


def lonely(known: Mapping[Path, Page], folder: Path) -> list[Path]:
    """The pages of a folder to which none of its links lead, from its README on."""
    inside = {path for path in known if path.is_relative_to(folder)}
    start = folder / "README.md"
    reached, waiting = {start}, [start]
    while waiting:
        page = known[waiting.pop()]
        files = (link.text.partition("#")[0] for link in page.links if not _ELSEWHERE.match(link.text))
        near = {target_of(page, file) for file in files} & inside - reached
        reached |= near
        waiting += near
    return sorted(inside - reached)


def main() -> int:
    """Print every problem; the exit status is 1 if there is one."""
    found = list(problems(ROOT))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
