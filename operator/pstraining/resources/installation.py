"""The operator's installation and its platform, on which pods depend besides their job."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pstraining.api import names


@dataclass(frozen=True)
class ProgressEndpoint:
    """The endpoint to which training programs report their progress."""

    url: str
    """URL of the operator's Service, without a path."""
    authority: str
    """The certificate of the authority that signs the server's certificate, in PEM."""


class KueueSupport(Enum):
    """Whether jobs wait for Kueue."""

    OFF = auto()
    """The operator ignores the labels of queues."""
    MISSING = auto()
    """The operator supports Kueue, but the API server does not serve its Workloads."""
    ON = auto()


@dataclass(frozen=True)
class Installation:
    """The operator's installation."""

    sets_ids: bool = True
    """Whether the operator sets the user and group IDs of new pods; otherwise the platform assigns them."""
    progress: ProgressEndpoint | None = None
    """The endpoint for progress; None if the operator does not accept progress."""
    kueue: KueueSupport = KueueSupport.OFF
    resizes_pods: bool = False
    """Whether the API server serves the subresource pods/resize (KEP-1287), by which running pods are resized."""


STANDARD: Final = Installation()
"""An operator that sets IDs, accepts no progress and ignores queues, on a cluster that does not resize pods."""


def progress_path(namespace: str, name: str) -> str:
    """Return the path at which a job's program reports its progress."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/progress"


def usage_path(namespace: str, name: str) -> str:
    """Return the path at which the launcher of a job's chief reports the resource usage of the job's pods."""
    return f"{progress_path(namespace, name)}/usage"


def history_path(namespace: str, name: str) -> str:
    """Return the path at which a job's chief reads its job; the logs of pods are below it."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/history"


def progress_audience(uid: str) -> str:
    """Return the audience of a token for the reports of one job: no other server and no other job accepts it."""
    return f"{names.GROUP}/progress/{uid}"
