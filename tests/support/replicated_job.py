"""A job of shards of two members in one process, in which a test controls the chief's view changes and a worker's
steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.ps.record import Assignment, Session
from pstraining.runtime.replication.view import Process, View
from tests.support.servers import GENERATION, Rig

SHARDS = 2


class ReplicatedJob:
    """A lost member loses only its state, and is then like a process that was just started.

    Args:
        client: of four servers.
        patch: ends with the test.
        rig: what is trained; a function of the client.
        batches: one for each step.
        shards: of two members each.
        chunk_bytes: size of a chunk.
        incremental_bytes: size of a shard's state from which members are learners.
    """

    def __init__(
        self,
        client: Any,
        patch: pytest.MonkeyPatch,
        rig: Callable[[Any], Rig],
        batches: Sequence[Any],
        *,
        shards: int = SHARDS,
        chunk_bytes: int,
        incremental_bytes: int = 0,
    ) -> None:
        from pstraining.runtime.ps import member
        from pstraining.runtime.replication import view_change
        from pstraining.runtime.replication.transfer import chunks

        addresses = {**client.cluster.addresses, "ps": client.cluster.ps[: 2 * shards]}
        patch.setattr(client, "cluster", replace(client.cluster, members=2, addresses=addresses))
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(chunks, "INCREMENTAL_BYTES", incremental_bytes)
        patch.setattr(member, "LEASE_SECONDS", 4000.0)  # tests trace functions in between
        self.rig, self._client, self._batches, self._shards = rig(client), client, batches, shards
        self._ViewChanger, self._term = view_change.ViewChanger, 0
        self.made = 0
        """The number of steps."""
        self._sets = 0
        self._workers: dict[Assignment, Any] = {}
        self._functions: dict[int, Any] = {}
        self.next_chief()
        self.establish()

    def establish(self, *, readmit: bool = False) -> View:
        """Poll and act until a view is active, and bind the worker to its members."""
        self.view = self.view_changer.establish(readmit=readmit)
        self._send_worker()
        return self.view

    def restore_initial(self) -> None:
        """Restore the initial state on all members."""
        self._restore(((0, 1),) * self._shards, self.view_changer.fence)
        assert self.establish() == self.view
        self.made = 0

    def train(self, steps: int = 1) -> None:
        """Let the worker train."""
        for batch in self._batches[self.made : self.made + steps]:
            reply = self._worker.step([batch])
            assert reply.session_valid
            assert reply.applied
        self.made += steps

    def lose(self, shard: int, member: int) -> None:
        """Replace a member's process: erase its state."""
        import tensorflow as tf

        own = self.rig.store.member(shard, member)

        def forget() -> Any:
            held = [*own.copied, *own.not_copied, own.record, *own.member_state]
            variables = [part for variable in held for part in getattr(variable, "variables", [variable])]
            with tf.device(own.device):
                handles = [variable.handle for variable in variables]
                handles += [arena._index() for arena in own.arenas]
                gone = [tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True) for handle in handles]
            with tf.control_dependencies(gone), tf.device(self._client.local):
                return tf.constant(0)

        self._client.call(tf.function(forget, autograph=False))

    def chunk_counts(self) -> list[int]:
        """Return the number of chunks that each learner has."""
        observation = self.view_changer._monitor.poll_members()
        return [observation[process.task].chunks for process in self.view.learners]  # type: ignore[union-attr]

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Return the values of servers' variables."""
        import tensorflow as tf

        emit = tf.function(lambda: self._client.to_local([v.read_value() for v in variables]), autograph=False)
        return list(self._client.call(emit))

    def _state(self, index: int) -> list[Any]:
        import tensorflow as tf

        from pstraining.runtime.replication.transfer.chunks import ChunkPlan

        own = self.view_changer._monitor.member(index)
        if index not in self._functions:

            def read() -> Any:
                made = [*ChunkPlan(own).variables, *own.scalars.values(), own.record]
                live = [arena.live(column) for arena in own.arenas for column in arena.columns.values()]
                return self._client.to_local([*live, *(variable.read_value() for variable in made)])

            self._functions[index] = tf.function(read, autograph=False)
        *values, record = self._client.call(self._functions[index])
        return [*values, record[3]]

    def states(self) -> dict[str, list[Any]]:
        """Return everything that steps have changed, for each member in sync, by task."""
        monitor = self.view_changer._monitor
        return {process.task: self._state(monitor.index(process)) for process in self.view.in_sync}

    def send_chunk_late(self, source: Process, learner: Process) -> int:
        """Give a learner its next chunk one step too send_chunk_late; return the number of chunks that it has then."""
        import tensorflow as tf

        from pstraining.runtime.ps.store import int64
        from pstraining.runtime.replication.messages import ChunkHeader
        from pstraining.runtime.replication.transfer.chunks import StateTransferOps

        monitor, home = self.view_changer._monitor, self._client.to_local
        source_ops, target_ops = (
            StateTransferOps(monitor.member(monitor.index(process))) for process in (source, learner)
        )
        number = self.chunk_counts()[self.view.learners.index(learner)]
        group, begin, end = target_ops.plan.chunks[number]

        header = ChunkHeader.pack(number, learner.incarnation, self.view_changer.fence, begin, end)

        def take(copy: Any) -> Any:
            return home(target_ops.receive_chunk(group, header, copy))

        read_chunk = tf.function(lambda: home(source_ops.read_chunk(group, int64(begin), int64(end))), autograph=False)
        given = self._client.run(read_chunk)
        self.train()
        return int(self._client.call(tf.function(take, autograph=False), given))

    def next_chief(self) -> None:
        """Replace the chief by one of a later term."""
        self._term += 1
        self.view_changer = self._ViewChanger(self.rig.store, term=self._term, restore=self._restore)
        self.state_transfer: Any = self.view_changer._state_transfer

    def _restore(self, assignment: Assignment, fence: int) -> None:
        from pstraining.runtime.checkpoint.state import State
        from pstraining.runtime.chief.store_admin import StoreAdmin

        self._sets += 1
        fresh = State(0, self.rig.initial, {}, {})
        control = StoreAdmin(self.rig.store.for_assignment(assignment))
        # The members reject steps until a view is activated on them.
        control.restore(fresh, fence=fence, generation=-(GENERATION + self._sets), fresh=True)

    def _send_worker(self) -> None:
        assignment = self.view_changer.assignment(self.view)
        if assignment not in self._workers:
            worker = self.rig.workers[0]
            store = worker._store.for_assignment(assignment)
            self._workers[assignment] = store, worker.bind(store)
        store, self._worker = self._workers[assignment]
        who = self.rig.identities[0]
        assert store.register(who.worker, who.incarnation)
        self._worker.start_session(Session(self.view_changer.fence, GENERATION + self._sets))
