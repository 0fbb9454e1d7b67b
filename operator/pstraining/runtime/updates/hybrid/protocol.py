"""Hybrid updates: a worker's next action for its step and its ring, decided from the servers' replies.

A ring of workers sums dense gradients, and the parameter servers sum rows of tables. Both are one step: the round of
`updates.synchronous.protocol`, which the first server decides. Each attempt at the step has its ring: the workers that
were ready when the attempt began. A worker pushes its rows only once its ring's sum is complete, and the arbiter
applies the step only when all members have pushed. A worker that holds the sum of the attempt in which the step was
applied may therefore apply that sum. Other workers have missed the step, and receive the parameters from a neighbor. A
sum is discarded only when its attempt is known to be over. With standbys the arbiter's standby decides: once it may
have applied the step, the round is prepared, and only applying the step ends the attempt.

Pure: sets of workers are bit masks, worker i is bit i. No clock, no sockets, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pstraining.runtime.updates.synchronous.protocol import ShardRound


@dataclass(frozen=True)
class HybridObservation:
    """All servers' states of the round, the arbiter's first."""

    shards: tuple[ShardRound, ...]
    admitted: int
    """Workers that have pushed to the arbiter in its attempt."""
    closed: bool
    """Whether all members of the ring have pushed to the arbiter."""
    made_in: int
    """The attempt in which the arbiter applied its last step."""
    members: int
    """Members of the ring of the arbiter's attempt; 0 before the ring is formed."""
    ready: int
    """Workers that are alive and reachable."""
    waits: bool = False
    """Whether the arbiter waits for workers that have not registered yet."""
    paused: bool = False
    """Whether steps are paused because the chief saves."""
    prepared: bool = False
    """Whether the arbiter's standby may have applied the step: the attempt can no longer be given up."""
    standbys: tuple[int, ...] = ()
    """Updates applied on each standby."""

    @property
    def arbiter(self) -> ShardRound:
        """Return the state of the server that decides."""
        return self.shards[0]

    @property
    def slowest(self) -> int:
        """Return the updates applied on every server and every standby."""
        return min([*(shard.step for shard in self.shards), *self.standbys])


@dataclass(frozen=True)
class WorkerState:
    """The state of a worker in its ring."""

    worker: int
    step: int | None
    """Global step of the worker's dense parameters; None if it has none."""
    ring: int | None
    """The attempt whose unbroken ring the worker is in; None if it is in none."""
    left: int | None
    """The last attempt whose ring the worker left or saw break."""
    held: int | None
    """The attempt whose sum of gradients of `step` the worker holds; None if it holds none."""
    suspects: int = 0
    """Suspected workers that this worker has not reported to the arbiter yet."""


class HybridAction(Enum):
    """A worker's next action."""

    SETTLE = "the step was made of the sum that this worker holds: apply it"
    MISSED = "steps were made without this worker: get the parameters from a neighbor"
    FOLLOW = "the arbiter has made a step that another server has yet to make"
    APPLY = "all gradients are there: apply the step; or a round is prepared, and any worker holds the sum"
    GIVE_WAY = "the step is ready to be made, but the chief saves first"
    FORM = "the ring is broken, or others want to be in it: start another attempt with all workers that are ready"
    JOIN = "become part of the ring"
    SUM = "add up the dense gradients around the ring"
    PUSH = "the sum is complete: say so, with the touched rows"
    WAIT = "others have yet to come, or to deliver"


def next_action(observation: HybridObservation, me: WorkerState) -> HybridAction:
    """Return a worker's next action.

    Args:
        observation: the servers' replies; the arbiter's replies are of the same moment.
        me: this worker.
    """
    arbiter, bit = observation.arbiter, 1 << me.worker
    if any(shard.step != arbiter.step for shard in observation.shards) or observation.slowest < arbiter.step:
        return HybridAction.FOLLOW
    if me.step is not None and arbiter.step != me.step:
        return HybridAction.SETTLE if is_made(observation, me) else HybridAction.MISSED
    if observation.prepared:
        return HybridAction.APPLY  # even without the sum: the step may be applied already
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
    """Return whether the arbiter's last step consists of the sum that this worker holds."""
    if me.step is None or me.held is None:
        return False
    return (observation.arbiter.step, observation.made_in) == (me.step + 1, me.held)


def missing(observation: HybridObservation) -> list[int]:
    """Return the members whose gradients are missing, for each server."""
    arbiter = observation.arbiter
    return [
        observation.members & ~shard.pushed if shard.attempt == arbiter.attempt else observation.members
        for shard in observation.shards
    ]


@dataclass(frozen=True)
class BroadcastPlan:
    """The broadcast that synchronizes a ring's parameters: its source and its last receiver, in the ring's order."""

    source: int
    last: int


def broadcast_plan(steps: Sequence[int | None], step: int) -> BroadcastPlan | None:
    """Return the broadcast of parameters; None if no member has those of this step, or all have.

    Args:
        steps: the steps of the members' dense parameters, in the ring's order.
        step: the arbiter's step.
    """
    if step not in steps or all(found == step for found in steps):
        return None
    source = steps.index(step)
    wants = [place for place, found in enumerate(steps) if found != step]
    return BroadcastPlan(source, max(wants, key=lambda place: (place - source) % len(steps)))
