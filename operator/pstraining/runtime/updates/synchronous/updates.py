"""Synchronous updates: one step is the mean of one gradient of every worker, all computed on the same parameters.

Equal to one process that trains on all workers' batches together. Workers run the rounds themselves
(`updates.synchronous.protocol`): whoever sees that everything is there applies it, so no other process is in the path
and none can stop it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.push import Left, Parts, PushWire
from pstraining.runtime.compression.wire_format import Chooser, Form
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.data_ledger import Progress
from pstraining.runtime.ps.record import Session, ShardRecord
from pstraining.runtime.ps.shard import Shard, UpdateState
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.base import Identity, OnAnyMembers, Reply, as_tensor
from pstraining.runtime.updates.gradients import NEVER, Computation, Rows
from pstraining.runtime.updates.synchronous import protocol as sync_protocol
from pstraining.runtime.updates.synchronous.accumulators import Gathering, Sums
from pstraining.runtime.updates.synchronous.client import FORM, SERVED, THERE, Said, SyncOperations, Turn
from pstraining.runtime.updates.synchronous.protocol import Delivery, Move
from pstraining.runtime.updates.synchronous.server import ShardRounds
from pstraining.runtime.updates.synchronous.two_phase_commit import PairedSums, PrimaryRounds, StandbyRounds

UNUSUAL: Final = 2.0
"""Times what the others usually take: from then on a worker that waits asks the servers what keeps them."""


class Load(NamedTuple):
    """A gradient on its way."""

    amounts: Tensor
    parts: Parts
    rows: Rows
    left: Left


def state(name: str, gathering: Gathering, *, paired: bool = False) -> UpdateState:
    """What synchronous updates want of the servers, under a name for it that all tasks share.

    Args:
        name: theirs.
        gathering: how rounds are gathered.
        paired: standbys make the same steps.
    """

    def on_newcomer(shard: Shard, worker: Tensor, newcomer: Tensor) -> list[Any]:
        return rounds_on(shard, gathering).forget(worker, newcomer)

    def follow(shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        return rounds_on(shard, gathering).follow(session, step)

    return UpdateState(
        name=f"{name} of {gathering.workers}" if gathering.ordered else name,
        fused=not gathering.ordered,  # one order of arithmetic on any number of servers
        make_extra=lambda shard: PairedSums(shard, gathering) if paired else Sums(shard, gathering),
        on_newcomer=on_newcomer,
        follow=follow,
        deals_to=gathering.workers if gathering.ordered else 0,
        paired=paired,
        member_rounds=(lambda shard, standby: (StandbyRounds if standby else PrimaryRounds)(shard, gathering))
        if paired
        else None,
    )


def rounds_on(shard: Shard, gathering: Gathering) -> ShardRounds:
    """A primary's part in rounds."""
    return (PrimaryRounds if isinstance(shard.extra, PairedSums) else ShardRounds)(shard, gathering)


@dataclass
class Memory:
    """What a worker knows whichever members of the shards it trains with."""

    usual_wait: float = 0.0
    """Seconds that the others usually take after this worker."""
    tried: tuple[Sequence[Any], int] | None = None
    """The last batches, and the step that their gradient was brought into."""
    loss: float = math.nan
    """Theirs, if it was told."""
    generation: int = 0
    """The set of parameters that all this is of."""
    held: int | None = None
    """The step of it whose parameters are here; None: it is not known."""


class SyncUpdates(OnAnyMembers):
    """A worker's steps in the mode Sync."""

    def __init__(
        self,
        store: ParameterStore,
        identity: Identity,
        gathering: Gathering,
        forms: Sequence[Form],
        computation: Computation,
        wire: PushWire,
    ) -> None:
        self._store, self._client, self._worker = store, store.client, identity.worker
        self._computation, self._wire, self._gathering = computation, wire, gathering
        self._numbers, self._chooser = range(len(forms)), Chooser(forms, identity.worker)
        self._asks = gathering.backups > 0
        with tf.device(self._client.local):
            self._identity, self._progress = identity.tensor(), as_tensor(None)
        self._step: int | None = None
        self._attempt = self._form = self._served = 0
        self._memory = Memory()
        self.counts_once = store.updates.paired
        """See `Updates`: what came of a step that was tried is kept on several servers."""
        self._trace()

    def _trace(self) -> None:
        store, gathering = self._store, self._gathering
        rounds_of = [rounds_on(shard, gathering) for shard in store.shards]
        standbys = [[StandbyRounds(standby, gathering) for standby in found] for found in store.standbys_of]
        self._ops = SyncOperations(store, rounds_of, self._computation, self._wire, len(self._numbers), standbys)
        # Optimizers of the worker's own move what is here; a shadow goes on from what is here for ever.
        self._may_hold = not gathering.moves and not self._ops.is_shadowed and len(self._numbers) == 1

    def prepare(self, batches: Sequence[Any]) -> None:
        """Trace every function that a step needs, with the token of no session, which the servers refuse."""
        self.begin(Session(0, 0))
        self._memory.held = None
        contribution = self._computation.over(batches)
        self._wire.prepare(contribution.vectors)
        call, ops, turn = self._client.call, self._ops, self._turn(0)
        call(ops.look, self._identity)
        if self._asks:
            call(ops.admit, turn)
        for form in self._numbers:
            if self._is_one_call(batches, form):
                self._client.run(ops.whole[form], batches[0], turn)
            parts, _ = self._wire.encode(contribution.vectors, form)
            call(ops.bring[form], contribution.amounts, parts, contribution.rows, turn)
            call(ops.apply[form], turn)
            call(ops.fetch[form], turn)
        call(ops.pull, turn.place)

    def _of_a_usual_step(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Its functions, each with what makes it do nothing."""
        ops, turn = self._ops, self._turn_of_none()
        yield ops.look, (self._identity,)
        yield ops.pull, (turn.place,)
        for form in self._numbers:
            if self._is_one_call(batches, form):
                yield ops.whole[form], (batches[0], turn)
            yield ops.apply[form], (turn,)
            yield ops.fetch[form], (turn,)

    def rest(self, shards: Sequence[ShardRecord]) -> None:
        """Nothing: the servers have all there is."""

    def begin(self, session: Session) -> None:
        """Carry this session from now on, and fetch the parameters anew, if they are not those of the servers' step."""
        self._token, self._step = session, None
        if session.generation and session.generation != self._memory.generation:
            self._memory.generation, self._memory.tried, self._memory.held = session.generation, None, None
        self._session = self._carried(session)

    def step(self, batches: Sequence[Any], progress: Progress | None = None) -> Reply:
        """Compute the gradient, bring it into the round, and return when the round is over."""
        if self._step is None and (over := self._fetch() or self._made_before(batches)):
            return over
        assert self._step is not None  # noqa: S101 - it is fetched
        self._memory.tried, self._memory.held = (batches, self._step), None  # until what comes of it is known
        with tf.device(self._client.local):
            self._progress = as_tensor(progress)
        started, form = time.perf_counter(), self._form
        load, said = self._begun(batches)
        _, loss, finite, _ = load.amounts.numpy().tolist()
        self._memory.loss = loss
        reply = self._take_part(load, said, loss)
        if reply.applied and finite:
            self._wire.keep(load.left)
        if reply.applied and self._step is not None:  # one that missed a step says nothing about the form
            self._chooser.note(form, time.perf_counter() - started, step=reply.step)
        return replace(reply, finite=bool(finite))

    def _made_before(self, batches: Sequence[Any]) -> Reply | None:
        """A reply if these batches are part of the step that they were tried for before the session changed."""
        tried, step = self._memory.tried, self._step
        if tried is None or step is None or tried[0] is not batches or self._served != tried[1] + 1:
            return None
        return Reply(True, True, False, step, self._memory.loss)

    def _fetch(self) -> Reply | None:
        """The parameters of the newest step that every server has made; a reply when the session is over."""
        while True:
            observation, over = self._looked(0.0)
            if over:
                return over
            if self._may_hold and set(observation.steps) == {self._memory.held}:
                self._step, self._form = self._memory.held, 0
                return None
            self._memory.held = None
            if min(observation.steps) != max(observation.steps):
                self._client.call(self._ops.apply[self._form], self._turn(min(observation.steps)))
                continue
            heads = self._client.call(self._ops.pull, self._turn(min(observation.steps)).place)
            if (heads[:, 0] == heads[0, 0]).all():  # else others made a step meanwhile: these are no step's parameters
                self._step, self._form = (int(number) for number in heads[0])
                self._memory.held = self._step
                return None

    def _is_one_call(self, batches: Sequence[Any], form: int) -> bool:
        """Whether nothing stands between computing a gradient and bringing it in."""
        return self._computation.is_one_pass(batches) and self._wire.is_plain(form) and not self._asks

    def _begun(self, batches: Sequence[Any]) -> tuple[Load, Said | None]:
        """The gradient, and what the servers say if it is brought in with the same call."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        if self._is_one_call(batches, self._form):
            whole, turn = self._ops.whole[self._form], self._turn(self._step)
            contribution, answer = self._client.run(whole, batches[0], turn)
            said = Said(*(part.numpy() for part in answer))
        else:
            contribution, said = self._computation.over(batches), None
        parts, left = self._wire.encode(contribution.vectors, self._form)
        return Load(contribution.amounts, parts, contribution.rows, left), said

    def _take_part(self, load: Load, said: Said | None, loss: float) -> Reply:
        """Take part in the round of this worker's step until it is over, and fetch what comes of it."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        step, move, since = self._step, Move.WAIT if said else Move.DELIVER, time.perf_counter()
        made = step
        while True:
            if move is Move.DELIVER:
                said, since = self._hand_in(load), time.perf_counter()
            if said:
                delivery: Delivery | None = sync_protocol.delivery(said.delivered.tolist())
                fetched: Array | None = said.fetched
                if delivery is Delivery.VOID:
                    return Reply(False, False, False, step, loss)
            else:
                delivery = None
                fetched = self._moved_on(move, step, since)
            if fetched is not None and fetched[THERE]:
                self._memory.usual_wait = (self._memory.usual_wait + time.perf_counter() - since) / 2
                self._step, self._form = step + 1, int(fetched[FORM])
                self._memory.held = self._step
                return Reply(True, int(fetched[SERVED]) == step + 1, False, step + 1, loss)
            if move is Move.PULL:  # it is more than one step behind, or has another form: it begins with all parameters
                self._step = None
                return Reply(True, self._served == step + 1, False, made, loss)
            early = move is Move.WAIT and time.perf_counter() - since < UNUSUAL * self._memory.usual_wait
            said, move = None, Move.WAIT
            if delivery is Delivery.COMPLETE:
                move = Move.APPLY
                continue
            if delivery is Delivery.INCOMPLETE or early:
                continue  # the others have yet to deliver
            observation, over = self._looked(loss)
            if over:
                self._memory.held = step  # no call has moved them
                return over
            move, made = sync_protocol.next_move(observation, worker=self._worker, step=step), observation.arbiter.step

    def _moved_on(self, move: Move, step: int, since: float) -> Array | None:
        """Do what a move asks for; what was fetched, if it is tried."""
        if move is Move.GIVE_UP:
            self._client.call(self._ops.give_up, self._turn(step))
            return None
        if move is Move.WAIT:
            time.sleep(sync_protocol.pause(time.perf_counter() - since, usual=self._memory.usual_wait))
        operation = self._ops.apply if move is Move.APPLY else self._ops.fetch
        fetched: Array = self._client.call(operation[self._form], self._turn(step))
        return fetched

    def _hand_in(self, load: Load) -> Said | None:
        """Deliver, and make the step if everything is on every server by it; None if the round has no room."""
        assert self._step is not None  # noqa: S101 - `step` has fetched it
        turn = self._turn(self._step)
        if self._asks and not self._client.call(self._ops.admit, turn):
            return None
        return Said(*self._client.call(self._ops.bring[self._form], load.amounts, load.parts, load.rows, turn))

    def _looked(self, loss: float) -> tuple[sync_protocol.RoundObservation, Reply | None]:
        """What the servers say; with it a reply if this worker's session is over."""
        answers, standbys = self._client.call(self._ops.look, self._identity)
        records = [ShardRecord.from_vector(heads) for heads, _ in answers]
        shards = tuple(
            sync_protocol.ShardRound(
                step=int(heads[3]), attempt=int(heads[5]), delivered=sync_protocol.mask(sets[0].tobytes())
            )
            for heads, sets in answers
        )
        head, sets = answers[0]
        self._attempt, self._served = int(head[5]), int(head[7])
        observation = sync_protocol.RoundObservation(
            shards,
            admitted=sync_protocol.mask(sets[1].tobytes()),
            closed=bool(head[6]),
            alive=sync_protocol.mask(sets[2].tobytes()),
            standbys=tuple(ShardRecord.from_vector(record).step for record in standbys),
        )
        done = any(record.done for record in records)
        mine = all(Session(record.fence, record.generation) == self._token for record in records)
        if done or not mine:
            return observation, Reply(False, False, done, observation.arbiter.step, loss)
        return observation, None

    def _turn_of_none(self) -> Turn:
        """Of no session and no step."""
        with tf.device(self._client.local):
            place = tf.constant([NEVER, 0], tf.int64)
            return Turn(tf.zeros([2], tf.int64), self._identity, place, as_tensor(None), tf.zeros([], tf.int64))

    def _turn(self, step: int) -> Turn:
        with tf.device(self._client.local):
            place = tf.constant([step, self._attempt], tf.int64)
            proposed = tf.constant(self._chooser.wish(self._form), tf.int64)
        return Turn(self._session, self._identity, place, self._progress, proposed)
