"""One synchronous update of all parameter servers: a worker's next action, decided from the servers' replies.

A round combines the gradients of one global step. The first server is its arbiter: it alone admits workers to the
round, closes the round when enough workers are admitted, and applies the step first. This application is the decision.
Before it, an attempt can be given up, and all workers push again: a worker that died may have pushed its gradient to
some servers only. After it, the other servers follow. A gradient is therefore part of the step on all
servers or on none. The round needs no process but the workers: any of them may apply, follow or give up a round, each
with a compare-and-set on the arbiter.

"Backup workers" are those of Chen et al., Revisiting Distributed Synchronous SGD (2016): a round closes without the
slowest workers, and drops their gradients.

Pure: sets of workers are bit masks, worker i is bit i. No clock, no TensorFlow.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

USUAL_SHARE: Final = 0.7
"""Share of the usual wait after which a waiting worker first queries the servers."""
FURTHER_SHARE: Final = 1 / 16
"""Time until the next query, as a share of the wait so far."""
SHORTEST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.1
"""Bounds of the seconds between queries."""


@dataclass(frozen=True)
class ShardRound:
    """A server's part of the current round."""

    step: int
    """Updates applied on this server; the current round applies `step + 1`."""
    attempt: int
    """The round's attempt that `pushed` belongs to."""
    pushed: int
    """Workers whose gradients are in this server's sum, as a bit mask."""


@dataclass(frozen=True)
class RoundObservation:
    """All servers' states of the round, the arbiter's first."""

    shards: tuple[ShardRound, ...]
    admitted: int
    """Workers that the arbiter admitted to its attempt, as a bit mask."""
    closed: bool
    """Whether the arbiter admits no more workers."""
    alive: int
    """Workers with a recent heartbeat on the arbiter, as a bit mask."""
    standbys: tuple[int, ...] = ()
    """Updates applied on each standby."""

    @property
    def arbiter(self) -> ShardRound:
        """Return the state of the server that decides."""
        return self.shards[0]

    @property
    def steps(self) -> list[int]:
        """Return the updates applied on each server and each standby."""
        return [*(shard.step for shard in self.shards), *self.standbys]


class RoundAction(Enum):
    """A worker's next action in the round of its step."""

    PULL = "the step is made on every server: fetch the new parameters"
    APPLY = "every admitted gradient is on every server, or a server has yet to follow: apply the round"
    GIVE_UP = "an admitted worker died before all servers had its gradient: begin another attempt"
    PUSH = "this worker's gradient is wanted"
    WAIT = "other workers have not pushed yet"


def next_action(observation: RoundObservation, *, worker: int, step: int) -> RoundAction:
    """Return the next action of a worker that holds a gradient of `step`.

    Args:
        observation: the servers' replies, which may be of different moments.
        worker: this worker's index.
        step: the global step whose parameters the gradient was computed on.
    """
    arbiter, me = observation.arbiter, 1 << worker
    newest = max(observation.steps)
    if newest > step:  # with standbys the arbiter may be the one that has yet to follow
        return RoundAction.PULL if all(each == newest for each in observation.steps) else RoundAction.APPLY
    missing = [
        observation.admitted & ~shard.pushed if shard.attempt == arbiter.attempt else observation.admitted
        for shard in observation.shards
    ]
    if observation.closed and not any(missing):
        return RoundAction.APPLY
    if any(workers & ~observation.alive for workers in missing):
        return RoundAction.GIVE_UP
    wanted = not observation.closed and not observation.admitted & me
    return RoundAction.PUSH if wanted or any(workers & me for workers in missing) else RoundAction.WAIT


class PushStatus(Enum):
    """The result of pushing a gradient to all servers."""

    COMPLETE = "everything is on every server by it: the round may be applied"
    INCOMPLETE = "other workers have not pushed yet, or a server rejected the gradient"
    VOID = "its batches are not this worker's to train"


@dataclass(frozen=True)
class PushObservation:
    """All servers' replies to a pushed gradient, the arbiter's first."""

    in_sum: tuple[bool, ...]
    """Whether the gradient is in the sum, for each server."""
    pushed: tuple[int, ...]
    """Number of workers whose gradients are in the sum, for each server."""
    admitted: int
    """Number of workers that the arbiter admitted."""
    closed: bool
    """Whether the arbiter admits no more workers."""
    void: bool
    """Whether the batches are not this worker's to train."""


def push_status(observation: PushObservation) -> PushStatus:
    """Return the status of a push from the servers' replies."""
    if observation.void:
        return PushStatus.VOID
    everywhere = all(observation.in_sum) and all(pushed == observation.admitted for pushed in observation.pushed)
    return PushStatus.COMPLETE if observation.closed and everywhere else PushStatus.INCOMPLETE


def pause(waited: float, *, usual: float) -> float:
    """Return the seconds until the next query for the other workers' pushes.

    The first pause is most of the usual wait; later ones are a small share of the wait so far. A query takes processor
    time from the other workers, and a worker notices the end of a round half a pause late on average.

    Args:
        waited: seconds waited so far.
        usual: usual wait in seconds.
    """
    first = USUAL_SHARE * usual - waited
    return min(max(first if first > 0 else waited * FURTHER_SHARE, SHORTEST_PAUSE), LONGEST_PAUSE)


def quorum(*, alive: int, expected: int, backups: int, waits: bool) -> int:
    """Return the number of gradients that close a round.

    Args:
        alive: number of workers with a recent heartbeat.
        expected: number of workers in the job's spec.
        backups: number of workers that a round need not wait for.
        waits: whether the round waits for workers that have not registered yet.
    """
    return max(1, (max(alive, expected) if waits else alive) - backups)


def mask(bits: bytes) -> int:
    """Return the bit mask of workers from a server's bytes; the first worker is the lowest bit."""
    return int.from_bytes(bits, "little")
