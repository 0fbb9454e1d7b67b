"""A member's acceptor on its server: the functions of `replication.acceptor` as compare-and-sets in traced functions.

The promised ballot is the fence of the shard's record. The record's generation is negative while the member is
inactive.
"""

from collections.abc import Callable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.model.tensor import Structure, Tensor
from pstraining.runtime.ps.critical_section import applied, clock, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tensors import field, with_field
from pstraining.runtime.replication.messages import AcceptorState, MemberReply, StateCopy

MARKERS: Final = tuple(f"{contract.RUN_DIR}/{name}" for name in (contract.IN_SYNC_MARKER, *contract.OWNED_MARKERS))
"""Files in which a launcher reads its server's state."""
DRAINING: Final = tuple(f"{contract.RUN_DIR}/{name}" for name in contract.DRAINING_MARKERS)
"""Files of which a launcher writes at least one when its pod is being terminated."""


class AcceptorOps:
    """Emits operations on one member's acceptor; each returns 1 if it applied, else 0. int64[].

    Args:
        shard: the member's shard.

    Raises:
        ValueError: the job has no standbys.
    """

    def __init__(self, shard: Shard) -> None:
        if shard.member_state is None:
            raise ValueError("a job without standbys has no acceptors")
        self._shard = shard
        self._member_state = shard.member_state
        self._acceptor, self._lease = shard.member_state

    def read(self, markers: Tensor) -> MemberReply:
        """Return the member's reply to a poll; the record, the acceptor and the lease are read at one moment.

        Args:
            markers: names of files of which one exists if the member is draining. TensorFlow would look up a constant
                once, and in this process. string[n].
        """

        def body() -> tuple[Tensor, Tensor, Tensor]:
            leased = tf.cond(self._lease.initialized(), self._member_state.is_leased, lambda: tf.constant(False))
            return self._shard.record_or_zeros(), self._or_zeros(), leased

        record, acceptor, leased = self._critical([], body)
        with tf.device(self._shard.device):
            return MemberReply(record, acceptor, leased, tf.size(tf.io.matching_files(markers)) > 0)

    def on_prepare(self, incarnation: Tensor, fence: Tensor, new_incarnation: Tensor) -> Tensor:
        """Promise to follow no lower ballot; the member applies no steps until it is activated.

        Args:
            incarnation: the target process's; 0 for a process without an incarnation. int64[].
            fence: the ballot's number. int64[].
            new_incarnation: the incarnation for a process without one. int64[].
        """

        def body(incarnation: Tensor, fence: Tensor, new_incarnation: Tensor) -> Tensor:
            record, own = self._shard.record_or_zeros(), self._state()
            addressed = tf.equal(own.incarnation, incarnation) & (fence > field(record, RecordField.FENCE))
            named = own._replace(incarnation=tf.where(tf.equal(incarnation, 0), new_incarnation, incarnation))

            def write() -> Tensor:
                with tf.control_dependencies([self._lease.assign(tf.zeros([], tf.float64), read_value=False)]):
                    return self._write(named, with_field(inactive(record), RecordField.FENCE, fence))

            return tf.cond(addressed, write, not_applied)

        return self._critical([incarnation, fence, new_incarnation], body)

    def on_accept(self, incarnation: Tensor, fence: Tensor, view: Tensor, founding: Tensor) -> Tensor:
        """Accept a view whose ballot was promised; with `founding` 1, vote from then on."""

        def body(incarnation: Tensor, fence: Tensor, view: Tensor, founding: Tensor) -> Tensor:
            record, own = self._shard.record_or_zeros(), self._state()
            accepted = own._replace(
                is_voter=tf.maximum(own.is_voter, founding), ballot=fence, chunks=own.received(fence), view=view
            )
            promised = _has_promised(own, record, incarnation, fence)
            return tf.cond(promised, lambda: self._write(accepted), not_applied)

        return self._critical([incarnation, fence, view, founding], body)

    def on_admit(self, incarnation: Tensor, fence: Tensor, view: Tensor) -> Tensor:
        """Vote from then on, and accept the view that counts."""

        def body(incarnation: Tensor, fence: Tensor, view: Tensor) -> Tensor:
            record, own = self._shard.record_or_zeros(), self._state()
            addressed = tf.equal(own.incarnation, incarnation) & tf.equal(own.is_voter, 0)
            addressed &= field(record, RecordField.FENCE) <= fence
            admitted = own._replace(
                is_voter=tf.constant(1, tf.int64), ballot=fence, chunks=own.received(fence), view=view
            )
            fenced = with_field(record, RecordField.FENCE, fence)
            return tf.cond(addressed, lambda: self._write(admitted, fenced), not_applied)

        return self._critical([incarnation, fence, view], body)

    def on_activate(self, incarnation: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
        """Apply steps under the view of this ballot for `seconds` from now."""

        def body(incarnation: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
            record, own = self._shard.record_or_zeros(), self._state()
            active = with_field(record, RecordField.GENERATION, tf.abs(field(record, RecordField.GENERATION)))

            def renew() -> Tensor:
                written = [
                    self._shard.record.assign(active, read_value=False),
                    self._lease.assign(clock() + seconds, read_value=False),
                ]
                return with_dependencies(written, applied())

            addressed = _has_promised(own, record, incarnation, fence) & tf.equal(own.ballot, fence)
            return tf.cond(addressed, renew, not_applied)

        return self._critical([incarnation, fence, seconds], body)

    def on_transfer(self, incarnation: Tensor, fence: Tensor, copy: StateCopy) -> Tensor:
        """Take the whole state of a member that applies no steps: once under a ballot, and while inactive.

        Args:
            incarnation: the target process's. int64[].
            fence: the ballot's number, which both have promised. int64[].
            copy: the other member's record, and the values of its `Shard.copied`.
        """

        def body(incarnation: Tensor, fence: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            own, shard = self._state(), self._shard
            former = shard.record_or_zeros()
            both = _has_promised(own, former, incarnation, fence) & tf.equal(field(record, RecordField.FENCE), fence)
            both &= (field(former, RecordField.GENERATION) <= 0) & tf.not_equal(own.transferred_in, fence)

            def write() -> Tensor:
                written = [v.assign(value, read_value=False) for v, value in zip(shard.copied, values, strict=True)]
                written += [v.assign(v.initial(), read_value=False) for v in shard.not_copied]
                with tf.control_dependencies(written):
                    rebuilt = [arena.rebuild() for arena in shard.arenas]
                with tf.control_dependencies(rebuilt):
                    return self._write(own._replace(transferred_in=fence), record)

            return tf.cond(both, write, not_applied)

        return self._critical([incarnation, fence, copy.record, *copy.values], body)

    def on_restore(self, incarnation: Tensor, fence: Tensor) -> Tensor:
        """Record that the member's state comes from a checkpoint, restored under this ballot."""

        def body(incarnation: Tensor, fence: Tensor) -> Tensor:
            record, own = self._shard.record_or_zeros(), self._state()
            promised = _has_promised(own, record, incarnation, fence)
            return tf.cond(promised, lambda: self._write(own._replace(transferred_in=fence)), not_applied)

        return self._critical([incarnation, fence], body)

    def write_marker(self, incarnation: Tensor, text: Tensor) -> Tensor:
        """Write a text to MARKERS where the server runs, if it is that incarnation.

        Args:
            incarnation: the target process's. int64[].
            text: the contents of the files. string[].
        """

        def body(incarnation: Tensor, text: Tensor) -> Tensor:
            def write() -> Tensor:
                return with_dependencies(
                    [tf.raw_ops.WriteFile(filename=name, contents=text) for name in MARKERS], applied()
                )

            return tf.cond(tf.equal(self._state().incarnation, incarnation), write, not_applied)

        return self._critical([incarnation, text], body)

    def read_state(self) -> StateCopy:
        """Return the copy of the state for `on_transfer` on another member."""
        return self._copy(lambda: [variable.read_value() for variable in self._shard.copied])

    def _copy(self, read: Callable[[], list[Tensor]]) -> StateCopy:
        """Return the record and the result of `read`, both read at one moment."""
        return self._critical([], lambda: StateCopy(self._shard.record_or_zeros(), read()))

    def _write(self, acceptor: AcceptorState, record: Tensor | None = None) -> Tensor:
        written = [self._acceptor.assign(acceptor.pack(), read_value=False)]
        if record is not None:
            written.append(self._shard.record.assign(record, read_value=False))
        return with_dependencies(written, applied())

    def _state(self) -> AcceptorState:
        return AcceptorState.unpack(self._or_zeros())

    def _or_zeros(self) -> Tensor:
        acceptor = self._acceptor
        return tf.cond(acceptor.initialized(), acceptor.read_value, lambda: tf.zeros(acceptor.shape, tf.int64))

    def _critical(self, inputs: Sequence[Tensor], body: Callable[..., Structure]) -> Structure:
        return critical(self._shard.device, self._shard.container, inputs, body)


def _has_promised(own: AcceptorState, record: Tensor, incarnation: Tensor, fence: Tensor) -> Tensor:
    """Return whether this process is the target, and has promised the ballot. bool[]."""
    return tf.equal(own.incarnation, incarnation) & tf.equal(field(record, RecordField.FENCE), fence)


def inactive(record: Tensor) -> Tensor:
    """Return a record of the same state that applies no steps. int64[5]."""
    return with_field(record, RecordField.GENERATION, -tf.abs(field(record, RecordField.GENERATION)))
