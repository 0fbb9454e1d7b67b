"""Sphinx's settings for the site: `make site` builds it from the pages where they lie in the repository.

MyST reads CommonMark, as GitHub does. Every warning is an error: a link to a page, a heading or a file that is not
there, and a page that no part of PARTS lists.
"""

import shutil
from pathlib import Path
from typing import Any

PARTS = {
    "Start": ("docs/README", "docs/start/*"),
    "For users": ("docs/users/*",),
    "For operators": ("docs/operators/*", "SECURITY"),
    "Reference": ("docs/reference/*", "charts/*/README"),
    "Concepts": ("docs/concepts/*",),
    "The project": ("CONTRIBUTING", "CHANGELOG", "charts/*/CHANGELOG", "docs/project/*", "localcluster/*"),
    "Measured": ("docs/project/benchmarks/*",),
    "Decisions": ("docs/project/decisions/*",),
}
"""What is listed beside every page."""

project = "pstraining"
root_doc = "README"
html_title = "pstraining"
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md", "charts/*/*.md", "localcluster/*.md"]
exclude_patterns = [".*", "build"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
# What the pages' blocks of code are in is not always what Pygments knows; that is no error of theirs.
suppress_warnings = ["misc.highlighting_failure"]


def add_contents(app: Any, name: str, source: list[str]) -> None:
    """List all pages on the first one, which GitHub shows without that list."""
    if name == root_doc:
        for title, pages in PARTS.items():
            entries = "\n".join(pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{entries}\n```\n"


def add_index(app: Any, error: Exception | None) -> None:
    """Have the site's address show the first page."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> dict[str, bool]:
    """Register both with Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
