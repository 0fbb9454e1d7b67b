"""Hybrid updates: what a worker does next about its step and its ring, decided from what the servers say.

Dense gradients are added up around a ring of workers, rows of tables on the parameter servers, and both are one step:
the round of `updates.synchronous.protocol`, decided by the first server. An attempt at it has a ring of its own: the
workers that take part, as the arbiter knew them when the attempt began. A worker delivers (its rows, and that it is
there) only once its ring's sum is complete, and the arbiter makes the step only when all members have delivered. So
whoever sees that a step was made in an attempt whose sum it holds may apply that sum; everybody else has missed the
step, and gets the parameters from a neighbor. A sum is discarded only when its attempt is known to be over. With
standbys the arbiter's standby decides. Once it may have applied the step, the round is prepared, and only applying the
step ends the attempt.

Pure: sets of workers are bit masks, worker i is bit i. No clock, no sockets, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pstraining.runtime.updates.synchronous.protocol import ShardRound


@dataclass(frozen=True)
class HybridObservation:
    """All servers' words about the round, the arbiter's first."""

    shards: tuple[ShardRound, ...]
    admitted: int
    """Workers that have delivered to the arbiter in its attempt."""
    closed: bool
    """Whether all of the ring's members have."""
    made_in: int
    """The attempt in which the arbiter has made its last step."""
    members: int
    """The ring of the arbiter's attempt; none: it has yet to be formed."""
    ready: int
    """Workers that live and can be reached."""
    waits: bool = False
    """Whether workers that have not come yet are waited for."""
    paused: bool = False
    """Whether no step is made for a while, because the chief saves."""
    prepared: bool = False
    """Whether the arbiter's standby may have made the step: the attempt cannot be given up any more."""
    standbys: tuple[int, ...] = ()
    """Steps made on each standby."""

    @property
    def arbiter(self) -> ShardRound:
        """The server that decides."""
        return self.shards[0]

    @property
    def slowest(self) -> int:
        """Steps made everywhere."""
        return min([*(shard.step for shard in self.shards), *self.standbys])


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker in its ring."""

    worker: int
    step: int | None
    """Of its dense parameters; None: it has none."""
    ring: int | None
    """The attempt whose ring it is part of, while that is whole."""
    left: int | None
    """The last attempt whose ring it has seen break, or has left."""
    held: int | None
    """The attempt in which the sum was made that it holds, of gradients of its step."""
    suspects: int = 0
    """Workers that it suspects to be dead, and that the arbiter has yet to hear of from it."""


class HybridAction(Enum):
    """A worker's next action."""

    SETTLE = "the step was made of the sum that this worker holds: apply it"
    MISSED = "steps were made without this worker: get the parameters from a neighbor"
    FOLLOW = "the arbiter has made a step that another server has yet to make"
    APPLY = "everybody's gradient is there: make the step; or a round is prepared, whoever holds the sum"
    GIVE_WAY = "the step is ready to be made, but the chief saves first"
    FORM = "the ring is broken, or others want to be in it: begin another attempt with all who are ready"
    JOIN = "become part of the ring"
    SUM = "add up the dense gradients around the ring"
    PUSH = "the sum is complete: say so, with the touched rows"
    WAIT = "others have yet to come, or to deliver"


def next_action(observation: HybridObservation, me: WorkerState) -> HybridAction:
    """Return a worker's next action.

    Args:
        observation: the servers' replies; those of the arbiter are of one moment.
        me: this worker.
    """
    arbiter, bit = observation.arbiter, 1 << me.worker
    if any(shard.step != arbiter.step for shard in observation.shards) or observation.slowest < arbiter.step:
        return HybridAction.FOLLOW
    if me.step is not None and arbiter.step != me.step:
        return HybridAction.SETTLE if is_made(observation, me) else HybridAction.MISSED
    if observation.prepared:
        return HybridAction.APPLY  # whoever holds the sum: it may be made already
    if me.held == arbiter.attempt and observation.closed and not any(missing(observation)):
        return HybridAction.GIVE_WAY if observation.paused else HybridAction.APPLY
    broken = me.left == arbiter.attempt or observation.members & me.suspects
    if broken or (observation.ready != observation.members and not observation.waits):
        return HybridAction.FORM if observation.ready & bit else HybridAction.WAIT
    if not observation.members & bit:
        return HybridAction.WAIT
    if me.ring != arbiter.attempt:
        return HybridAction.JOIN
    if me.step is None:
        return HybridAction.WAIT
    if me.held != arbiter.attempt:
        return HybridAction.SUM
    return HybridAction.PUSH if any(workers & bit for workers in missing(observation)) else HybridAction.WAIT


def is_made(observation: HybridObservation, me: WorkerState) -> bool:
    """Whether the step was made of the sum that this worker holds."""
    if me.step is None or me.held is None:
        return False
    return (observation.arbiter.step, observation.made_in) == (me.step + 1, me.held)


def missing(observation: HybridObservation) -> list[int]:
    """For every server the members whose gradients it has yet to get."""
    arbiter = observation.arbiter
    return [
        observation.members & ~shard.pushed if shard.attempt == arbiter.attempt else observation.members
        for shard in observation.shards
    ]


@dataclass(frozen=True)
class BroadcastPlan:
    """How a ring synchronizes parameters: the source and the last receiver, in the ring's order."""

    source: int
    last: int


def broadcast_plan(steps: Sequence[int | None], step: int) -> BroadcastPlan | None:
    """Return the broadcast of parameters; None if no member has those of this step, or all have.

    Args:
        steps: of the members' dense parameters, in the ring's order.
        step: the arbiter's.
    """
    if step not in steps or all(found == step for found in steps):
        return None
    source = steps.index(step)
    wants = [place for place, found in enumerate(steps) if found != step]
    return BroadcastPlan(source, max(wants, key=lambda place: (place - source) % len(steps)))
