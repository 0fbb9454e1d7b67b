"""The documentation as a site: Sphinx, with the settings of docs/conf.py, rejects dead links."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.docs.pages import ROOT

WHOLE = """[a page](do.md), [its heading](do.md#first-step), [here](#here), [a file](../../tool.py), [by name][1],
[elsewhere](https://example.org/nothing), `[no](link.md)`

# Here

[1]: do.md#first-step-1
"""
BROKEN = """[a](gone.md) [b](do.md#gone) [c](#gone) [d](../../gone.py) [e](../../../outside.md) ![f](gone.svg)
"""


def build(root: Path, **pages: str) -> str:
    """Return Sphinx's output on a small repository, which lacks most of the pages that docs/conf.py lists."""
    do = "# Do\n\n## First step\n\n## First step\n"
    files = {"README.md": "# It\n", "tool.py": "", "docs/users/do.md": do}
    for name, text in {**files, **{f"docs/{name.replace('__', '/')}.md": text for name, text in pages.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root.parent / "outside.md").write_text("# Outside\n", encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-c", str(ROOT / "docs"), "-q", str(root), str(root / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def test_valid_links_are_accepted(root: Path) -> None:
    assert "links.md" not in build(root, **{"users__links": WHOLE})
    assert (root / "out" / "index.html").exists()
    assert "docs/users/links.html" in (root / "out" / "index.html").read_text()


def test_dead_links_and_unlisted_pages_are_reported(root: Path) -> None:
    said = build(root, **{"users__links": BROKEN, "odd__page": "# Odd\n"})
    assert said.count("docs/users/links.md:1: WARNING") == 6, said
    assert "docs/odd/page.md: WARNING: document isn't included in any toctree" in said
