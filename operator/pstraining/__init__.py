"""Parameter-server training on Kubernetes: the operator, the runtime library, the client and the CLI of one product."""

from importlib import import_module
from typing import Any

__all__ = ["Client", "__version__"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import the client on its first use, because the launcher, the operator and training programs do not need it."""
    if name == "Client":
        return import_module("pstraining.client.client").Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
