"""What there is in the world of `view_world` at one moment."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, ProcessStatus, Unreachable, View

History = tuple[Any, ...]
"""What a member's state was made of: where it was restored, and the ballot of every step since."""
_T = TypeVar("_T")
_HASH = "_hash"
"""The key, in an object's attributes, of a hash that was computed before."""


def altered(of: _T, **changes: Any) -> _T:
    """`dataclasses.replace` without its checks, which took a third of an exploration's processor time."""
    made = object.__new__(type(of))
    made.__dict__.update(of.__dict__)
    made.__dict__.pop(_HASH, None)
    made.__dict__.update(changes)
    return made


def kept_hash(of: Any) -> int:
    """The hash of an immutable object that many worlds share, computed once."""
    known: int | None = of.__dict__.get(_HASH)
    if known is None:
        known = of.__dict__[_HASH] = hash(tuple(of.__dict__.values()))
    return known


@dataclass(frozen=True)
class Running:
    """A process; a member also has a history, and a learner one for each chunk of its state."""

    status: ProcessStatus
    history: History | None = None
    parts: tuple[History | None, ...] = ()
    """None: whatever was there."""
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
    """A step that is under way: a worker writes it to all members in sync, each shard's primary last."""

    side: int
    view: View
    base: History | None = None
    made: History | None = None
    written: int = 0


@dataclass(frozen=True)
class Faults:
    """How much may still go wrong, or happen at all."""

    kills: int = 0
    cuts: int = 0
    chiefs: int = 1
    steps: int = 0
    late: int = 0
    """Calls that arrive after their caller has given up."""
    twice: int = 0
    """Calls that arrive, and arrive once more later."""
    restarts: int = 0
    """Chiefs whose process is replaced by another one of the same term."""
    jumps: int = 0
    """Members whose clock is set."""
    drains: int = 0
    """Processes that are told to end."""
    replaces: int = 0
    """Members on the side that is cut off whose place another process takes on the operator's side."""


@dataclass(frozen=True)
class World:
    """A state of everything."""

    running: tuple[Running | None, ...]
    incarnations: tuple[int, ...]
    chiefs: tuple[Chief, ...]
    faults: Faults
    is_cut: bool = False
    steps: tuple[Step, ...] = ()
    late: tuple[Call, ...] = ()
    lossy: frozenset[Ballot] = frozenset()
    """Ballots under which somebody has said that steps may be lost."""
    acknowledged: History = ()
    under: Ballot = NO_BALLOT
    """The ballot of the last step that was acknowledged."""
    former: tuple[tuple[int, Running], ...] = ()
    """The processes whose place another one took, by number of their task; they run until the cut ends."""
    cut_for: int = 0
    """Time since the cut; see `view_leases`."""
    are_leases_over: bool = False
    """Whether nobody renewed a lease on the side that is cut off before a member there was replaced."""

    @property
    def processes(self) -> tuple[Running, ...]:
        """Return all processes that run."""
        return (*(found for found in self.running if found), *(found for _, found in self.former))


class Event(NamedTuple):
    """What may happen next."""

    actor: str
    what: str
    then: World


class ForkedError(AssertionError):
    """An acknowledged step is lost, or was made twice in different ways."""


def write_of(transfer: Call, source: Running | None) -> Call | None:
    """Return the second half of a transfer: to write what its source has now."""
    ballot = transfer.argument[0]
    if source is None or source.history is None or source.status.promised != ballot:
        return None
    return Call("write", transfer.to, (ballot, source.history, source.status.generation))
