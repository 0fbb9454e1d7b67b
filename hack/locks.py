"""Write the locks: for every image, and for the environment of the tests, the exact version of each package.

    python hack/locks.py              after a change of pyproject.toml; what is locked already stays as it is
    python hack/locks.py --upgrade    the newest versions that pyproject.toml allows

Images install from locks with hashes, whatever the machine, so that the same commit is the same image. Versions are
resolved for every platform and for Python 3.11 and later (uv's universal resolution).
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack.install import EXTRAS  # noqa: E402 (the path comes first)

LOCKS = ROOT / "hack" / "locks"
IMAGES = {
    "operator": ("operator",),
    "runtime": ("runtime", "examples"),
    "runtime-cpu": ("runtime-cpu", "examples"),
}
"""Extras of pyproject.toml by lock; the Dockerfile names the locks."""
BUILD = "build"
"""What building the package itself needs."""
DEVELOPMENT = "development"
"""The environment of the tests, as constraints: pip cannot check the hash of a package that is edited in place."""
_COMPILE = (
    "uv",
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--python-version",
    "3.11",
    "--no-annotate",
    "--no-header",
)


def write(name: str, extras: Sequence[str], options: Sequence[str]) -> None:
    """Write one lock.

    Args:
        name: the lock's.
        extras: of pyproject.toml; none: what its build system needs.
        options: further ones of uv.

    Raises:
        CalledProcessError: no versions satisfy the requirements; uv has said why.
    """
    command = [*_COMPILE, *options, "--output-file", str(LOCKS / f"{name}.txt")]
    if extras:
        command += ["pyproject.toml", *(f"--extra={extra}" for extra in extras)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    subprocess.run([*command, "-"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, input="\n".join(needs), text=True)


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    LOCKS.mkdir(exist_ok=True)
    for name, extras in {**IMAGES, BUILD: ()}.items():
        write(name, extras, ["--generate-hashes", *upgrade])
    write(DEVELOPMENT, EXTRAS, upgrade)


if __name__ == "__main__":
    main()
