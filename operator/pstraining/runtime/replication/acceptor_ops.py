"""A shard member's seat on its server: what `replication.view` says of it, as compare-and-sets to emit in a traced
function.

What it has promised is the fence of its record; that it makes no steps is that the record's generation is negative.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import after, clock, critical, one, zero
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.replication.encoding import BALLOT, COPIED, LEARNED, LIFE, VOTES

MARKERS: Final = tuple(f"{contract.RUN_DIR}/{name}" for name in (contract.IN_SYNC_MARKER, contract.OWNED_MARKER))
"""Files that tell a launcher what its server is."""
LEAVING: Final = f"{contract.RUN_DIR}/{contract.LEAVING_MARKER}"
"""A file that tells what its launcher was told: to end."""
LEASE_SECONDS: Final = 10.0
"""How long members make steps without a word of the chief."""


class Seat:
    """Emits what is done to one member's seat; each returns 1 if it is done. int64[]."""

    def __init__(self, shard: Shard) -> None:
        assert shard.seat is not None  # noqa: S101 - the job has standbys
        self._shard, self._seat = shard, shard.seat

    def read(self, leaving: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The record and the seat, zeros where the server is empty, whether its lease holds, all of one moment; and
        whether a file is there.

        Args:
            leaving: its name. A constant TensorFlow would look for here, once: it takes files for constants. string[].

        Returns:
            int64[5], int64[n], bool[], bool[].
        """

        def body() -> tuple[Tensor, Tensor, Tensor]:
            lease = self._shard.lease
            assert lease is not None  # noqa: S101 - the job has standbys
            until = tf.cond(lease.initialized(), lease.read_value, lambda: tf.zeros([], tf.float64))
            return self._shard.record_or_zeros(), self._or_zeros(), until > clock()

        record, seat, leased = self._critical([], body)
        with tf.device(self._shard.device):
            return record, seat, leased, tf.size(tf.io.matching_files(leaving)) > 0

    def promise(self, life: Tensor, fence: Tensor, new_life: Tensor) -> Tensor:
        """Follow no lower ballot; no steps are made until it is opened.

        Args:
            life: of the process that is meant; 0: one that has no name yet. int64[].
            fence: the ballot's number. int64[].
            new_life: its name then. int64[].
        """

        def body(life: Tensor, fence: Tensor, new_life: Tensor) -> Tensor:
            record, seat = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(seat[LIFE], life) & (fence > record[RecordField.FENCE])
            shut = tf.concat(
                [[fence, -tf.abs(record[RecordField.GENERATION])], record[RecordField.GENERATION + 1 :]], 0
            )
            named = tf.concat([[tf.where(tf.equal(life, 0), new_life, life)], seat[1:]], 0)

            def write() -> Tensor:
                lease = self._shard.lease
                assert lease is not None  # noqa: S101 - the job has standbys
                with tf.control_dependencies([lease.assign(tf.zeros([], tf.float64), read_value=False)]):
                    return self._write(named, shut)

            return tf.cond(meant, write, zero)

        return self._critical([life, fence, new_life], body)

    def adopt(self, life: Tensor, fence: Tensor, roster: Tensor, founding: Tensor) -> Tensor:
        """Take a roster whose ballot was promised; with `founding` 1, and a seat with it."""

        def body(life: Tensor, fence: Tensor, roster: Tensor, founding: Tensor) -> Tensor:
            record, seat = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(seat[LIFE], life) & tf.equal(record[RecordField.FENCE], fence)
            head = tf.stack([seat[LIFE], tf.maximum(seat[VOTES], founding), seat[COPIED], fence, _learned(seat, fence)])
            return tf.cond(meant, lambda: self._write(tf.concat([head, roster], 0)), zero)

        return self._critical([life, fence, roster, founding], body)

    def seat(self, life: Tensor, fence: Tensor, roster: Tensor) -> Tensor:
        """Take a seat, with the roster that counts."""

        def body(life: Tensor, fence: Tensor, roster: Tensor) -> Tensor:
            record, seat = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(seat[LIFE], life) & tf.equal(seat[VOTES], 0) & (record[RecordField.FENCE] <= fence)
            head = tf.stack([seat[LIFE], one(), seat[COPIED], fence, _learned(seat, fence)])
            taken = tf.concat([head, roster], 0)
            fenced = tf.concat([[fence], record[1:]], 0)
            return tf.cond(meant, lambda: self._write(taken, fenced), zero)

        return self._critical([life, fence, roster], body)

    def open(self, life: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
        """Make steps under the roster of this ballot, or go on making them, for so many seconds."""

        def body(life: Tensor, fence: Tensor, seconds: Tensor) -> Tensor:
            record, seat = self._shard.record_or_zeros(), self._or_zeros()
            meant = (
                tf.equal(seat[LIFE], life) & tf.equal(record[RecordField.FENCE], fence) & tf.equal(seat[BALLOT], fence)
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
                return after(written, one())

            return tf.cond(meant, renew, zero)

        return self._critical([life, fence, seconds], body)

    def fill(self, life: Tensor, fence: Tensor, record: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Take the whole state of a member that makes no steps.

        Args:
            life: of the process that is meant. int64[].
            fence: the ballot's number, which both have promised. int64[].
            record: the other member's. int64[5].
            values: of its `Shard.copied`.
        """

        def body(life: Tensor, fence: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            seat, shard = self._or_zeros(), self._shard
            own = shard.record_or_zeros()
            meant = (
                tf.equal(seat[LIFE], life)
                & tf.equal(own[RecordField.FENCE], fence)
                & tf.equal(record[RecordField.FENCE], fence)
            )

            def write() -> Tensor:
                written = [v.assign(value, read_value=False) for v, value in zip(shard.copied, values, strict=True)]
                written += [v.assign(v.initial(), read_value=False) for v in shard.not_copied]
                taken = noted(seat, COPIED, fence)
                with tf.control_dependencies(written):
                    return self._write(taken, record)

            return tf.cond(meant, write, zero)

        return self._critical([life, fence, record, *values], body)

    def filled(self, life: Tensor, fence: Tensor) -> Tensor:
        """Note that it was given its state under this ballot."""

        def body(life: Tensor, fence: Tensor) -> Tensor:
            record, seat = self._shard.record_or_zeros(), self._or_zeros()
            meant = tf.equal(seat[LIFE], life) & tf.equal(record[RecordField.FENCE], fence)
            taken = noted(seat, COPIED, fence)
            return tf.cond(meant, lambda: self._write(taken), zero)

        return self._critical([life, fence], body)

    def mark(self, life: Tensor, text: Tensor) -> Tensor:
        """Write a text to MARKERS where the server runs, as the process of that life alone.

        Args:
            life: of the process that is meant. int64[].
            text: their contents. string[].
        """

        def body(life: Tensor, text: Tensor) -> Tensor:
            def write() -> Tensor:
                return after([tf.raw_ops.WriteFile(filename=name, contents=text) for name in MARKERS], one())

            return tf.cond(tf.equal(self._or_zeros()[LIFE], life), write, zero)

        return self._critical([life, text], body)

    def state(self) -> tuple[Tensor, list[Tensor]]:
        """What another member is filled with: the record and `Shard.copied`, of one moment."""

        def body() -> tuple[Tensor, list[Tensor]]:
            return self._shard.record_or_zeros(), [variable.read_value() for variable in self._shard.copied]

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def _write(self, seat: Tensor, record: Tensor | None = None) -> Tensor:
        written = [self._seat.assign(seat, read_value=False)]
        if record is not None:
            written.append(self._shard.record.assign(record, read_value=False))
        return after(written, one())

    def _or_zeros(self) -> Tensor:
        seat = self._seat
        return tf.cond(seat.initialized(), seat.read_value, lambda: tf.zeros(seat.shape, tf.int64))

    def _critical(self, inputs: Sequence[Tensor], body: Any) -> Any:
        return critical(self._shard.device, self._shard.container, inputs, body)


def noted(seat: Tensor, place: int, value: Tensor) -> Tensor:
    """A seat with another number at a place."""
    return tf.concat([seat[:place], [value], seat[place + 1 :]], 0)


def _learned(seat: Tensor, fence: Tensor) -> Tensor:
    """How many pieces of the state are there under the roster of this ballot. int64[]."""
    return tf.where(tf.equal(seat[BALLOT], fence), seat[LEARNED], 0)
