"""Build the documentation as a site, from the pages as they lie in the repository.

    python hack/docs/site.py             into build/site
    python hack/docs/site.py --out DIR   elsewhere

Sphinx reads the pages with MyST, which is CommonMark, as GitHub is. They link to what lies outside of docs/, too: so
every page and every linked file is laid out as in the repository, and a folder that is linked gets a page that lists
what is in it. Every warning is an error.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack.docs.links import target_of  # noqa: E402 (the path comes first)
from hack.docs.pages import Page, pages  # noqa: E402

START = "README.md"
PARTS = {
    "Concepts": ("docs/README.md", "docs/concepts/*.md"),
    "How to": ("docs/how-to/*.md",),
    "Reference": ("docs/reference/*.md", "charts/*/README.md"),
    "Measured": ("docs/benchmarks/*.md",),
    "Why, and what not": ("docs/known-limits.md", "docs/decisions/*.md"),
    "The project": ("*.md", "charts/*/CHANGELOG.md", "examples/**/*.md", "localcluster/*.md"),
}
"""What is listed beside every page: patterns of pages, each in the first part that has it."""


def lay_out(root: Path, folder: Path) -> None:
    """Copy pages, and what they link to, into an empty folder."""
    known = pages(root)
    targets = set(linked(root, known))
    folders = {path for path in targets if path.is_dir()}
    for path in sorted({*known, *targets} - folders):
        place = folder / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path in known:
            place.write_text(_to_lists(root, known[path], folders), encoding="utf-8")
        else:
            shutil.copyfile(path, place)
    for path in sorted(folders):
        _list(root, path, folder)
    start = folder / START
    start.write_text(start.read_text(encoding="utf-8") + "".join(contents(root, known, folders)), encoding="utf-8")


def linked(root: Path, known: Mapping[Path, Page]) -> Iterator[Path]:
    """What pages link to in this repository."""
    for page in known.values():
        for link in page.links:
            path = target_of(page, link.text.partition("#")[0])
            if "://" not in link.text and path.is_relative_to(root) and path.exists():
                yield path


def contents(root: Path, known: Mapping[Path, Page], folders: set[Path]) -> Iterator[str]:
    """The list of all pages, part by part, as MyST takes it."""
    left = set(known) - {root / START}
    for title, patterns in PARTS.items():
        found = sorted(left.intersection(path for pattern in patterns for path in root.glob(pattern)))
        left -= set(found)
        yield _toctree(title, [path.relative_to(root) for path in found])
    yield _toctree("Files", sorted(_page_of(root, path) for path in folders))
    if left:
        raise ValueError(f"{', '.join(map(str, sorted(left)))}: no part of PARTS has these pages")


def build(folder: Path, out: Path) -> int:
    """Make the site of what is laid out; Sphinx's exit status."""
    options = ["-b", "html", "-c", str(ROOT / "docs"), "-W", "--keep-going", "-q", "-j", "auto", "-E"]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, str(folder), str(out)], check=False).returncode


def _toctree(title: str, places: Sequence[Path]) -> str:
    entries = "".join(f"{place.with_suffix('')}\n" for place in places)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}```\n"


def _page_of(root: Path, folder: Path) -> Path:
    """Where the list of a folder's files is."""
    return folder.relative_to(root) / "files.md"


def _to_lists(root: Path, page: Page, folders: set[Path]) -> str:
    """A page's text, its links to folders changed into links to their lists."""
    text = page.path.read_text(encoding="utf-8")
    for link in {piece.text for piece in page.links}:
        if "://" not in link and target_of(page, link) in folders:
            text = re.sub(rf"\]\({re.escape(link)}\)", f"]({link.rstrip('/')}/files.md)", text)
    return text


def _list(root: Path, folder: Path, out: Path) -> None:
    """Write a page that lists a folder's files, and lay those out."""
    place = out / _page_of(root, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    name = folder.relative_to(root)
    listed = subprocess.run(["git", "ls-files", str(name)], cwd=root, check=True, capture_output=True, text=True)
    lines = [f"# {name}/", ""]
    for file in map(Path, listed.stdout.split()):
        copy = out / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copyfile(root / file, copy)
        lines.append(f"- [{file.relative_to(name)}]({file.relative_to(name)})")
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Build it; the exit status says whether every link leads somewhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="where the site goes")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        lay_out(ROOT, Path(folder))
        status = build(Path(folder), out)
    if status:
        print("the documentation has errors, see above", file=sys.stderr)
        return status
    shutil.copyfile(out / START.replace(".md", ".html"), out / "index.html")
    print(f"the documentation is in {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
