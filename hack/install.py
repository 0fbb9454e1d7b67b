"""Create the virtual environment `.venv` with the package and the requirements of its tests, unless it is up to date.

The environment is up to date if this Python created it for the present pyproject.toml and lock of versions. The
configuration of pip and the machine's PIP_* variables apply. On Debian and its derivatives, root installs the package
that `python3 -m venv` needs.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "installed.json"
EXTRAS = ("operator", "cli", "runtime-cpu", "examples", "dev")
LOCK = ROOT / "hack" / "locks" / "development.txt"
"""The versions that are installed; `make lock` writes it."""
NEWEST_PYTHON = (3, 13)
"""The newest Python for which the locked TensorFlow has packages."""


def fingerprint() -> str:
    """Return a hash of all inputs of the installation."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lock = LOCK.read_text(encoding="utf-8")
    parts = [pyproject["project"], pyproject["build-system"], lock, EXTRAS, sys.version, str(ROOT)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_current(wanted: str) -> bool:
    """Return whether the environment was completely installed for this fingerprint."""
    try:
        return (VENV / "bin" / "python").exists() and json.loads(STAMP.read_text())["fingerprint"] == wanted
    except (OSError, ValueError, KeyError):
        return False


def ensure_venv_module() -> None:
    """Install the module `venv` if it is missing, which Debian has in a separate package, or exit with advice."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(f"error: {sys.executable} cannot create virtual environments; install {package} (or python3-venv)")
    print(f"installing {package}", flush=True)
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update"], check=True, env=environment)
    subprocess.run([*apt, "install", "--no-install-recommends", package], check=True, env=environment)


def made_by_this_python() -> bool:
    """Return whether the existing environment works and has this Python."""
    python = VENV / "bin" / "python"
    command = [str(python), "-c", "import sys; print(sys.version)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == sys.version.strip()


def install(wanted: str) -> None:
    """Create the environment if necessary, and install the package.

    Raises:
        CalledProcessError: a command failed.
    """
    if not made_by_this_python():
        ensure_venv_module()
        shutil.rmtree(VENV, ignore_errors=True)
        print(f"creating {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    print(f"installing the package with {', '.join(EXTRAS)}; with TensorFlow it takes a minute or two", flush=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    run_and_print([*pip, "--constraint", str(LOCK), "--editable", f".[{','.join(EXTRAS)}]"])
    STAMP.write_text(json.dumps({"fingerprint": wanted}) + "\n")


def run_and_print(command: Sequence[str]) -> None:
    """Run pip and print its output, without lines on packages that were installed before.

    Raises:
        CalledProcessError: pip failed.
    """
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(("Requirement already", "Looking in", "  ")):
                print(f"  {line}", end="", flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def main() -> int:
    """Run the command line, and return the exit status."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        print(
            f"error: TensorFlow has no packages for Python {sys.version.split()[0]}, only up to {newest}; "
            f"name another one: make PYTHON=python{newest} ...",
            file=sys.stderr,
        )
        return 1
    wanted = fingerprint()
    if is_current(wanted):
        return 0
    try:
        install(wanted)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
