"""A parameter server's process: the program becomes the launcher's server, without TensorFlow's Python side."""

import importlib.util
import os
import sys
from pathlib import Path

from pstraining.runtime.config.cluster import ClusterError


def become_server() -> None:
    """Replace this process by the launcher's server, which does not load TensorFlow's Python side. Does not return.

    Raises:
        ClusterError: the installation has no launcher.
    """
    launcher = launcher_file()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(launcher), "serve"])  # noqa: S606


def launcher_file() -> Path:
    """Return the path of the launcher in this installation, without importing it.

    Raises:
        ClusterError: the installation has no launcher.
    """
    spec = importlib.util.find_spec("pstraining")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if (found := Path(folder) / "launcher" / "launch.py").is_file():
            return found
    raise ClusterError("this installation of pstraining has no launcher to serve with")
