"""The kubectl plugin for krew: an archive, and the manifest that names its hash.

The plugin is a Python program, so the archive holds no binary. It contains the wheel, the locked versions of its
dependencies, and a launcher. At the first call the launcher installs both into a virtual environment.
"""

from pathlib import Path

import yaml

from hack.release.archive import Entry, sha256, write
from hack.release.source import Source

NAME = "kubectl-pstraining"
CAVEATS = """The plugin is a Python program. It needs Python 3.11 or newer as python3, with venv. At its first call, it
installs its locked packages from the Python package index, or from the index of your pip's configuration, into its own
folder. Only Linux is tested.
"""


def archive(source: Source, wheel: Path, folder: Path) -> Path:
    """Write the plugin's archive."""
    entries = {
        NAME: Entry((source.root / "hack" / "release" / "launcher.py").read_bytes(), executable=True),
        wheel.name: Entry(wheel.read_bytes()),
        "requirements.txt": Entry((source.root / "hack" / "locks" / "cli.txt").read_bytes()),
        "LICENSE": Entry((source.root / "LICENSE").read_bytes()),
    }
    path = folder / f"{NAME}-{source.version}.tar.gz"
    write(path, entries, source.epoch)
    return path


def manifest(packed: Path, version: str, downloads: str) -> str:
    """Return krew's manifest.

    Args:
        packed: the archive.
        version: the project's.
        downloads: URL of the folder from which users download the archive.
    """
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
        "uri": f"{downloads}/{packed.name}",
        "sha256": sha256(packed),
        "bin": NAME,
    }
    spec = {
        "version": f"v{version}",
        "shortDescription": "Plan, submit, watch and diagnose PSTrainingJobs",
        "caveats": CAVEATS,
        "platforms": [platform],
    }
    head = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin"}
    return yaml.safe_dump({**head, "metadata": {"name": "pstraining"}, "spec": spec}, sort_keys=False, width=120)
