"""One synchronous update of all parameter servers: what a worker does next, decided from what the servers say.

A round brings the gradients of one global step together. The first server is its arbiter: it alone admits workers to
the round, closes it when enough were admitted, and is the first to apply it. That application is the decision: before
it an attempt can be given up (a worker that died between two servers left a part of its gradient behind) and everybody
delivers again, after it the other servers follow. A gradient is therefore part of the step on all servers or on none,
and no process is needed for it but the workers themselves: any of them may apply, follow up or give up a round, each a
compare-and-set on the arbiter.

"Backup workers" are those of Chen et al., Revisiting Distributed Synchronous SGD (2016): a round closes without the
slowest ones, whose gradients are dropped.

Pure: sets of workers are bit masks, worker i is bit i. No clock, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

USUAL_SHARE: Final = 0.7
"""How much of what the others usually take is waited before they are asked for the first time."""
FURTHER_SHARE: Final = 1 / 16
"""Of what they have taken so far: how long it is until they are asked again."""
SHORTEST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.1
"""Seconds between questions."""


@dataclass(frozen=True)
class ShardRound:
    """A server's part of the current round."""

    step: int
    """Updates applied on this server; the round under way is the one that makes `step + 1` of it."""
    attempt: int
    """The round's attempt that `delivered` belongs to."""
    delivered: int
    """Workers whose gradients are in this server's sum."""


@dataclass(frozen=True)
class RoundObservation:
    """All servers' words about the round, the arbiter's first."""

    shards: tuple[ShardRound, ...]
    admitted: int
    """Workers that the arbiter admitted to its attempt."""
    closed: bool
    """Whether the arbiter admits no more."""
    alive: int
    """Workers that the arbiter has heard of lately."""
    standbys: tuple[int, ...] = ()
    """Updates applied on each standby."""

    @property
    def arbiter(self) -> ShardRound:
        """The server that decides."""
        return self.shards[0]

    @property
    def steps(self) -> list[int]:
        """Updates applied on every server and every standby."""
        return [*(shard.step for shard in self.shards), *self.standbys]


class Move(Enum):
    """What a worker does next about the round of its step."""

    PULL = "the step is made on every server: fetch the new parameters"
    APPLY = "every admitted gradient is on every server, or a server has yet to follow: apply the round"
    GIVE_UP = "an admitted worker died before all servers had its gradient: begin another attempt"
    DELIVER = "this worker's gradient is wanted"
    WAIT = "others have yet to deliver"


def next_move(observation: RoundObservation, *, worker: int, step: int) -> Move:
    """The next move of a worker that holds a gradient of `step`.

    Args:
        view: the servers' words; they need not be of one moment.
        worker: this worker's index.
        step: the global step whose parameters the gradient was computed on.
    """
    arbiter, me = observation.arbiter, 1 << worker
    newest = max(observation.steps)
    if newest > step:  # with standbys the arbiter may be the one that has yet to follow
        return Move.PULL if all(each == newest for each in observation.steps) else Move.APPLY
    missing = [
        observation.admitted & ~shard.delivered if shard.attempt == arbiter.attempt else observation.admitted
        for shard in observation.shards
    ]
    if observation.closed and not any(missing):
        return Move.APPLY
    if any(workers & ~observation.alive for workers in missing):
        return Move.GIVE_UP
    wanted = not observation.closed and not observation.admitted & me
    return Move.DELIVER if wanted or any(workers & me for workers in missing) else Move.WAIT


class Delivery(Enum):
    """What came of handing a gradient in."""

    COMPLETE = "everything is on every server by it: the round may be applied"
    INCOMPLETE = "others have yet to deliver, or a server did not take it"
    VOID = "its batches are not this worker's to train"


def delivery(replies: Sequence[Sequence[int]]) -> Delivery:
    """What the servers' replies to a gradient come to, the arbiter's first; see `ShardRounds.deliver`."""
    _, _, _, _, closed, admitted, _, void = replies[0]
    if void:
        return Delivery.VOID
    whole = closed and all(inside and delivered == admitted for inside, *_, delivered, _ in replies)
    return Delivery.COMPLETE if whole else Delivery.INCOMPLETE


def pause(waited: float, *, usual: float) -> float:
    """Seconds until it is worth asking again whether others have done their part.

    Most of what they usually take, at first; then a small part of what they have taken: asking costs processor time,
    which they may be in want of, and every pause is half a pause too long.

    Args:
        waited: seconds so far.
        usual: seconds that they usually take.
    """
    first = USUAL_SHARE * usual - waited
    return min(max(first if first > 0 else waited * FURTHER_SHARE, SHORTEST_PAUSE), LONGEST_PAUSE)


def quorum(*, alive: int, expected: int, backups: int, waits: bool) -> int:
    """How many gradients close a round.

    Args:
        alive: number of workers that were heard of lately.
        expected: number of workers that the job wants.
        backups: how many of them a round need not wait for.
        waits: whether workers that have not come yet are waited for.
    """
    return max(1, (max(alive, expected) if waits else alive) - backups)


def mask(bits: bytes) -> int:
    """The bit mask of workers from a server's words, eight workers a byte, the first worker the lowest bit."""
    return int.from_bytes(bits, "little")
