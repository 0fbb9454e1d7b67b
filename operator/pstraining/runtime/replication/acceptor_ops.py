"""A member's acceptor on its server: the functions of `replication.acceptor` as compare-and-sets in traced functions.

The promised ballot is the fence of the shard's record. The record's generation is negative while the member is
inactive.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, clock, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.replication.encoding import BALLOT, CHUNKS, INCARNATION, IS_VOTER, TRANSFERRED_IN

MARKERS: Final = tuple(f"{contract.RUN_DIR}/{name}" for name in (contract.IN_SYNC_MARKER, *contract.OWNED_MARKERS))
"""Files by which a launcher knows its server's state."""
DRAINING: Final = tuple(f"{contract.RUN_DIR}/{name}" for name in contract.DRAINING_MARKERS)
"""Files of which a launcher writes at least one when its pod is being terminated."""
LEASE_SECONDS: Final = 10.0
"""Seconds that members apply steps without hearing from the chief."""


class AcceptorOps:
    """Emits operations on one member's acceptor; each returns 1 if it applied, else 0. int64[]."""

    def __init__(self, shard: Shard) -> None:
        assert shard.acceptor is not None  # noqa: S101 - the job has standbys
        self._shard, self._acceptor = shard, shard.acceptor

    def read(self, markers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the record, the acceptor's vector, whether the lease holds, and whether one of some files exists.

        All but the files are read at one moment. The vectors are zeros where the server is empty.

        Args:
            markers: the files' names; TensorFlow would look up a constant once, and in this process. string[n].

        Returns:
            int64[5], int64[n], bool[], bool[].
        """

        def body() -> tuple[Tensor, Tensor, Tensor]:
            lease = self._shard.lease
            assert lease is not None  # noqa: S101 - the job has standbys
            until = tf.cond(lease.initialized(), lease.read_value, lambda: tf.zeros([], tf.float64))
            return self._shard.record_or_zeros(), self._or_zeros(), until > clock()

        record, acceptor, leased = self._critical([], body)
        with tf.device(self._shard.device):
            return record, acceptor, leased, tf.size(tf.io.matching_files(markers)) > 0

    def on_prepare(self, incarnation: Tensor, fence: Tensor, new_incarnation: Tensor) -> Tensor:
        """Promise to follow no lower ballot; the member applies no steps until it is activated.

        Args:
            incarnation: of the process that is addressed; 0: one that has none yet. int64[].
            fence: the ballot's number. int64[].
            new_incarnation: given to a process that has none. int64[].
        """

        def body(incarnation: Tensor, fence: Tensor, new_incarnation: Tensor) -> Tensor:
            record, acceptor = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(acceptor[INCARNATION], incarnation) & (fence > record[RecordField.FENCE])
            shut = tf.concat(
                [[fence, -tf.abs(record[RecordField.GENERATION])], record[RecordField.GENERATION + 1 :]], 0
            )
            named = tf.concat([[tf.where(tf.equal(incarnation, 0), new_incarnation, incarnation)], acceptor[1:]], 0)

            def write() -> Tensor:
                lease = self._shard.lease
                assert lease is not None  # noqa: S101 - the job has standbys
                with tf.control_dependencies([lease.assign(tf.zeros([], tf.float64), read_value=False)]):
                    return self._write(named, shut)

            return tf.cond(meant, write, not_applied)

        return self._critical([incarnation, fence, new_incarnation], body)

    def on_accept(self, incarnation: Tensor, fence: Tensor, view: Tensor, founding: Tensor) -> Tensor:
        """Accept a view whose ballot was promised; with `founding` 1, vote from then on."""

        def body(incarnation: Tensor, fence: Tensor, view: Tensor, founding: Tensor) -> Tensor:
            record, acceptor = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(acceptor[INCARNATION], incarnation) & tf.equal(record[RecordField.FENCE], fence)
            head = tf.stack(
                [
                    acceptor[INCARNATION],
                    tf.maximum(acceptor[IS_VOTER], founding),
                    acceptor[TRANSFERRED_IN],
                    fence,
                    _chunks(acceptor, fence),
                ]
            )
            return tf.cond(meant, lambda: self._write(tf.concat([head, view], 0)), not_applied)

        return self._critical([incarnation, fence, view, founding], body)

    def on_admit(self, incarnation: Tensor, fence: Tensor, view: Tensor) -> Tensor:
        """Vote from then on, and accept the view that counts."""

        def body(incarnation: Tensor, fence: Tensor, view: Tensor) -> Tensor:
            record, acceptor = self._shard.record_or_zeros(), self._or_zeros()
            meant = (
                tf.equal(acceptor[INCARNATION], incarnation)
                & tf.equal(acceptor[IS_VOTER], 0)
                & (record[RecordField.FENCE] <= fence)
            )
            head = tf.stack(
                [
                    acceptor[INCARNATION],
                    tf.constant(1, tf.int64),
                    acceptor[TRANSFERRED_IN],
                    fence,
                    _chunks(acceptor, fence),
                ]
            )
            taken = tf.concat([head, view], 0)
            fenced = tf.concat([[fence], record[1:]], 0)
            return tf.cond(meant, lambda: self._write(taken, fenced), not_applied)

        return self._critical([incarnation, fence, view], body)

    def on_activate(self, incarnation: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
        """Apply steps under the view of this ballot for `seconds` from now."""

        def body(incarnation: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
            record, acceptor = self._shard.record_or_zeros(), self._or_zeros()
            meant = (
                tf.equal(acceptor[INCARNATION], incarnation)
                & tf.equal(record[RecordField.FENCE], fence)
                & tf.equal(acceptor[BALLOT], fence)
            )
            let_in = tf.concat(
                [
                    record[: RecordField.GENERATION],
                    [tf.abs(record[RecordField.GENERATION])],
                    record[RecordField.GENERATION + 1 :],
                ],
                0,
            )

            def renew() -> Tensor:
                lease = self._shard.lease
                assert lease is not None  # noqa: S101 - the job has standbys
                written = [
                    self._shard.record.assign(let_in, read_value=False),
                    lease.assign(clock() + seconds, read_value=False),
                ]
                return with_dependencies(written, applied())

            return tf.cond(meant, renew, not_applied)

        return self._critical([incarnation, fence, seconds], body)

    def on_transfer(self, incarnation: Tensor, fence: Tensor, record: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Take the whole state of a member that applies no steps.

        Args:
            incarnation: of the process that is addressed. int64[].
            fence: the ballot's number, which both have promised. int64[].
            record: the other member's. int64[5].
            values: of its `Shard.copied`.
        """

        def body(incarnation: Tensor, fence: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            acceptor, shard = self._or_zeros(), self._shard
            own = shard.record_or_zeros()
            meant = (
                tf.equal(acceptor[INCARNATION], incarnation)
                & tf.equal(own[RecordField.FENCE], fence)
                & tf.equal(record[RecordField.FENCE], fence)
            )

            def write() -> Tensor:
                written = [v.assign(value, read_value=False) for v, value in zip(shard.copied, values, strict=True)]
                written += [v.assign(v.initial(), read_value=False) for v in shard.not_copied]
                taken = with_field(acceptor, TRANSFERRED_IN, fence)
                with tf.control_dependencies(written):
                    return self._write(taken, record)

            return tf.cond(meant, write, not_applied)

        return self._critical([incarnation, fence, record, *values], body)

    def on_restore(self, incarnation: Tensor, fence: Tensor) -> Tensor:
        """Record that the member's state comes from a checkpoint, restored under this ballot."""

        def body(incarnation: Tensor, fence: Tensor) -> Tensor:
            record, acceptor = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(acceptor[INCARNATION], incarnation) & tf.equal(record[RecordField.FENCE], fence)
            taken = with_field(acceptor, TRANSFERRED_IN, fence)
            return tf.cond(meant, lambda: self._write(taken), not_applied)

        return self._critical([incarnation, fence], body)

    def write_marker(self, incarnation: Tensor, text: Tensor) -> Tensor:
        """Write a text to MARKERS where the server runs, if it is that incarnation.

        Args:
            incarnation: of the process that is addressed. int64[].
            text: the contents of the files. string[].
        """

        def body(incarnation: Tensor, text: Tensor) -> Tensor:
            def write() -> Tensor:
                return with_dependencies(
                    [tf.raw_ops.WriteFile(filename=name, contents=text) for name in MARKERS], applied()
                )

            return tf.cond(tf.equal(self._or_zeros()[INCARNATION], incarnation), write, not_applied)

        return self._critical([incarnation, text], body)

    def read_state(self) -> tuple[Tensor, list[Tensor]]:
        """Return what `on_transfer` takes: the record and `Shard.copied`, at one moment."""

        def body() -> tuple[Tensor, list[Tensor]]:
            return self._shard.record_or_zeros(), [variable.read_value() for variable in self._shard.copied]

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def _write(self, acceptor: Tensor, record: Tensor | None = None) -> Tensor:
        written = [self._acceptor.assign(acceptor, read_value=False)]
        if record is not None:
            written.append(self._shard.record.assign(record, read_value=False))
        return with_dependencies(written, applied())

    def _or_zeros(self) -> Tensor:
        acceptor = self._acceptor
        return tf.cond(acceptor.initialized(), acceptor.read_value, lambda: tf.zeros(acceptor.shape, tf.int64))

    def _critical(self, inputs: Sequence[Tensor], body: Any) -> Any:
        return critical(self._shard.device, self._shard.container, inputs, body)


def with_field(acceptor: Tensor, field: int, value: Tensor) -> Tensor:
    """Return an acceptor's vector with another value of one field."""
    return tf.concat([acceptor[:field], [value], acceptor[field + 1 :]], 0)


def _chunks(acceptor: Tensor, fence: Tensor) -> Tensor:
    """Return how many chunks were received under the view of this ballot. int64[]."""
    return tf.where(tf.equal(acceptor[BALLOT], fence), acceptor[CHUNKS], 0)
