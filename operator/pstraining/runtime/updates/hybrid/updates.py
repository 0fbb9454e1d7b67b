"""Hybrid updates: dense gradients around a ring of the workers, rows of tables through the parameter servers.

Every worker holds all dense parameters and moves them by itself; see `updates.hybrid.protocol` for what makes of both
one step. The servers get the dense parameters when the chief saves. Where shards have standbys, these make the same
steps of the tables, and a worker moves its dense parameters once all have.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.allreduce.topology import Card, RingPlan
from pstraining.runtime.allreduce.transport import Links
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.data_ledger import Progress
from pstraining.runtime.ps.record import RECORD_SIZE, Session, ShardRecord
from pstraining.runtime.ps.shard import Shard, UpdateState
from pstraining.runtime.ps.store import ParameterStore, int64
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.updates.base import FIRST_PAUSE, LONGEST_PAUSE, Identity, OnAnyMembers, Reply, as_tensor
from pstraining.runtime.updates.gradients import NEVER, Computation, Contribution
from pstraining.runtime.updates.hybrid import protocol as hybrid_protocol
from pstraining.runtime.updates.hybrid.client import RingOperations
from pstraining.runtime.updates.hybrid.dense_state import Replica
from pstraining.runtime.updates.hybrid.protocol import Next
from pstraining.runtime.updates.hybrid.ring_member import RingMember
from pstraining.runtime.updates.hybrid.server import RingSums
from pstraining.runtime.updates.hybrid.two_phase_commit import PairedRingSums, RingPrimary, RingStandby, on_primary
from pstraining.runtime.updates.synchronous import protocol as sync_protocol
from pstraining.runtime.updates.synchronous.accumulators import Gathering
from pstraining.runtime.updates.synchronous.protocol import Delivery

LOST_SECONDS: Final = 10.0
"""How long workers wait for one that has the newest dense parameters, before they are given up."""


def state(name: str, gathering: Gathering, *, paired: bool = False) -> UpdateState:
    """What hybrid updates want of the servers, under a name for it that all tasks share.

    Args:
        name: theirs.
        gathering: how rounds are gathered.
        paired: standbys make the same steps.
    """

    def on_newcomer(shard: Shard, worker: Tensor, newcomer: Tensor) -> list[Any]:
        return on_primary(shard, gathering).forget(worker, newcomer)

    def follow(shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        return on_primary(shard, gathering).follow(session, step)

    def hold_up(shard: Shard, seconds: Tensor) -> Tensor:
        return on_primary(shard, gathering).hold_up(seconds)

    return UpdateState(
        name=name,
        make_extra=lambda shard: (PairedRingSums if paired else RingSums)(shard, gathering),
        on_newcomer=on_newcomer,
        follow=follow,
        hold_up=hold_up,
        paired=paired,
        member_rounds=(lambda shard, standby: (RingStandby if standby else RingPrimary)(shard, gathering))
        if paired
        else None,
    )


@dataclass
class Memory:
    """What a worker knows whichever members of the shards it trains with."""

    generation: int = 0
    """The set of parameters that all this is of."""
    tried: Sequence[Any] | None = None
    """The last batches whose gradient was brought into a ring, until it is told what came of them."""
    loss: float = math.nan
    """Theirs."""


class HybridUpdates(OnAnyMembers):
    """A worker's steps in the mode Hybrid."""

    def __init__(
        self, store: ParameterStore, identity: Identity, gathering: Gathering, computation: Computation
    ) -> None:
        self._store, self._client, self._identity = store, store.client, identity
        self._computation, self._gathering, self._replica = computation, gathering, Replica(store)
        cluster = self._client.cluster
        links = Links(self._client.container, cluster.own_host, contract.RING_PORTS if cluster.in_pod else ())
        self._member, self._memory = RingMember(identity, self._replica, links), Memory()
        self._token, self._behind = Session(0, 0), 0
        self._is_current = False  # whether nothing stands between this worker and its next gradient
        self._alone_since: float | None = None  # since when nobody has the newest dense parameters
        with tf.device(self._client.local):
            self._who, self._none = identity.tensor(), as_tensor(None)
        self.counts_once = store.updates.paired
        """See `Updates`: what came of a step that was tried is kept on several servers."""
        self._trace()

    def _trace(self) -> None:
        store, gathering = self._store, self._gathering
        servers = [on_primary(shard, gathering) for shard in store.shards]
        standbys = [[RingStandby(standby, gathering) for standby in own] for own in store.standbys_of]
        self._ops = RingOperations(store, servers, standbys, self._computation)

    def prepare(self, batches: Sequence[Any]) -> None:
        """Trace every function that a step needs, with the token of no session, which the servers refuse."""
        self.begin(Session(0, 0))
        contribution = self._over(batches)
        self._replica.prepare()
        call, ops, place = self._client.call, self._ops, self._place(0)
        call(ops.look, self._who)
        self._enroll()
        call(ops.form, self._session, place, self._barred())
        call(ops.roster)
        call(ops.deliver, self._session, self._who, place, self._none, contribution.amounts, contribution.rows)
        call(ops.apply, self._session, self._who, place)

    def _of_a_usual_step(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Its functions, each with what makes it do nothing."""
        ops, session, place = self._ops, self._carried(Session(0, 0)), self._place(NEVER)
        turn = session, self._who, place
        yield ops.look, (self._who,)
        yield ops.enroll, (session, self._who, self._card())
        yield ops.form, (session, place, self._barred())
        yield ops.roster, ()
        if self._computation.is_one_pass(batches):
            yield ops.compute, (batches[0], place)
        for length in (0, 1):  # what comes in two lengths is made ready for any
            amounts, rows = self._computation.of_rows(length)
            yield ops.deliver, (*turn, self._none, amounts, rows)
        yield ops.apply, turn

    def begin(self, session: Session) -> None:
        """Carry this session from now on. The parameters stay, if it is of the same set."""
        self._member.leave()
        memory = self._memory
        if session.generation and session.generation != memory.generation:
            memory.generation, memory.tried = session.generation, None
            self._member.forget()
        self._token, self._is_current, self._alone_since = session, False, None
        self._session, self._enrolled = self._carried(session), False

    def rest(self, shards: Sequence[ShardRecord]) -> None:
        """Bring the dense parameters to the servers, if the chief wants them."""
        if self._replica.step is None or any(abs(s.generation) != self._memory.generation for s in shards):
            return
        observation, _ = self._looked(0.0)
        if observation.held_up:
            self._bring_home(observation)

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> Reply:
        """Compute the gradient, bring it into the ring and the round, and return when the round is over."""
        memory = self._memory
        if not self._is_current:
            again = memory.tried is batches  # what came of them was not told
            if over := self._take_part(None, memory.loss if again else 0.0, again=again):
                return over
            self._replica.show()
            self._is_current = True
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        contribution = self._over(batches)
        _, loss, finite, _ = contribution.amounts.numpy().tolist()
        memory.tried, memory.loss = batches, loss
        reply = self._take_part(contribution, loss)
        assert reply is not None  # noqa: S101 - a round with a gradient comes to an end
        return replace(reply, finite=bool(finite))

    def close(self) -> None:
        """Leave the ring, and listen no more."""
        self._member.leave()
        self._member.links.close()

    def _over(self, batches: Sequence[Any]) -> Contribution:
        """Their contribution; where there are standbys by a function that can be made ready beside training."""
        if not self._store.updates.paired or not self._computation.is_one_pass(batches):
            return self._computation.over(batches)
        return Contribution(*self._client.run(self._ops.compute, batches[0], self._place(0)))

    def _take_part(self, mine: Contribution | None, loss: float, *, again: bool = False) -> Reply | None:
        """Take part in the round of this worker's step until it is over.

        Without a gradient: until one is wanted, of the newest parameters; None then. With `again` until it is known
        that the last one counts, if it does.
        """
        if not self._enrolled:
            self._enroll()
        step, member = self._replica.step, self._member
        # With a whole ring and a gradient there is nothing to ask before the sum.
        move, at = Next.SUM if mine and member.is_whole else Next.WAIT, (step, member.held)
        pause = FIRST_PAUSE
        while True:
            if move is Next.SUM and mine is None:
                return None
            if mine and move in (Next.SUM, Next.DELIVER):
                delivery = self._bring(move, mine)
                if delivery is Delivery.VOID:
                    return self._void(loss)
                move = Next.APPLY if delivery is Delivery.COMPLETE else Next.WAIT
                at = self._replica.step, member.held
            if move is Next.APPLY and self._apply(*at) and mine:
                return self._settled(loss)
            observation, over = self._looked(loss)
            me = member.standing()
            if not observation.members & me.suspects:
                member.suspects = ()  # the arbiter has left them out
            if hybrid_protocol.is_made(observation, me) and (
                over or hybrid_protocol.next_move(observation, me) is Next.SETTLE
            ):
                reply = self._settled(loss, goes_on=over is None)
                if mine or again:
                    return reply
                continue
            if over:
                return over
            move, at = (
                hybrid_protocol.next_move(observation, me),
                (observation.arbiter.step, observation.arbiter.attempt),
            )
            if move is Next.MISSED:
                member.lose()
            if mine and self._replica.step != step:  # what the gradient was computed on is no more
                self._is_current = False
                return Reply(True, False, False, observation.arbiter.step, loss)
            pause = self._act(move, observation, pause)

    def _bring(self, move: Next, mine: Contribution) -> Delivery:
        """Add up around the ring, unless that is done, and deliver."""
        member = self._member
        if move is Next.SUM and not member.add_up(mine, self._still):
            return Delivery.INCOMPLETE
        place = self._place(self._replica.step, member.held)
        replies = self._client.call(
            self._ops.deliver, self._session, self._who, place, self._progress, mine.amounts, mine.rows
        )
        return sync_protocol.delivery(replies.tolist())

    def _void(self, loss: float) -> Reply:
        """The gradient must not count, and is in the ring's sum: that must not either."""
        self._member.leave()
        self._member.held = None
        return Reply(False, False, False, self._replica.step or 0, loss)

    def _act(self, move: Next, observation: hybrid_protocol.HybridObservation, pause: float) -> float:
        """Do what a move asks for, but for what needs a gradient; how long to pause next time."""
        arbiter, goes_on = observation.arbiter, True
        if move is Next.FOLLOW:
            place = self._place(observation.slowest, arbiter.attempt)
            goes_on = bool(self._client.call(self._ops.follow, self._session, self._who, place)[0])
        elif move is Next.FORM:
            place = self._place(arbiter.step, arbiter.attempt)
            if goes_on := bool(self._client.call(self._ops.form, self._session, place, self._barred())):
                self._member.suspects = ()  # else another one was faster, and may not know of them
        elif move is Next.JOIN:
            self._join(observation)
        elif move in (Next.WAIT, Next.GIVE_WAY):
            self._give_up_if_lost(observation)
        if goes_on and move not in (Next.WAIT, Next.GIVE_WAY, Next.DELIVER):  # else it was refused, perhaps for long
            return FIRST_PAUSE
        if observation.held_up:
            self._bring_home(observation)
        time.sleep(pause)
        return min(2 * pause, LONGEST_PAUSE)

    def _settled(self, loss: float, *, goes_on: bool = True) -> Reply:
        """Apply the sum that this worker holds."""
        self._is_current, self._memory.tried = goes_on, None
        return Reply(True, True, False, self._member.settle(), loss)

    def _looked(self, loss: float) -> tuple[hybrid_protocol.HybridObservation, Reply | None]:
        """What the servers say; with it a reply if this worker's session is over."""
        answers, standbys = self._client.call(self._ops.look, self._who)
        records = [ShardRecord.from_vector(heads[:RECORD_SIZE]) for heads, _ in answers]
        words = [[int(word) for word in heads[RECORD_SIZE:]] for heads, _ in answers]
        shards = tuple(
            sync_protocol.ShardRound(record.step, attempt=own[0], delivered=sync_protocol.mask(sets[0].tobytes()))
            for record, own, (_, sets) in zip(records, words, answers, strict=True)
        )
        _, closed, made_in, _, waits, held_up, current, sealed = words[0]
        admitted, members, ready = (sync_protocol.mask(found.tobytes()) for found in answers[0][1][1:])
        observation = hybrid_protocol.HybridObservation(
            shards,
            admitted,
            bool(closed),
            made_in,
            members,
            ready,
            waits=bool(waits),
            held_up=bool(held_up),
            sealed=bool(sealed),
            standbys=tuple(ShardRecord.from_vector(found[:RECORD_SIZE]).step for found in standbys),
        )
        self._behind = max([*(own[3] for own in words), *(int(found[RECORD_SIZE]) for found in standbys)])
        done = any(record.done for record in records)
        mine = all(Session(record.fence, record.generation) == self._token for record in records)
        if done or not mine or not current:
            return observation, Reply(False, False, done, observation.arbiter.step, loss)
        return observation, None

    def _still(self, number: int) -> bool:
        """Whether a ring is the arbiter's newest, and none of its members has said good-bye or lapsed."""
        observation, over = self._looked(0.0)
        return over is None and observation.arbiter.attempt == number and not observation.members & ~observation.ready

    def _join(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Become part of the newest ring."""
        (number, *_), *rows = self._client.call(self._ops.roster).tolist()
        cards = [Card.of(row[0], row[1:]) for row in rows]
        own = (self._identity.worker, self._identity.incarnation)
        places = [place for place, card in enumerate(cards) if (card.worker, card.incarnation) == own]
        if number != observation.arbiter.attempt or not places:
            return
        plan, step = RingPlan(self._token.generation, number, tuple(cards), places[0]), observation.arbiter.step
        self._member.join(plan, step, still=self._still, load=lambda: self._loaded(step))

    def _loaded(self, step: int) -> list[Array] | None:
        """The dense parameters from the servers, if they are of this step there."""
        found = self._client.call(self._ops.load)
        if any(head.tolist() != [step, 0] for head, _ in found):
            return None
        return [value for _, values in found for value in values]

    def _bring_home(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Bring the dense parameters to the servers, if they are of the arbiter's step and no other worker does."""
        step = observation.arbiter.step
        if not self._behind or self._replica.step != step:
            return
        session = self._carried(Session(self._token.term, self._memory.generation))
        if self._client.call(self._ops.claim, session, self._who, int64(step), self._barred()):
            values = self._replica.per_server(self._replica.read())
            self._client.call(self._ops.store, session, int64(step), values)

    def _give_up_if_lost(self, observation: hybrid_protocol.HybridObservation) -> None:
        """Have the job go back to what is saved, when nobody has had the newest dense parameters for long."""
        if not self._member.ring or self._replica.step is not None:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since > LOST_SECONDS:
            event("state_lost", worker=self._identity.worker, step=observation.arbiter.step)
            self._client.call(self._ops.give_up_state, self._session, int64(observation.arbiter.step))

    def _apply(self, step: int | None, attempt: int | None) -> bool:
        """Make a step on every server; True if all have made it, of the sum that this worker holds."""
        place = self._place(step, attempt)
        made, made_in = self._client.call(self._ops.apply, self._session, self._who, place).tolist()
        if not made:
            time.sleep(LONGEST_PAUSE)  # it is refused: whatever stands in the way, the servers may say so for long
        return bool(made) and (self._replica.step, self._member.held) == (step, made_in)

    def _enroll(self) -> None:
        self._client.call(self._ops.enroll, self._session, self._who, self._card())
        self._enrolled = True

    def _card(self) -> Tensor:
        """How this worker is reached. int64[CARD_SIZE]."""
        with tf.device(self._client.local):
            card = self._member.links.card(self._identity.worker, self._identity.incarnation)
            return tf.constant(card.numbers(), tf.int64)

    def _barred(self) -> Tensor:
        """The suspects as the arbiter takes them. int64[2, 2]."""
        rows = [[card.worker, card.incarnation] for card in self._member.suspects][:2]
        with tf.device(self._client.local):
            return tf.constant([*rows, *[[-1, -1]] * (2 - len(rows))], tf.int64)

    def _place(self, step: int | None, attempt: int | None = 0) -> Tensor:
        with tf.device(self._client.local):
            return tf.constant([step, attempt], tf.int64)
