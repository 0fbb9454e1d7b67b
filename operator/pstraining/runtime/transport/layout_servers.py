"""The servers of one layout among all servers that a task is connected to."""

from dataclasses import dataclass

from pstraining.runtime.config.cluster import Cluster


@dataclass(frozen=True)
class LayoutServers:
    """The parameter servers of a layout, in their order: server i + m n is member m of shard i of n."""

    cluster: Cluster
    """The job with this layout."""
    numbers: tuple[int, ...]
    """Number of each server among all servers of the client; another layout may share them."""
    devices: tuple[str, ...]
    """TensorFlow's device of each server."""
    container: str
    """The container of the layout's variables on each server: two layouts may share a server for a while."""


def container(cluster: Cluster) -> str:
    """Return the container of the variables of a job's layout."""
    return f"pstraining.{cluster.job}" + (f".{cluster.layout}" if cluster.layout > 1 else "")
