#!/usr/bin/env python3
"""kubectl-pstraining as krew installs it. The first call creates a virtual environment beside this file, from the wheel
and the locked packages in this folder. Standard library only.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / "venv"
COMPLETE = VENV / "complete"
"""The file with the path of the environment's Python, once everything is installed."""


def main() -> None:
    """Replace this process by the plugin, which is installed first if necessary."""
    if sys.version_info < (3, 11):  # noqa: UP036 (any python3 may run it)
        sys.exit(f"error: the plugin needs Python 3.11 or newer; python3 is {sys.version.split()[0]}")
    if not is_complete():
        with (HERE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_complete():
                install()
    program = VENV / "bin" / "kubectl-pstraining"
    os.execv(program, [str(program), *sys.argv[1:]])


def interpreter() -> Path:
    """Return the Python of the environment, behind all links."""
    return (VENV / "bin" / "python").resolve()


def is_complete() -> bool:
    """Whether everything is installed, for a Python that is still there and the same: an upgrade may replace it."""
    return COMPLETE.exists() and interpreter().exists() and COMPLETE.read_text("utf-8") == str(interpreter())


def install() -> None:
    """Create the environment, and replace one of an interrupted installation or of another Python."""
    print("installing the plugin's Python packages, once for each Python", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    (wheel,) = HERE.glob("*.whl")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(VENV)],
        [*pip, "--require-hashes", "--requirement", str(HERE / "requirements.txt")],
        [*pip, "--no-deps", "--no-index", str(wheel)],
    ):
        done = subprocess.run(command, check=False, stdout=sys.stderr)
        if done.returncode:
            sys.exit(f"error: {' '.join(command)} ended with {done.returncode}; the next call tries again")
    COMPLETE.write_text(str(interpreter()), "utf-8")


if __name__ == "__main__":
    main()
