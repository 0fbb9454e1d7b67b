"""The launcher: the files that the operator puts into every training pod, their texts and their version.

They run in users' images and import nothing but the standard library. The operator and the runtime import `listener`
alone of them.
"""

import hashlib
from importlib import resources

FILES = ("launch.py", "listener.py", "members.py", "serve.py", "sights.py", "status_port.py", "terms.py")


def launcher_files() -> dict[str, str]:
    """Name and text of each file."""
    return {name: resources.files(__name__).joinpath(name).read_text(encoding="utf-8") for name in FILES}


def launcher_version() -> str:
    """What names these texts: the same texts, the same version."""
    return hashlib.sha256("\0".join(launcher_files().values()).encode()).hexdigest()[:10]
