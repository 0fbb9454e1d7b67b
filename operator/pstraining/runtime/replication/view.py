"""Views of a job with hot standbys, the statuses of processes, and the actions of a chief: plain values.

The package's docstring defines the terms; `view_decisions` chooses the action.

A view counts once a quorum of all voters has accepted it. This is a register in the manner of Lamport's Paxos (The
Part-Time Parliament, 1998), whose content is a configuration as in Lamport, Malkhi and Zhou, Vertical Paxos (2009).
Members apply steps under one ballot only, that of their active view. A step counts when all members in sync have
applied it. See docs/project/decisions/0013-hot-standby-commits-on-all-members-in-sync.md.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple


class Ballot(NamedTuple):
    """A chief's authority: its term, which no other chief has, and its epoch."""

    term: int
    epoch: int


NO_BALLOT: Final = Ballot(0, 0)
"""The ballot of a process that has promised none yet."""


class Process(NamedTuple):
    """One incarnation of a task."""

    task: str
    incarnation: int


@dataclass(frozen=True)
class View:
    """The members of every shard under one ballot: those in sync, the primary first, and the learners."""

    ballot: Ballot
    shards: tuple[tuple[Process, ...], ...]
    learners: tuple[Process, ...] = ()
    """Members that apply every step as a standby does, but are not in sync."""
    successor: Ballot = NO_BALLOT
    """The ballot under which the next layout was founded; NO_BALLOT: the layout is in use. After a view with a
    successor, no member of this layout applies a step."""

    @property
    def in_sync(self) -> frozenset[Process]:
        """Return the members in sync of all shards."""
        return frozenset(process for shard in self.shards for process in shard)

    @property
    def tasks(self) -> list[list[str]]:
        """Return the tasks of the members in sync of each shard, the primary first."""
        return [[process.task for process in own] for own in self.shards]

    @property
    def members(self) -> frozenset[Process]:
        """Return all members, learners included: the processes that apply steps."""
        return self.in_sync.union(self.learners)


@dataclass(frozen=True)
class ProcessStatus:
    """What a process reports about itself."""

    incarnation: int
    promised: Ballot = NO_BALLOT
    is_voter: bool = False
    """Whether the process votes for its task; a new process does not."""
    view: View | None = None
    """The last view that the process accepted."""
    active: bool = False
    """Whether the process applies steps under its view; True for members only."""
    step: int | None = None
    """The newest step that a member has applied; None if it holds no state."""
    generation: Ballot = NO_BALLOT
    """The ballot under which the generation of the states that its own belongs to was restored."""
    transferred_in: Ballot = NO_BALLOT
    """The ballot under which a member received its state, by a transfer or from a checkpoint."""
    chunks: int = 0
    """Number of chunks of the state that a learner has received under its view."""
    draining: bool = False
    """Whether a member's pod is being terminated; it runs until the other members continue without it."""


class Unreachable(Enum):
    """The reason why a process has no status."""

    CRASHED = "its port refuses connections: the process has ended, and the next one is not there yet"
    SUSPECTED = "it does not answer"
    UNCONNECTED = "a process answers at its port and not this task's calls: the known one, or the next"


def of_layout(status: ProcessStatus, first_term: int) -> ProcessStatus | Unreachable:
    """Return a status, or why a process with it has no part in a layout.

    A process that has promised to an earlier chief than the layout's first was started for a former layout. Its
    launcher starts it again; whatever it holds, and promised, concerns the former layout alone.

    Args:
        status: the status that it reports.
        first_term: the first term of a chief that trains the layout.
    """
    is_former = status.promised > NO_BALLOT and status.promised.term < first_term
    return Unreachable.CRASHED if is_former else status


def of_founding(status: ProcessStatus, founded: Ballot) -> ProcessStatus:
    """Return a status without the content of an earlier attempt to found its layout.

    An attempt that is given up leaves a view and a state in the next layout. Training then continues in the current
    layout, so both are outdated.

    Args:
        status: the status that the process reports.
        founded: the ballot under which the attempt began, or under which the layout was founded.
    """
    if status.view is None or status.view.ballot >= founded:
        kept = status
    else:
        kept = replace(status, view=None, is_voter=False, active=False, chunks=0)
    if kept.view is None and kept.transferred_in < founded:
        return replace(kept, step=None, generation=NO_BALLOT)
    return kept


MAY_LIVE: Final = (Unreachable.SUSPECTED, Unreachable.UNCONNECTED)
Observation = Mapping[str, ProcessStatus | Unreachable]
"""The result of polling every voter: each task's status, or the reason why it has none."""


@dataclass(frozen=True)
class Voters:
    """The tasks of a job that vote."""

    shards: tuple[tuple[str, ...], ...]
    """Tasks of every shard's members, in the order of preference for primary."""
    witnesses: tuple[str, ...]
    """Tasks of the workers that the job began with."""

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Return the tasks of all members."""
        return tuple(task for shard in self.shards for task in shard)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Return all tasks that vote, members first."""
        return (*self.members, *self.witnesses)

    def is_quorum(self, number: int) -> bool:
        """Return whether any two groups of `number` voters share one."""
        return 2 * number > len(self.tasks)


# The chief's actions. Each consists of compare-and-sets, one on each process.


@dataclass(frozen=True)
class Prepare:
    """Request a promise to follow no lower ballot."""

    ballot: Ballot
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Accept:
    """Send a new view to the processes that have promised its ballot."""

    view: View
    to: tuple[Process, ...]
    founding: bool = False
    """Whether a process becomes a voter by accepting the view. True if too few processes vote for a quorum: at a job's
    start, or after losses, when steps may be lost."""
    uncertain: int | None = None
    """The step of the state that was left, if a process that was lost may have applied later steps. None if this chief
    has sent the view before."""


@dataclass(frozen=True)
class AdmitVoter:
    """Let a process without memory vote for its task, and send it the view that counts."""

    view: View
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Activate:
    """Let the view's members apply steps, or renew their leases."""

    view: View
    to: tuple[Process, ...]


@dataclass(frozen=True)
class TransferState:
    """Transfer the missing state to members. Source and target have promised the ballot, and apply no steps meanwhile.

    A learner of the former view with every chunk, at the same step, receives the small state; others the whole state.
    """

    ballot: Ballot
    pairs: tuple[tuple[Process, Process], ...]
    """Source and target of each transfer."""
    former: Ballot
    """The former view's ballot."""


@dataclass(frozen=True)
class RestoreCheckpoint:
    """Restore the newest checkpoint on these members, which have promised."""

    ballot: Ballot
    to: tuple[Process, ...]
    shards: tuple[int, ...]
    """Numbers of the shards whose state is lost."""


@dataclass(frozen=True)
class FoundLayout:
    """Found the next layout with the state of this view's members, which have promised and apply no steps."""

    view: View


@dataclass(frozen=True)
class ChangeLayout:
    """Lead the next layout: a quorum has accepted that this layout is over."""

    view: View


@dataclass(frozen=True)
class Superseded:
    """Stop: a chief of a later term has taken the lead."""

    term: int


@dataclass(frozen=True)
class Wait:
    """Do nothing, and renew no lease."""

    reason: str


Action = (
    Prepare
    | Accept
    | AdmitVoter
    | Activate
    | TransferState
    | RestoreCheckpoint
    | FoundLayout
    | ChangeLayout
    | Superseded
    | Wait
)


class Founded(NamedTuple):
    """The chief's progress with the next layout."""

    under: Ballot
    """The ballot of this layout under which the state was copied; NO_BALLOT before."""
    ballot: Ballot
    """The ballot of the next layout's first view, which a quorum of the next layout has accepted."""


NOT_FOUNDED: Final = Founded(NO_BALLOT, NO_BALLOT)
"""The next layout is wanted, and does not have the state yet."""


class LayoutOverError(Exception):
    """The layout is over: training continues in the next one.

    Args:
        founded: the ballot under which the next layout was founded.
    """

    def __init__(self, founded: Ballot) -> None:
        super().__init__(f"the layout is over since ballot {founded}")
        self.founded = founded


class LayoutPostponedError(Exception):
    """Training was not led to the next layout, and continues in the current one."""
