"""A job of two shards of two members in one process: a chief's succession and a worker, event by event."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.ps.record import Assignment, Session
from pstraining.runtime.replication.view import Process, Roster
from tests.support.servers import GENERATION, Rig

SHARDS = 2


class School:
    """Members are lost by their state: what is left is as a process that was just started.

    Args:
        client: of four servers.
        patch: ends with the test.
        rig: what is trained; a function of the client.
        batches: one for each step.
        piece: bytes of a piece.
        enough: bytes of a shard's state from which members learn.
    """

    def __init__(
        self,
        client: Any,
        patch: pytest.MonkeyPatch,
        rig: Callable[[Any], Rig],
        batches: Sequence[Any],
        *,
        piece: int,
        enough: int = 0,
    ) -> None:
        from pstraining.runtime.replication import chunks, view_change

        patch.setattr(client, "cluster", replace(client.cluster, members=2))
        patch.setattr(chunks, "PIECE_BYTES", piece)
        patch.setattr(chunks, "ENOUGH_BYTES", enough)
        patch.setattr(view_change, "LEASE_SECONDS", 4000.0)  # tests make functions in between
        self.rig, self._client, self._batches = rig(client), client, batches
        self._Succession, self._term = view_change.Succession, 0
        self.made = 0
        """Steps."""
        self._sets = 0
        self._workers: dict[Assignment, Any] = {}
        self._functions: dict[int, Any] = {}
        self.next_chief()
        self.rule()

    def rule(self, *, heal: bool = False) -> Roster:
        """Look, and do what is to be done, until a roster is in force; the worker goes to its members."""
        self.roster = self.succession.rule(heal=heal)
        self._send_worker()
        return self.roster

    def anew(self) -> None:
        """From the initial state, on all members."""
        self._restore(((0, 1),) * SHARDS, self.succession.fence)
        assert self.rule() == self.roster
        self.made = 0

    def train(self, steps: int = 1) -> None:
        """The worker makes steps."""
        for batch in self._batches[self.made : self.made + steps]:
            reply = self._worker.step([batch])
            assert reply.accepted
            assert reply.applied
        self.made += steps

    def lose(self, shard: int, member: int) -> None:
        """A member's process is another one now."""
        import tensorflow as tf

        own = self.rig.store.member(shard, member)

        def forget() -> Any:
            variables = [*own.copied, *own.not_copied, own.record, own.seat, own.lease]
            with tf.device(own.device):
                gone = [
                    tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
                    for variable in variables
                ]
            with tf.control_dependencies(gone), tf.device(self._client.local):
                return tf.constant(0)

        self._client.call(tf.function(forget, autograph=False))

    def learned(self) -> list[int]:
        """How many pieces each learner has."""
        view = self.succession._lookout.look_at_members()
        return [view[process.place].learned for process in self.roster.learners]  # type: ignore[union-attr]

    def _state(self, index: int) -> list[Any]:
        import tensorflow as tf

        from pstraining.runtime.replication.chunks import Pieces

        own = self.succession._lookout.member(index)
        if index not in self._functions:

            def read() -> Any:
                made = [*Pieces(own).variables, *own.scalars.values(), own.record]
                return self._client.brought_home([variable.read_value() for variable in made])

            self._functions[index] = tf.function(read, autograph=False)
        *values, record = self._client.call(self._functions[index])
        return [*values, record[3]]

    def states(self) -> dict[str, list[Any]]:
        """All that steps have made of each in sync, by place."""
        look = self.succession._lookout
        return {process.place: self._state(look.index(process)) for process in self.roster.processes}

    def late(self, source: Process, learner: Process) -> int:
        """Give a learner its next piece a step too late; how many it has then."""
        import tensorflow as tf

        from pstraining.runtime.ps.store import int64
        from pstraining.runtime.replication.chunks import Learner

        look, home = self.succession._lookout, self._client.brought_home
        gives, takes = (Learner(look.member(look.index(process))) for process in (source, learner))
        number = self.learned()[self.roster.learners.index(learner)]
        group, begin, end = takes.pieces.all[number]

        def take(record: Any, values: Any) -> Any:
            life, fence = int64(learner.life), int64(self.succession.fence)
            return home(takes.learn((group, int64(begin), int64(end)), int64(number), life, fence, record, values))

        give = tf.function(lambda: home(gives.give(group, int64(begin), int64(end))), autograph=False)
        given = self._client.run(give)
        self.train()
        return int(self._client.call(tf.function(take, autograph=False), *given))

    def next_chief(self) -> None:
        """One of a later term."""
        self._term += 1
        self.succession = self._Succession(self.rig.store, term=self._term, restore=self._restore)
        self.teaching: Any = self.succession._teaching

    def _restore(self, formation: Assignment, fence: int) -> None:
        from pstraining.runtime.checkpoint.state import State
        from pstraining.runtime.chief.store_admin import StoreControl

        self._sets += 1
        fresh = State(0, self.rig.initial, {}, {})
        control = StoreControl(self.rig.store.formed(formation))
        # Shut, until a roster is opened on it.
        control.restore(fresh, term=fence, generation=-(GENERATION + self._sets), fresh=True)

    def _send_worker(self) -> None:
        formation = self.succession.formation(self.roster)
        if formation not in self._workers:
            worker = self.rig.workers[0]
            store = worker._store.formed(formation)
            self._workers[formation] = store, worker.on(store)
        store, self._worker = self._workers[formation]
        who = self.rig.identities[0]
        assert store.hello(who.worker, who.incarnation)
        self._worker.begin(Session(self.succession.fence, GENERATION + self._sets))
