"""The chief's side of a state transfer: it sends chunks of the state to learners while training continues."""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication.encoding import number as number_of
from pstraining.runtime.replication.messages import NOT_A_LEARNER, ChunkHeader
from pstraining.runtime.replication.monitor import MemberMonitor
from pstraining.runtime.replication.transfer.chunks import StateTransferOps
from pstraining.runtime.replication.view import Ballot, Process, ProcessStatus, View
from pstraining.runtime.telemetry.events import event

MAX_MISSED_STEPS: Final = 10
"""Times that a chunk may miss its step before the whole state is transferred between two steps."""


class StateTransfer:
    """The learners of the active view, and the progress of each."""

    def __init__(self, monitor: MemberMonitor) -> None:
        self._monitor, self._client = monitor, monitor.store.client
        self._ops: dict[int, StateTransferOps] = {}
        self._traced: dict[Hashable, TracedFunction] = {}
        self._view: View | None = None
        self._began = 0.0
        self._received: dict[Process, int] = {}
        """The number of chunks that each learner has."""
        self._late: dict[Process, int] = {}
        """How often the next chunk missed its step."""
        self._given_up: set[Process] = set()

    def on_new_view(self, view: View) -> None:
        """Restart the transfers for the learners of this view if the view has changed."""
        if view != self._view:
            self._view, self._began, self._received = view, time.monotonic(), {}
            self._late = dict.fromkeys(view.learners, 0)

    def classify(
        self, members: Sequence[Process], statuses: dict[Process, ProcessStatus]
    ) -> tuple[list[Process], list[Process]]:
        """Return the members that can be in sync under the next view, and its learners.

        Learners are promoted together: the promotion of a single learner would restart the transfers to the others.
        """
        promotable = [process for process in members if process in self._given_up]
        learners = self._view.learners if self._view else ()
        left = [process for process in learners if process not in self._given_up]
        if left and all(process in statuses and self._is_done(process, statuses[process].chunks) for process in left):
            promotable += left
        return promotable, [process for process in members if process not in promotable]

    def run(self, seconds: float) -> bool:
        """Send chunks for `seconds`; return whether any learner lacked a chunk.

        Raises:
            ShardLostError: a server is lost.
        """
        until, is_any, view = time.monotonic() + seconds, False, self._view
        while view and (due := self._due(view)):
            is_any = True
            for process in due:
                if not self._send_chunk(view, process) or time.monotonic() > until:
                    return True
        return is_any

    def begin(self, source: Process, target: Process, fence: int) -> bool:
        """Start a learner under the view of this ballot, from an inactive member; return whether it has started."""
        return self._apply(StateTransferOps.begin, source, target, int64(fence))

    def finish(self, source: Process, target: Process, fence: int, former: Ballot) -> bool:
        """Transfer the small state to a learner that has every chunk; return whether it applied."""
        return self._apply(StateTransferOps.finish, source, target, int64(fence), int64(number_of(former)))

    def warm_up(self, task: str) -> Iterator[None]:
        """Trace the functions for a member that may return as this task, one at a time, without an effect.

        Raises:
            ShardLostError: a server is lost.
        """
        (own,) = [own for own in self._monitor.voters.shards if task in own]
        absent = Process(task, -1)
        for source in (Process(other, -1) for other in own if other != task):
            self.begin(source, absent, -1)
            yield
            self.finish(source, absent, -1, Ballot(0, 0))
            yield

    def _due(self, view: View) -> list[Process]:
        return [p for p in view.learners if p not in self._given_up and not self._is_done(p, self._received.get(p, 0))]

    def _is_done(self, process: Process, received: int) -> bool:
        return received == len(self._ops_of(process).plan.chunks)

    def _send_chunk(self, view: View, target: Process) -> bool:
        """Send one chunk; return whether more can be sent now. The chunk is refused if its step is over."""
        shard = self._monitor.shard(target)
        source, number = view.shards[shard][-1], self._received.get(target, 0)
        chunk = self._ops_of(target).plan.chunks[number]
        fence = number_of(view.ballot)
        header = ChunkHeader.pack(number, target.incarnation, fence, chunk.begin, chunk.end)
        received = int(self._client.call(self._sender(source, target, chunk.group), header))
        if received == NOT_A_LEARNER:  # the source or the target has promised another ballot
            return False
        late = self._late[target] = 0 if received > number else self._late[target] + 1
        self._received[target] = received
        if late >= MAX_MISSED_STEPS:
            self._given_up.add(target)
            reason = (
                f"a step was applied while a chunk was sent, {late} times: the whole state is sent between two steps"
            )
            event("state_transfer", phase="given_up", target=target.task, chunks=received, reason=reason)
        elif received > number and self._is_done(target, received):
            seconds = round(time.monotonic() - self._began, 3)
            names = {"source": source.task, "target": target.task}
            event("state_transfer", phase="chunks", **names, chunks=received, seconds=seconds)
        return True

    def _ops_of(self, process: Process) -> StateTransferOps:
        index = self._monitor.index(process)
        if index not in self._ops:
            self._ops[index] = StateTransferOps(self._monitor.member(index))
        return self._ops[index]

    def _apply(self, operation: Callable[..., Tensor], source: Process, target: Process, *arguments: Tensor) -> bool:
        """Run a method of `StateTransferOps` on the target with the source's small state; return whether it applied."""
        source_ops, target_ops = self._ops_of(source), self._ops_of(target)

        def apply(*inputs: Tensor) -> Tensor:
            return operation(target_ops, *inputs, source_ops.small_state())

        function = self._function((operation, *self._indices(source, target)), apply)
        return bool(self._client.call(function, int64(target.incarnation), *arguments))

    def _sender(self, source: Process, target: Process, group: int) -> TracedFunction:
        """Return the traced function that sends chunks of a group."""
        source_ops, target_ops = self._ops_of(source), self._ops_of(target)

        def send(header: Tensor) -> Tensor:
            chunk = ChunkHeader.unpack(header)
            return target_ops.receive_chunk(group, header, source_ops.read_chunk(group, chunk.begin, chunk.end))

        return self._function((StateTransferOps.receive_chunk, group, *self._indices(source, target)), send)

    def _indices(self, source: Process, target: Process) -> tuple[int, int]:
        return self._monitor.index(source), self._monitor.index(target)

    def _function(self, key: Hashable, emit: Callable[..., Tensor]) -> TracedFunction:
        if key not in self._traced:
            home = self._client.to_local
            self._traced[key] = tf.function(lambda *inputs: home(emit(*inputs)), autograph=False)
        return self._traced[key]
