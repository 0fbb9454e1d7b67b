"""The documentation as a site: what is laid out for Sphinx, which then checks every link."""

import subprocess
from pathlib import Path

import pytest

from hack.docs import site
from hack.docs.pages import pages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of two pages, of which one links to a manifest and a folder."""
    made = tmp_path / "repository"
    files = {
        "README.md": "# It\n\n[A manifest](examples/job.yaml), [all](examples/), [how](docs/how-to/do.md#first).",
        "docs/how-to/do.md": "# Do\n\n## First\n\n[Elsewhere](https://example.org/examples/).",
        "examples/job.yaml": "kind: Job\n",
        "examples/other.yaml": "kind: Other\n",
        "secret.txt": "not linked",
    }
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=made, check=True)
    return made


def test_what_is_linked_lies_where_it_does_in_the_repository(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    site.lay_out(root, out)
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {
        "README.md",
        "docs/how-to/do.md",
        "examples/job.yaml",
        "examples/other.yaml",
        "examples/files.md",
    }
    start = (out / "README.md").read_text()
    assert "[all](examples/files.md)" in start
    assert "\ndocs/how-to/do\n" in start
    assert "[other.yaml](other.yaml)" in (out / "examples/files.md").read_text()
    assert "(https://example.org/examples/)" in (out / "docs/how-to/do.md").read_text()


def test_every_page_is_listed_once(tmp_path: Path) -> None:
    site.lay_out(site.ROOT, tmp_path)
    start = (tmp_path / "README.md").read_text().splitlines()
    for path in pages(site.ROOT):
        place = str(path.relative_to(site.ROOT).with_suffix(""))
        assert start.count(place) == (place != "README"), place


def test_a_page_that_no_part_has_is_an_error(root: Path, tmp_path: Path) -> None:
    (root / "docs/elsewhere.md").write_text("# Elsewhere\n")
    pages.cache_clear()
    with pytest.raises(ValueError, match=r"docs/elsewhere.md: no part of PARTS has these pages"):
        site.lay_out(root, tmp_path / "out")
