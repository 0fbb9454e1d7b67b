"""Imports that a parameter server must avoid."""

import subprocess
import sys
from pathlib import Path

from pstraining.runtime.config.server import launcher_file


def test_importing_the_runtime_imports_no_tensorflow() -> None:
    source = "import sys, pstraining.runtime, pstraining.runtime.local; print(*sorted(sys.modules))"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3] / 'operator')!r}); {source}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"tensorflow", "keras", "numpy"} & set(found)


def test_the_launcher_is_found_as_a_file() -> None:
    assert launcher_file().name == "launch.py"
