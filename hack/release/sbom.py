"""Bills of materials of the images and the plugin, as CycloneDX: `python -m hack.release.sbom FOLDER`."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("operator", "runtime-cpu", "runtime-gpu", "cli")


def write(folder: Path, root: Path = ROOT, locks: Iterable[str] = LOCKS) -> None:
    """Write a bill of materials for each lock, without times and random numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    program = Path(sys.executable).parent / "cyclonedx-py"
    for lock in locks:
        command = [str(program), "requirements", f"hack/locks/{lock}.txt", "--pyproject", "pyproject.toml"]
        target = str((folder / f"{lock}.cdx.json").resolve())
        subprocess.run([*command, "--output-reproducible", "--output-file", target], cwd=root, check=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
