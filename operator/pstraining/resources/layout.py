"""The layout of the parameters on the servers, with the fields on which the rendered children depend."""

from dataclasses import dataclass

from pstraining.api.models import PSTrainingJob


@dataclass(frozen=True)
class ServerLayout:
    """The layout of a job whose servers stay when their number changes."""

    number: int = 1
    """Number of the layout since the StatefulSet of the servers was created. Two layouts never have the same number."""
    term: int = 1
    """The first term of the chief that trains the layout. A server with a promise to an earlier term has a former
    layout."""
    starting: int = 0
    """Number of servers that start for the next layout, besides the `spec.ps.replicas` of the current one."""
    ending: bool = False
    """Whether the chief has to lead training to the next layout, or to save the state for it and end."""
    following: int = 0
    """Number of shards of the next layout, if the chief may lead training to it; otherwise 0."""
    recorded: bool = False
    """Whether a StatefulSet of the job records the layout; if so, StatefulSets that are created later record it too."""


FIRST = ServerLayout()
"""The layout of a new job."""


def with_shards(job: PSTrainingJob, shards: int) -> PSTrainingJob:
    """Return a job with another number of shards."""
    spec = job.spec.model_copy(update={"ps": job.spec.ps.model_copy(update={"replicas": shards})})
    return job.model_copy(update={"spec": spec})
