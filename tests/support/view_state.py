"""The state of the world of `view_world` at one moment."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, ProcessStatus, Unreachable, View

History = tuple[Any, ...]
"""The origin of a member's state: the restore, and the ballot of every step since then."""
_T = TypeVar("_T")
_HASH = "_hash"
"""The key, in an object's attributes, of a hash that was computed before."""


def altered(of: _T, **changes: Any) -> _T:
    """`dataclasses.replace` without its checks, which took a third of an exploration's processor time."""
    made = object.__new__(type(of))
    fields = {**of.__dict__, **changes}
    fields.pop(_HASH, None)
    object.__setattr__(made, "__dict__", fields)
    return made


def kept_hash(of: Any) -> int:
    """The hash of an immutable object that many worlds share, computed once."""
    known: int | None = of.__dict__.get(_HASH)
    if known is None:
        known = of.__dict__[_HASH] = hash(tuple(of.__dict__.values()))
    return known


class Status(ProcessStatus):
    """A status that is hashed once: chiefs have seen the same one in many worlds."""

    def __hash__(self) -> int:
        return kept_hash(self)


@dataclass(frozen=True)
class Running:
    """A running process; a member also has a history, and a learner one history per chunk of its state."""

    status: ProcessStatus
    history: History | None = None
    parts: tuple[History | None, ...] = ()
    """The history of each chunk; None: the chunk has arbitrary content. Empty unless the process is a learner."""
    lease_age: int = 0
    """Time since its lease was renewed, by its own clock; see `view_leases`."""

    def __hash__(self) -> int:
        return kept_hash(self)

    @property
    def joined(self) -> History:
        """Return the history that all chunks share."""
        (first, *others) = self.parts
        return first if first is not None and all(first == other for other in others) else ("torn",) * self._length

    @property
    def _length(self) -> int:
        return self.status.step or 0


class Call(NamedTuple):
    """A compare-and-set on its way."""

    name: str
    to: Process
    argument: Any


@dataclass(frozen=True)
class Chief:
    """A chief between polling and acting."""

    term: int
    side: int
    epoch: int = 1
    looked: tuple[ProcessStatus | Unreachable, ...] = ()
    calls: tuple[Call, ...] = ()
    voteless_before: frozenset[Process] = frozenset()
    proposed: View | None = None
    ended: bool = False

    def __hash__(self) -> int:
        return kept_hash(self)


@dataclass(frozen=True)
class Step:
    """A step that a worker is writing to all members in sync, to each shard's primary last."""

    side: int
    view: View
    base: History | None = None
    made: History | None = None
    written: int = 0

    def __hash__(self) -> int:
        return kept_hash(self)


@dataclass(frozen=True)
class Faults:
    """How many faults and other events may still happen."""

    kills: int = 0
    cuts: int = 0
    chiefs: int = 1
    steps: int = 0
    late: int = 0
    """Calls that arrive after their caller has given up."""
    twice: int = 0
    """Calls that arrive a second time later."""
    restarts: int = 0
    """Chiefs whose process is replaced by another one of the same term."""
    jumps: int = 0
    """Members whose clock is set."""
    drains: int = 0
    """Processes that are asked to end."""
    replaces: int = 0
    """Members on the cut side that a process on the operator's side may replace."""

    def __hash__(self) -> int:
        return kept_hash(self)


@dataclass(frozen=True)
class World:
    """The complete state of the world."""

    running: tuple[Running | None, ...]
    incarnations: tuple[int, ...]
    chiefs: tuple[Chief, ...]
    faults: Faults
    is_cut: bool = False
    steps: tuple[Step, ...] = ()
    late: tuple[Call, ...] = ()
    lossy: frozenset[Ballot] = frozenset()
    """Ballots under which a loss of steps was reported."""
    acknowledged: History = ()
    under: Ballot = NO_BALLOT
    """The ballot of the last step that was acknowledged."""
    former: tuple[tuple[int, Running], ...] = ()
    """Replaced processes, by number of their task; they run until the partition ends."""
    cut_for: int = 0
    """Time since the partition began; see `view_leases`."""
    are_leases_over: bool = False
    """Whether leases on the cut side have ended: a member there was replaced, and no lease was renewed since."""

    @property
    def processes(self) -> tuple[Running, ...]:
        """Return all processes that run."""
        return (*(found for found in self.running if found), *(found for _, found in self.former))


class Event(NamedTuple):
    """A possible next event."""

    actor: str
    what: str
    then: World


class ForkedError(AssertionError):
    """An acknowledged step is lost, or one step was applied twice in different ways."""


def write_of(transfer: Call, source: Running | None) -> Call | None:
    """Return the second half of a transfer, which writes the source's present state."""
    ballot = transfer.argument[0]
    if source is None or source.history is None or source.status.promised != ballot:
        return None
    return Call("write", transfer.to, (ballot, source.history, source.status.generation))
