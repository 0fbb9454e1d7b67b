"""Packages that only one test of `make test-all` needs; those of the environment take precedence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def add_packages(folder: Path, monkeypatch: pytest.MonkeyPatch, *requirements: str) -> None:
    """Install packages into a folder for this process and its children, until the test's end."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--target", str(folder), *requirements]
    subprocess.run(command, check=True, timeout=600)
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path if path.endswith("site-packages")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*before, *installed, str(folder)]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
