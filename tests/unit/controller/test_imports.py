"""Imports and calls that the operator must avoid."""

import re
import subprocess
import sys
from pathlib import Path

import pstraining


def test_only_an_operator_that_accepts_progress_imports_the_library_for_certificates() -> None:
    source = "import sys, pstraining.controller.main; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert "pstraining.controller.progress.server" in found
    assert "cryptography" not in found


def test_no_text_is_interned() -> None:
    """CPython 3.12 never frees an interned text (gh-113993), so texts of deleted jobs would stay."""
    sources = [path.read_text(encoding="utf-8") for path in Path(*pstraining.__path__).rglob("*.py")]
    assert sources
    assert not any(re.search(r"\bintern\(", source) for source in sources)
