"""The local cluster starts on a machine without any packages."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_command_runs_without_packages() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from localcluster.__main__ import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kueue" in done.stdout
