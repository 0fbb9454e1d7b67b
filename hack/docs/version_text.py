"""The project's version in all files that name it: `make generate` writes it from pyproject.toml.

Changelogs and benchmarks keep their versions, and so does OLDER, the older version in examples of a skew.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

OLDER = "0.0.9"
FILES = (
    "README.md",
    "Dockerfile",
    "docs/**/*.md",
    "examples/**/*",
    "charts/*/Chart.yaml",
    "operator/pstraining/__init__.py",
)
_NOT = re.compile(r"docs/project/(benchmarks|decisions)/")
_PLACES = (
    r"(?:operator|runtime|runtime-gpu):",  # images
    r"pstraining[-/]",  # artefacts of a release
    r'__version__ = "',
    r"^version: ",
    r'^appVersion: "',
    r"this CLI's \(",
    r"^plugin +",
    r"the plugin has ",
)
_NAMED = re.compile(rf"({'|'.join(_PLACES)})(?!{re.escape(OLDER)})\d+\.\d+\.\d+(?![\w.]*\d)", re.MULTILINE)


def project_version(root: Path) -> str:
    """Return the version in pyproject.toml, its only source."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def rewritten(text: str, version: str) -> str:
    """Return the text with another version."""
    return _NAMED.sub(rf"\g<1>{version}", text)


def versioned(root: Path, made: Mapping[Path, str]) -> Iterator[tuple[Path, str]]:
    """Yield every file that names the version, with its expected content.

    Args:
        root: the checkout.
        made: texts of files that have other generators.
    """
    version = project_version(root)
    for path in sorted({path for pattern in FILES for path in root.glob(pattern)}):
        if path.suffix in (".md", ".yaml", ".ipynb", ".py", "") and path.is_file() and not _is_left(root, path):
            text = made[path] if path in made else path.read_text(encoding="utf-8")
            if _NAMED.search(text):
                yield path, rewritten(text, version)


def _is_left(root: Path, path: Path) -> bool:
    return bool(_NOT.match(path.relative_to(root).as_posix()))
