"""Imports that an operator without progress must avoid."""

import subprocess
import sys


def test_only_an_operator_that_accepts_progress_imports_the_library_for_certificates() -> None:
    source = "import sys, pstraining.controller.main; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert "pstraining.controller.progress.server" in found
    assert "cryptography" not in found
