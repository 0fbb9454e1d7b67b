"""Refuse pages that name missing files, and pages that no link leads to.

A code span or a word of a code block with the form of a path of this repository must name a file. Links must lead from
docs/README.md to every page below docs/. Sphinx checks the links themselves when it builds the site.
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
"""Words with the form of a path that are not paths, with the reasons."""
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def problems(root: Path) -> Iterator[str]:
    """Yield all problems, each with its page and line."""
    known = pages(root)
    for page in known.values():
        where = page.path.relative_to(root)
        for word in words(page):
            if not is_there(root, word.text):
                yield f"{where}:{word.line}: {word.text}: there is no such file"
    for path in unlinked(known, root / "docs"):
        yield f"{path.relative_to(root)}: no link leads here from docs/README.md"


def target_of(page: Page, file: str) -> Path:
    """Return the path of a link's file part; without one, the page's path."""
    return (page.path.parent / unquote(file)).resolve() if file else page.path


def words(page: Page) -> Iterator[Piece]:
    """Yield the words in a page's code."""
    for span in page.spans:
        for word in span.text.split():
            yield Piece(span.line, word.strip("\"'(),;"))
    for block in page.blocks:
        for number, line in enumerate(block.text.splitlines()):
            for word in line.split():
                yield Piece(block.line + number, word.strip("\"'(),;"))


def is_there(root: Path, word: str) -> bool:
    """Return whether a word is not a path of the repository, or an existing one; a test's name may follow it."""
    found = _PATH.fullmatch(word)
    if not found or word in _NO_PATHS:
        return True
    path, test = found[1], found[2]
    if test:
        return functions.exists(root, path + test)
    return any(root.glob(path)) if "*" in path else (root / path).exists()


def unlinked(known: Mapping[Path, Page], folder: Path) -> list[Path]:
    """Return the pages of a folder that links from its README do not reach."""
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
    """Print every problem, and return the exit status: 1 if there are any."""
    found = list(problems(ROOT))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
