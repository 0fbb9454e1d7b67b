"""The launcher: the files that the operator puts into every training pod, with their contents and version.

The files run in users' images and import only the standard library. Of these files, the operator and the runtime import
only `listener`, `contract` and `keepalive`.
"""

import hashlib
from importlib import resources

FILES = (
    "launch.py",
    "cgroups.py",
    "contract.py",
    "freed_memory.py",
    "keepalive.py",
    "listener.py",
    "members.py",
    "probe.py",
    "serve.py",
    "status_port.py",
    "supervisor.py",
    "terms.py",
    "transfers.py",
    "usage.py",
)


def launcher_files() -> dict[str, str]:
    """Return the text of each file by name."""
    return {name: resources.files(__name__).joinpath(name).read_text(encoding="utf-8") for name in FILES}


def launcher_version() -> str:
    """Return the version of the files: equal texts have equal versions."""
    return hashlib.sha256("\0".join(launcher_files().values()).encode()).hexdigest()[:10]
