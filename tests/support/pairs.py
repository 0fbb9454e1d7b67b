"""Synchronous rounds on pairs of servers, interrupted after any message: which members are lost, and how the others
recover.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from pstraining.runtime.ps.record import Assignment, Session
from tests.support.servers import GENERATION, Rig, batches
from tests.support.worker_threads import Crew

PRIMARY, STANDBY = 0, 1
SHARDS, WORKERS, STEPS = 2, 2, 3
RATE = 0.5
"""The learning rate that the message `rate` sets."""


@dataclass(frozen=True)
class Message:
    """A request that runs one critical section on one server."""

    what: str
    shard: int
    worker: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.shard}" + (f" of worker {self.worker}" if self.what == "push" else "")


def rounds_messages(order: random.Random, *, clips: bool = False, workers: int = WORKERS) -> list[Message]:
    """Return all messages of a round in a possible order; messages of one group are concurrent.

    Args:
        order: chooses the order.
        clips: whether the servers agree on norms before they prepare the step.
        workers: whose gradients make the step.
    """
    groups = [[Message("push", 0, worker), Message("push", 1, worker)] for worker in range(workers)]
    norms = [[Message("squares", 0), Message("squares", 1)], [Message("settle", 0)], [Message("settle", 1)]]
    rest = [
        *(norms if clips else []),
        [Message("prepare", 0), Message("prepare", 1)],
        [Message("stage", 0), Message("stage", 1)],
        [Message("apply standby", 0)],
        [Message("apply primary", 0), Message("apply primary", 1), Message("apply standby", 1)],
    ]
    for group in rest:
        order.shuffle(group)
    return [message for group in [*groups, *rest] for message in group]


def losses() -> Iterator[Assignment]:
    """Yield every combination of members that may be left, with at least one of each shard."""
    yield from product([(0, 1), (0,), (1,)], repeat=SHARDS)


class Pairs:
    """Two shards of two members each, and workers that train on them."""

    mode = "Sync"

    def __init__(
        self,
        client: Any,
        optimizer: Callable[[], Any],
        build: Callable[[], Any],
        workers: int = WORKERS,
        **more: Any,
    ) -> None:
        self.rig = Rig(client, optimizer, ps=SHARDS, members=2, build=build, workers=workers, mode=self.mode, **more)
        self.shares = [self._share(worker) for worker in range(workers)]
        self._call = client.call
        self._workers: dict[Assignment, list[Any]] = {}
        self._ballot, self._generation = 0, GENERATION
        self.both: Assignment = ((0, 1),) * SHARDS
        self._functions: dict[tuple[str, int, int], Any] = {}

    def begin(self) -> None:
        """Restore the initial state on all members."""
        self._ballot += 1
        self.rig.start(term=self._ballot, generation=self._generation)

    @property
    def fence(self) -> int:
        """The present chief's fence."""
        return self._ballot

    def primaries(self) -> Any:
        """Return the administration of the primaries alone."""
        from pstraining.runtime.chief.store_admin import StoreAdmin

        return StoreAdmin(self.rig.store.for_assignment(((PRIMARY,),) * SHARDS))

    def play(self, messages: Sequence[Message]) -> None:
        """Send messages of the first round to members in their initial state."""
        gradients = self._gradients  # computed before the state is restored
        self.begin()
        self._send(messages, gradients, attempt=0)

    def _send(self, messages: Sequence[Message], gradients: Sequence[Any], *, attempt: int) -> None:
        import tensorflow as tf

        from pstraining.runtime.updates.gradients import ShardGradient

        session = tf.constant([self._ballot, self._generation], tf.int64)
        place, go, form = tf.constant([0, attempt], tf.int64), tf.constant(1, tf.int64), tf.constant(0, tf.int64)
        loads: dict[int, Any] = {}
        sums: list[Any] = []
        for message in messages:
            number, identity = message.shard, self.rig.identities[message.worker].tensor()
            if message.what == "push":
                amounts, vectors, rows = gradients[message.worker]
                share = ShardGradient(
                    amounts, vectors[number] if self.rig.mode.hooks.pause_steps is None else [], rows[number]
                )
                data = (tf.constant([-1, 0, 0], tf.int64), form, go, share)
                self._do("push", number, PRIMARY, session, identity, place, *data)
            elif message.what == "squares":
                sums.append(self._do("squares", number, PRIMARY, session, place, go))
            elif message.what == "settle":
                agreed = self._do("settle", number, PRIMARY, session, place, self._totals(sums))
                sums = [agreed]  # the other servers receive the arbiter's
            elif message.what == "prepare":
                loads[number] = self._do("prepare", number, PRIMARY, session, place, go)
            elif message.what == "rate":
                self.rig.control.set_learning_rates(self._ballot, [RATE])
            elif message.what == "stage":
                word, load = loads[number]
                self._do("stage", number, STANDBY, session, place, word, load)
            else:
                member = STANDBY if message.what == "apply standby" else PRIMARY
                self._do("apply", number, member, session, identity, place, go, form)

    def _totals(self, sums: Sequence[Any]) -> Any:
        """Return the totals of the sums that `squares` has returned."""
        import tensorflow as tf

        return tf.constant([min(own[0] for own in sums), *np.sum([own[1:] for own in sums], axis=0)], tf.float64)

    def fail_over(self, left: Assignment) -> None:
        """Fence the members that are left, let them apply the decided step, and activate them, as a chief does."""
        import tensorflow as tf

        former, self._ballot = self._ballot, self._ballot + 1
        members = [(number, member) for number, own in enumerate(left) for member in own]
        observed, ballot = tf.constant(former, tf.int64), tf.constant(self._ballot, tf.int64)
        for number, member in members:
            assert self._do("raise_fence", number, member, observed, ballot)
        session = tf.constant([self._ballot, self._generation], tf.int64)
        decided = max(self._step(number, member) for number, member in members)
        for number, member in members:
            if self._step(number, member) < decided:
                self._do("follow", number, member, session, tf.constant(decided - 1, tf.int64))
            assert self._step(number, member) == decided, f"member {member} of shard {number} cannot follow"
        for number, member in members:
            assert self._do("start", number, member, session, tf.constant(self._ballot << 20, tf.int64))

    def finish(self, left: Assignment) -> None:
        """Let all workers train until the last step on the members that are left, without repeating an applied step."""
        workers = self._workers_on(left)
        for updates in workers:
            updates.start_session(Session(self._ballot, self._generation))
        made = self._step(0, left[0][0])
        self.rig.workers, whole = workers, self.rig.workers
        try:
            Crew(self.rig, [share[made:] for share in self.shares]).join()
        finally:
            self.rig.workers = whole

    def differences(self, left: Assignment) -> list[str]:
        """Return how the members that are left differ from an undisturbed run."""
        found = []
        for number, own in enumerate(left):
            for member in own:
                values = self._do("snapshot", number, member)
                for name, value, wanted in zip(["record", "state"], values, self.expected[number], strict=True):
                    same = all(np.array_equal(a, b) for a, b in zip(value, wanted, strict=True))
                    if not same:
                        found.append(f"member {member} of shard {number}: {name}")
        return found

    def snapshot(self, number: int, member: int) -> Any:
        """Return a member's step, and its state."""
        return self._do("snapshot", number, member)

    @cached_property
    def expected(self) -> list[Any]:
        """The step and the remaining state of each shard after an undisturbed run."""
        self.begin()
        self.finish(self.both)
        return [self._do("snapshot", number, PRIMARY) for number in range(SHARDS)]

    def _share(self, worker: int) -> list[Any]:
        return list(batches(STEPS, seed=worker))

    @cached_property
    def _gradients(self) -> list[Any]:
        """Each worker's first gradient."""
        self.begin()
        found = []
        for updates, share in zip(self.rig.workers, self.shares, strict=True):
            updates._fetch()
            found.append(updates._computer.compute(share[:1]))
        return found

    def _workers_on(self, left: Assignment) -> list[Any]:
        if left not in self._workers:
            self._workers[left] = [updates.bind(updates._store.for_assignment(left)) for updates in self.rig.workers]
        return self._workers[left]

    def _step(self, number: int, member: int) -> int:
        from pstraining.runtime.ps.record import RecordField

        return int(self._do("read", number, member)[RecordField.STEP])

    def _do(self, what: str, number: int, member: int, *arguments: Any) -> Any:
        """Call one operation of one member, in the role that the member has at first."""
        import tensorflow as tf

        from pstraining.runtime.ps.record import RecordField
        from pstraining.runtime.ps.saving.parts import ShardParts

        if (what, number, member) not in self._functions:
            shard = self.rig.store.member(number, member)
            make_ops = self.rig.mode.hooks.member_round_ops
            assert make_ops
            round_ops = make_ops(shard, member == STANDBY)
            home = self.rig.control.client.to_local

            def emit(*reported: Any) -> Any:
                if what == "snapshot":
                    record, values = ShardParts(shard).snapshot()
                    return home(([record[RecordField.STEP]], values))
                return home(getattr(round_ops if hasattr(round_ops, what) else shard, what)(*reported))

            self._functions[what, number, member] = tf.function(emit, autograph=False)
        return self._call(self._functions[what, number, member], *arguments)
