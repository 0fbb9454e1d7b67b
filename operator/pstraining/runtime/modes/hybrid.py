"""Hybrid updates: dense gradients around a ring of the workers, rows of tables through the parameter servers.

Every worker holds all dense parameters and moves them by itself; see `rings` for what makes of both one step. The
servers get the dense parameters when the chief saves.
"""

import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime import rings, rounds
from pstraining.runtime.computation import Computation, Contribution
from pstraining.runtime.ledger import Progress
from pstraining.runtime.modes.base import FIRST_PAUSE, LONGEST_PAUSE, Identity, Reply, Tensor, as_tensor
from pstraining.runtime.progress import event
from pstraining.runtime.recovery import Session
from pstraining.runtime.recovery import Shard as ShardRecord
from pstraining.runtime.replica import Replica
from pstraining.runtime.ring import Ring
from pstraining.runtime.ring_links import Links
from pstraining.runtime.ring_operations import RingOperations
from pstraining.runtime.ring_plan import BrokenRingError, Card, RingPlan
from pstraining.runtime.ring_rounds import RingRounds, RingSums
from pstraining.runtime.ring_streams import GreetingError
from pstraining.runtime.rings import Next
from pstraining.runtime.rounds import Delivery
from pstraining.runtime.shard import RECORD_SIZE, Shard, UpdateState
from pstraining.runtime.store import ParameterStore, as_shard
from pstraining.runtime.sums import Gathering

CHECK_STEPS: Final = 256
"""Steps from one comparison of all workers' parameters to the next."""
LOST_SECONDS: Final = 10.0
"""How long workers wait for one that has the newest dense parameters, before they are given up."""
_GREETING: Final = struct.Struct("!qqQI")


def state(name: str, gathering: Gathering) -> UpdateState:
    """What hybrid updates want of the servers, under a name for it that all tasks share."""

    def on_newcomer(shard: Shard, worker: Tensor, newcomer: Tensor) -> list[Any]:
        return RingRounds(shard, gathering).forget(worker, newcomer)

    def follow(shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        return RingRounds(shard, gathering).follow(session, step)

    def hold_up(shard: Shard, seconds: Tensor) -> Tensor:
        return RingRounds(shard, gathering).hold_up(seconds)

    return UpdateState(
        name=name,
        make_extra=lambda shard: RingSums(shard, gathering),
        on_newcomer=on_newcomer,
        follow=follow,
        hold_up=hold_up,
    )


class HybridUpdates:
    """A worker's steps in the mode Hybrid."""

    counts_once = False

    def __init__(
        self, store: ParameterStore, identity: Identity, gathering: Gathering, computation: Computation
    ) -> None:
        self._store, self._client, self._identity = store, store.client, identity
        self._computation, self._replica = computation, Replica(store)
        self._rounds = [RingRounds(shard, gathering) for shard in store.shards]
        cluster = self._client.cluster
        self._links = Links(self._client.container, cluster.own_host, contract.RING_PORTS if cluster.in_pod else ())
        self._ops = RingOperations(self._client, self._rounds)
        self._ring: Ring | None = None
        self._left: int | None = None
        self._held: int | None = None
        self._suspects: tuple[Card, ...] = ()
        self._token = Session(0, 0)
        self._attempt, self._behind = 0, 0
        self._is_current = False  # whether nothing stands between this worker and its next gradient
        self._alone_since: float | None = None  # since when nobody has the newest dense parameters
        with tf.device(self._client.local):
            self._who = identity.tensor()

    def prepare(self, batches: Sequence[Any]) -> None:
        """Trace every function that a step needs, with the token of no session, which the servers refuse."""
        self.begin(Session(0, 0))
        contribution = self._computation.over(batches)
        self._replica.prepare()
        call, ops, place = self._client.call, self._ops, self._place(0)
        call(ops.look, self._who)
        self._enroll()
        call(ops.form, self._session, place, self._barred())
        call(ops.roster)
        with tf.device(self._client.local):
            none = as_tensor(None)
        call(ops.deliver, self._session, self._who, place, none, contribution.amounts, contribution.rows)
        call(ops.apply, self._session, self._who, place)

    def begin(self, session: Session) -> None:
        """Carry this session from now on. The parameters stay, if it is of the same set."""
        self._leave()
        if session.generation != self._token.generation:
            self._replica.step = self._left = self._held = None
        self._token, self._is_current, self._alone_since = session, False, None
        with tf.device(self._client.local):
            self._session = tf.constant([session.term, session.generation], tf.int64)
        self._enrolled = False

    def rest(self, shards: Sequence[ShardRecord]) -> None:
        """Bring the dense parameters to the servers, if the chief wants them."""
        if self._replica.step is None or any(abs(s.generation) != self._token.generation for s in shards):
            return
        view, _ = self._looked(0.0)
        if view.held_up:
            self._bring_home(view)

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> Reply:
        """Compute the gradient, bring it into the ring and the round, and return when the round is over."""
        if not self._is_current:
            if over := self._take_part(None, 0.0):
                return over
            self._replica.show()
            self._is_current = True
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        contribution = self._computation.over(batches)
        _, loss, finite, _ = contribution.amounts.numpy().tolist()
        reply = self._take_part(contribution, loss)
        assert reply is not None  # noqa: S101 - a round with a gradient comes to an end
        return replace(reply, finite=bool(finite))

    def close(self) -> None:
        """Leave the ring, and listen no more."""
        self._leave()
        self._links.close()

    def _take_part(self, mine: Contribution | None, loss: float) -> Reply | None:
        """Take part in the round of this worker's step until it is over.

        Without a gradient: until one is wanted, of the newest parameters; None then.
        """
        if not self._enrolled:
            self._enroll()
        step = self._replica.step
        # With a whole ring and a gradient there is nothing to ask before the sum.
        move = Next.SUM if mine and self._ring and not self._ring.broken else Next.WAIT
        pause = FIRST_PAUSE
        while True:
            if move is Next.SUM and mine is None:
                return None
            if mine and move in (Next.SUM, Next.DELIVER):
                delivery = self._bring(move, mine)
                if delivery is Delivery.VOID:
                    return self._void(loss)
                move = Next.APPLY if delivery is Delivery.COMPLETE else Next.WAIT
            if move is Next.APPLY and self._apply() and mine:
                return self._settled(loss)
            view, over = self._looked(loss)
            me = self._standing()
            if not view.members & me.suspects:
                self._suspects = ()  # the arbiter has left them out
            if rings.is_made(view, me) and (over or rings.next_move(view, me) is Next.SETTLE):
                reply = self._settled(loss, goes_on=over is None)
                if mine:
                    return reply
                continue
            if over:
                return over
            move = rings.next_move(view, me)
            if move is Next.MISSED:
                self._lose()
            if mine and self._replica.step != step:  # what the gradient was computed on is no more
                self._is_current = False
                return Reply(True, False, False, view.arbiter.step, loss)
            pause = self._act(move, view, pause)

    def _bring(self, move: Next, mine: Contribution) -> Delivery:
        """Add up around the ring, unless that is done, and deliver."""
        if move is Next.SUM and not self._add_up(mine):
            return Delivery.INCOMPLETE
        place = self._place(self._replica.step, self._held)
        replies = self._client.call(
            self._ops.deliver, self._session, self._who, place, self._progress, mine.amounts, mine.rows
        )
        return rounds.delivery(replies.tolist())

    def _void(self, loss: float) -> Reply:
        """The gradient must not count, and is in the ring's sum: that must not either."""
        self._leave()
        self._held = None
        return Reply(False, False, False, self._replica.step or 0, loss)

    def _act(self, move: Next, view: rings.RingView, pause: float) -> float:
        """Do what a move asks for, but for what needs a gradient; how long to pause next time."""
        arbiter = view.arbiter
        if move is Next.FOLLOW:
            behind = min(shard.step for shard in view.shards)
            self._client.call(self._ops.apply, self._session, self._who, self._place(behind, arbiter.attempt))
        elif move is Next.FORM:
            place = self._place(arbiter.step, arbiter.attempt)
            if self._client.call(self._ops.form, self._session, place, self._barred()):
                self._suspects = ()  # else another one was faster, and may not know of them
        elif move is Next.JOIN:
            self._join(view)
        elif move in (Next.WAIT, Next.GIVE_WAY):
            if view.held_up:
                self._bring_home(view)
            self._give_up_if_lost(view)
            time.sleep(pause)
            return min(2 * pause, LONGEST_PAUSE)
        return FIRST_PAUSE

    def _settled(self, loss: float, *, goes_on: bool = True) -> Reply:
        """Apply the sum that this worker holds."""
        self._replica.settle()
        self._held, self._is_current = None, goes_on
        assert self._replica.step is not None  # noqa: S101 - it has just been counted
        return Reply(True, True, False, self._replica.step, loss)

    def _lose(self) -> None:
        """What this worker has does not count any more: a ring that is formed anew brings the newest."""
        self._leave()
        self._replica.step = self._held = None
        self._is_current = False

    def _standing(self) -> rings.Standing:
        if self._ring and self._ring.broken:
            self._leave(self._ring.broken.suspects)
        number = self._ring.number if self._ring else None
        suspects = sum(1 << worker for worker in {card.worker for card in self._suspects})
        return rings.Standing(self._identity.worker, self._replica.step, number, self._left, self._held, suspects)

    def _leave(self, suspects: Sequence[Card] = ()) -> None:
        if self._ring:
            self._ring.leave()
            self._left, self._ring = self._ring.number, None
            self._suspects = tuple(suspects) or self._suspects
            event("ring_left", worker=self._identity.worker, ring=self._left, suspects=[c.worker for c in suspects])

    def _looked(self, loss: float) -> tuple[rings.RingView, Reply | None]:
        """What the servers say; with it a reply if this worker's session is over."""
        answers = self._client.call(self._ops.look, self._who)
        records = [as_shard(heads[:RECORD_SIZE]) for heads, _ in answers]
        words = [[int(word) for word in heads[RECORD_SIZE:]] for heads, _ in answers]
        shards = tuple(
            rounds.ShardRound(record.step, attempt=own[0], delivered=rounds.mask(sets[0].tobytes()))
            for record, own, (_, sets) in zip(records, words, answers, strict=True)
        )
        _, closed, made_in, _, waits, held_up, current = words[0]
        admitted, members, ready = (rounds.mask(found.tobytes()) for found in answers[0][1][1:])
        view = rings.RingView(
            shards, admitted, bool(closed), made_in, members, ready, waits=bool(waits), held_up=bool(held_up)
        )
        self._behind = max(own[3] for own in words)
        done = any(record.done for record in records)
        mine = all(Session(record.fence, record.generation) == self._token for record in records)
        if done or not mine or not current:
            return view, Reply(False, False, done, view.arbiter.step, loss)
        return view, None

    def _still(self, number: int) -> bool:
        """Whether a ring is the arbiter's newest, and none of its members has said good-bye or lapsed."""
        view, over = self._looked(0.0)
        return over is None and view.arbiter.attempt == number and not view.members & ~view.ready

    def _join(self, view: rings.RingView) -> None:
        """Become part of the newest ring, and come to the same parameters as its other members."""
        started = time.monotonic()
        (number, *_), *rows = self._client.call(self._ops.roster).tolist()
        cards = [Card.of(row[0], row[1:]) for row in rows]
        own = (self._identity.worker, self._identity.incarnation)
        places = [place for place, card in enumerate(cards) if (card.worker, card.incarnation) == own]
        if number != view.arbiter.attempt or not places:
            return
        plan = RingPlan(self._token.generation, number, tuple(cards), places[0])
        self._leave()
        self._left = number  # until it has come to be
        try:
            links = self._links.connect(plan, still=lambda: self._still(number)) if len(cards) > 1 else None
            self._ring = Ring(number, cards, plan.place, links)
            self._share(self._ring, view.arbiter.step)
        except BrokenRingError as broken:
            self._suspects = broken.suspects
            self._leave(broken.suspects)
            return
        except GreetingError:
            self._leave()
            return
        self._left = None
        members = [card.worker for card in cards]
        seconds = round(time.monotonic() - started, 3)
        event("ring", worker=own[0], ring=number, members=members, step=self._replica.step, seconds=seconds)

    def _share(self, ring: Ring, step: int) -> None:
        """Bring the dense parameters of the arbiter's step to all members that do not have them."""
        steps = self._told_steps(ring, 0)
        if all(found != step for found in steps):
            if ring.place == 0:
                self._load(step)
            steps = self._told_steps(ring, 1)
        passing = rings.passing(steps, step)
        if passing:
            values = self._replica.read()
            ring.relay(values, source=passing.source, last=passing.last)
            if steps[ring.place] != step:
                self._replica.write(values, step)

    def _told_steps(self, ring: Ring, number: int) -> list[int | None]:
        """Of the members' dense parameters, in the ring's order."""
        own = -1 if self._replica.step is None else self._replica.step
        greeting = _GREETING.pack(number, ring.number, 0, 0)
        told = ring.tell(own, greeting=greeting, going_on=lambda: self._still(ring.number))
        return [None if found < 0 else found for found in told]

    def _load(self, step: int) -> None:
        """Take the dense parameters from the servers, if they are of this step there."""
        found = self._client.call(self._ops.load)
        if all(head.tolist() == [step, 0] for head, _ in found):
            self._replica.write([value for _, values in found for value in values], step)

    def _bring_home(self, view: rings.RingView) -> None:
        """Bring the dense parameters to the servers, if they are of the arbiter's step and no other worker does."""
        step = view.arbiter.step
        if not self._behind or self._replica.step != step:
            return
        with tf.device(self._client.local):
            at_step = tf.constant(step, tf.int64)
        if self._client.call(self._ops.claim, self._session, self._who, at_step, self._barred()):
            values = self._replica.per_server(self._replica.read())
            self._client.call(self._ops.store, self._session, at_step, values)

    def _give_up_if_lost(self, view: rings.RingView) -> None:
        """Have the job go back to what is saved, when nobody has had the newest dense parameters for long."""
        if not self._ring or self._replica.step is not None:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since > LOST_SECONDS:
            event("state_lost", worker=self._identity.worker, step=view.arbiter.step)
            with tf.device(self._client.local):
                at_step = tf.constant(view.arbiter.step, tf.int64)
            self._client.call(self._ops.give_up_state, self._session, at_step)

    def _add_up(self, mine: Contribution) -> bool:
        """The sum of all members' gradients, where it is to be applied from; False if the ring has broken."""
        ring, step = self._ring, self._replica.step
        assert ring is not None  # noqa: S101 - only who is in the ring sums
        assert step is not None  # noqa: S101 - and only who has parameters
        self._held = None
        check = self._replica.checksum() if step % CHECK_STEPS == 0 else 0
        try:
            greeting = _GREETING.pack(step, ring.number, self._replica.bytes, check)
            arrays = self._replica.load(mine)
            ring.sum(arrays, greeting=greeting, going_on=lambda: self._still(ring.number))
        except BrokenRingError as broken:
            self._leave(broken.suspects)
            return False
        except GreetingError as other:
            self._differ(greeting, other.found)
            return False
        self._held = ring.number
        return True

    def _differ(self, greeting: bytes, found: bytes) -> None:
        """The left neighbour says something else; if its parameters are others, they count, from the lowest worker."""
        ring, step = self._ring, self._replica.step
        if ring and ring.place and greeting[:-4] == found[:-4]:
            event("diverged", worker=self._identity.worker, step=step, neighbour=ring.members[ring.place - 1].worker)
            self._lose()
        else:
            self._leave()

    def _apply(self) -> bool:
        """Make the step on every server; True if it is made of the sum that this worker holds."""
        place = self._place(self._replica.step, self._held)
        replies = self._client.call(self._ops.apply, self._session, self._who, place)
        return bool(replies[:, 0].all() and replies[0, 1] == self._held)

    def _enroll(self) -> None:
        numbers = self._links.card(self._identity.worker, self._identity.incarnation).numbers()
        with tf.device(self._client.local):
            card = tf.constant(numbers, tf.int64)
        self._client.call(self._ops.enroll, self._session, self._who, card)
        self._enrolled = True

    def _barred(self) -> Tensor:
        """The suspects as the arbiter takes them. int64[2, 2]."""
        rows = [[card.worker, card.incarnation] for card in self._suspects][:2]
        with tf.device(self._client.local):
            return tf.constant([*rows, *[[-1, -1]] * (2 - len(rows))], tf.int64)

    def _place(self, step: int | None, attempt: int | None = 0) -> Tensor:
        with tf.device(self._client.local):
            return tf.constant([step, attempt], tf.int64)
