"""The chief's calls to single processes: to a member's acceptor on its server, or to a witness over TCP.

Each call requests one compare-and-set. The next poll shows whether it applied, so a lost reply needs no special
handling. `replication.acceptor` decides the effect of each request.
"""

import time
from collections.abc import Callable, Hashable
from contextlib import suppress

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.member import LockstepRounds
from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication import encoding, witness
from pstraining.runtime.replication.acceptor_ops import AcceptorOps
from pstraining.runtime.replication.monitor import PROBE_TIMEOUT_SECONDS, MemberMonitor
from pstraining.runtime.replication.view import Ballot, Process, View
from pstraining.runtime.replication.witness import Request, Verb


class MemberCalls:
    """Calls to the processes that a monitor polls.

    Every method raises `ShardLostError` if the process is a member and its server is lost. A witness that does not
    answer is ignored.
    """

    def __init__(self, monitor: MemberMonitor) -> None:
        self._monitor, self._client = monitor, monitor.store.client
        self._layout = monitor.store.servers.cluster.layout
        self._traced: dict[Hashable, TracedFunction] = {}

    def prepare(self, process: Process, ballot: Ballot) -> None:
        """Request a promise to follow no lower ballot."""
        if not self._ask_witness(process, Request(Verb.PREPARE, process.incarnation, ballot, layout=self._layout)):
            new_incarnation = process.incarnation or time.time_ns() + self._monitor.index(process)
            self._call(AcceptorOps.on_prepare, process, _number(ballot), int64(new_incarnation))

    def accept(self, process: Process, view: View, *, founding: bool = False) -> None:
        """Send a view whose ballot the process has promised; with `founding`, it votes from then on."""
        request = Request(Verb.ACCEPT, process.incarnation, view.ballot, view, founding, self._layout)
        if not self._ask_witness(process, request):
            arguments = _number(view.ballot), self._encoded(view), int64(int(founding))
            self._call(AcceptorOps.on_accept, process, *arguments)

    def admit(self, process: Process, view: View) -> None:
        """Let a process without memory vote, and send it the view that counts."""
        if not self._ask_witness(
            process, Request(Verb.ADMIT, process.incarnation, view.ballot, view, layout=self._layout)
        ):
            self._call(AcceptorOps.on_admit, process, _number(view.ballot), self._encoded(view))

    def activate(self, process: Process, ballot: Ballot, seconds: float) -> bool:
        """Let a member apply steps for some seconds from now; return whether it does."""
        return self._call(AcceptorOps.on_activate, process, _number(ballot), tf.constant(seconds, tf.float64))

    def transfer(self, source: Process, target: Process, ballot: Ballot) -> None:
        """Give a member the whole state of another one; both have promised the ballot, and apply no steps."""
        source_ops, target_ops = (self._monitor.acceptor(self._monitor.index(process)) for process in (source, target))

        def copy(incarnation: Tensor, fence: Tensor) -> Tensor:
            return target_ops.on_transfer(incarnation, fence, source_ops.read_state())

        key = AcceptorOps.on_transfer, self._monitor.index(source), self._monitor.index(target)
        self._run(key, copy, int64(target.incarnation), _number(ballot))

    def restored(self, process: Process, ballot: Ballot) -> None:
        """Record that a member's state comes from a checkpoint, restored under this ballot."""
        self._call(AcceptorOps.on_restore, process, _number(ballot))

    def write_marker(self, process: Process, text: str) -> None:
        """Write a text to the files that the member's launcher reads."""
        self._call(AcceptorOps.write_marker, process, tf.constant(text))

    def start_rounds(self, process: Process, session: Tensor, attempt: int) -> None:
        """Restart rounds on a member that applies no steps, with this attempt's number."""
        index = self._monitor.index(process)

        def start(session: Tensor, attempt: Tensor) -> Tensor:
            return self._round_ops(index, standby=False).start(session, attempt)

        self._run((LockstepRounds.start, index), start, session, int64(attempt))

    def follow(self, process: Process, session: Tensor, step: int, *, standby: bool) -> bool:
        """Let a member apply the step after this one, which others have applied; return whether it has."""
        index = self._monitor.index(process)

        def follow(session: Tensor, step: Tensor) -> Tensor:
            return self._round_ops(index, standby=standby).follow(session, step)

        return bool(self._run((LockstepRounds.follow, index, standby), follow, session, int64(step)))

    def _round_ops(self, index: int, *, standby: bool) -> LockstepRounds:
        make = self._monitor.store.updates.member_round_ops
        if make is None:
            raise ValueError("members of this update mode are not in lockstep, and have no rounds")
        return make(self._monitor.member(index), standby)

    def _ask_witness(self, process: Process, request: Request) -> bool:
        """Send a request if the process is a witness; return whether it is one."""
        address = self._monitor.witnesses.get(process.task)
        if address:
            with suppress(OSError):
                witness.ask(address, request, PROBE_TIMEOUT_SECONDS)
        return bool(address)

    def _call(self, operation: Callable[..., Tensor], process: Process, *arguments: Tensor) -> bool:
        """Request a compare-and-set, a method of `AcceptorOps`, from a member's acceptor; return whether it applied."""
        acceptor, key = self._monitor.acceptor(self._monitor.index(process)), self._monitor.index(process)

        def emit(*inputs: Tensor) -> Tensor:
            return operation(acceptor, *inputs)

        return bool(self._run((operation, key), emit, int64(process.incarnation), *arguments))

    def _run(self, key: Hashable, emit: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """Run `emit`, traced once for each key, and return its result."""
        if key not in self._traced:
            home = self._client.to_local
            self._traced[key] = tf.function(lambda *inputs: home(emit(*inputs)), autograph=False)
        return self._client.call(self._traced[key], *arguments)

    def _encoded(self, view: View) -> Tensor:
        """Return a view as an acceptor receives it, for all shards of the job. int64[1 + 2 * shards * members]."""
        cluster = self._monitor.store.servers.cluster
        entries = encoding.encode(view, self._monitor.names, cluster.members).tolist()
        length = encoding.size(cluster.shards, cluster.members) - encoding.HEAD
        return tf.constant(entries + [0] * (length - len(entries)), tf.int64)


def _number(ballot: Ballot) -> Tensor:
    return int64(encoding.number(ballot))
