"""How the parameters are partitioned over the servers, as far as the rendered children depend on it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLayout:
    """The layout of a job whose servers stay when their number changes."""

    number: int = 1
    """Counts the layouts since the StatefulSet of the servers was created. Two layouts never have the same number."""
    term: int = 1
    """The first term of the chief that trains it: a server with a promise to an earlier one has a former layout."""
    starting: int = 0
    """Servers that start for the next layout, besides the `spec.ps.replicas` of the current one."""
    ending: bool = False
    """Whether the leader is to save the state and to end, for another layout."""
    recorded: bool = False
    """Whether a StatefulSet of the job records it; then every StatefulSet that is created later does."""


FIRST = ServerLayout()
"""The layout of a job that is created."""
