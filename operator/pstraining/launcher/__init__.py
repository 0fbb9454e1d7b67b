"""The launcher, one file that the operator puts into every training pod: its text and its version.

`launch.py` runs in users' images and imports nothing but the standard library; nothing here imports it either.
"""

import hashlib
from importlib import resources


def launcher_source() -> str:
    """The text of launch.py."""
    return resources.files(__name__).joinpath("launch.py").read_text(encoding="utf-8")


def launcher_version() -> str:
    """What names one text of launch.py: the same text, the same version."""
    return hashlib.sha256(launcher_source().encode()).hexdigest()[:10]
