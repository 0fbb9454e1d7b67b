"""Records of the rows in a server's tables that steps change.

Tables are copied in ranges while training continues, and copied rows may change before the last range is copied. One
record has those rows, which are then copied again. Another one has the rows that have changed since a checkpoint, which
an incremental save writes. A third one has the rows that servers of the next layout lack. Nothing is recorded unless a
chief has started the record.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.variables import PSVariable


class TouchedRows:
    """One mark for each row of every table of a server with a fixed number of rows. Creating it sends nothing.

    Args:
        device: the server's device.
        container: the job's container there.
        number: the server's number.
        tables: the tables' segments, by the tables' numbers.
        kind: the name of the record's variables.
    """

    def __init__(self, device: str, container: str, number: int, tables: Mapping[int, Segment], kind: str) -> None:
        def variable(name: str, shape: tuple[int, ...], dtype: tf.DType) -> PSVariable:
            return PSVariable(
                name=f"{number}/{name}",
                container=container,
                device=device,
                shape=shape,
                dtype=dtype,
                initial=lambda: tf.zeros(shape, dtype),
            )

        self._token = variable(kind, (), tf.int64)
        self._marks = {
            number: variable(f"{kind}/{number}", (table.slices[0].rows,), tf.bool) for number, table in tables.items()
        }

    # Each method below emits operations, in the critical section.

    def begin(self, token: Tensor, *, with_all: bool = False) -> list[Operation]:
        """Start a record of changed rows; return the operations to wait for.

        Args:
            token: the record's name, not 0. int64[].
            with_all: whether the record starts with all rows.
        """
        marked = [mark.assign(tf.fill(mark.shape, with_all), read_value=False) for mark in self._marks.values()]
        return [*marked, self._token.assign(token, read_value=False)]

    def is_recorded(self, token: Tensor) -> Tensor:
        """Return whether the record of this name is under way. bool[]."""
        own = self._token
        return tf.equal(tf.cond(own.initialized(), own.read_value, lambda: tf.zeros([], tf.int64)), token)

    def is_begun(self) -> Tensor:
        """Return whether a record is under way. bool[]."""
        return self._token.initialized()

    def record(self, indices: Mapping[int, Tensor]) -> list[Operation]:
        """Record that a step changes rows, if a record is under way; return the operations to wait for.

        Args:
            indices: local indices of rows, by the tables' numbers. int64[n].
        """

        def mark() -> Tensor:
            return with_dependencies([self.mark(number, rows) for number, rows in indices.items()], applied())

        return [tf.cond(self.is_begun(), mark, not_applied)]

    def mark(self, table: int, rows: Tensor) -> Operation:
        """Add rows of a table to the record; return the operation to wait for.

        Args:
            table: the table's number.
            rows: local indices of rows. int64[n].
        """
        marks = tf.ones_like(rows, dtype=tf.bool)
        return tf.raw_ops.ResourceScatterUpdate(resource=self._marks[table].handle, indices=rows, updates=marks)

    def counts(self, token: Tensor, tables: int) -> Tensor:
        """Return the number of recorded rows of each table, or -1 without the record of this name. int64[tables].

        Outside the section.

        Args:
            token: the record's name. int64[].
            tables: number of the server's tables; one that the record does not have counts 0.
        """

        def counted() -> Tensor:
            marks = [self._marks.get(table) for table in range(tables)]
            none = tf.zeros([], tf.int64)
            return tf.stack([none if mark is None else tf.math.count_nonzero(mark.read_value()) for mark in marks])

        return tf.cond(self.is_recorded(token), counted, lambda: tf.fill([tables], tf.constant(-1, tf.int64)))

    def rows(self, table: int) -> Tensor:
        """Return the local indices of a table's rows that have changed since `begin`. int64[n]."""
        return tf.reshape(tf.where(self._marks[table].read_value()), [-1])

    def take(self, table: int, begin: Tensor, end: Tensor, most: Tensor) -> Tensor:
        """Remove a table's rows in a range from the record, and return their local indices. int64[n].

        Args:
            table: the table's number.
            begin, end: the first row, and the first row after the range. int64[].
            most: maximum number of rows. int64[].
        """
        marks, rows = self._marks[table], tf.range(begin, end)
        # Only the range is read: TensorFlow copies all of a variable with written rows when it is read.
        marked = tf.raw_ops.ResourceGather(resource=marks.handle, indices=rows, dtype=marks.dtype)
        found = tf.boolean_mask(rows, marked)[:most]
        removed = tf.raw_ops.ResourceScatterUpdate(
            resource=marks.handle, indices=found, updates=tf.zeros_like(found, dtype=tf.bool)
        )
        return with_dependencies([removed], found)

    def forget(self) -> list[Operation]:
        """End and delete the record; return the operations to wait for."""
        return [
            tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
            for variable in (self._token, *self._marks.values())
        ]


class RowRecords(NamedTuple):
    """The records of a server's tables."""

    touched: TouchedRows
    """Rows that change while tables are copied for a save."""
    changed: TouchedRows
    """Rows that have changed since a checkpoint."""
    missing: TouchedRows
    """Rows that the servers of the next layout lack."""

    def record(self, indices: Mapping[int, Tensor]) -> list[Operation]:
        """Record in each of them that a step changes rows; see `TouchedRows.record`."""
        if not indices:
            return []

        def each() -> Tensor:
            return with_dependencies([done for own in self for done in own.record(indices)], applied())

        # Most steps are applied without any record.
        return [tf.cond(tf.reduce_any(tf.stack([own.is_begun() for own in self])), each, not_applied)]

    def forget(self) -> list[Operation]:
        """End and delete all records; return the operations to wait for."""
        return [done for own in self for done in own.forget()]


def records_on(
    device: str, container: str, number: int, tables: Sequence[Segment], *, without: Container[int]
) -> RowRecords:
    """Return the records of a server's tables; see `TouchedRows`. Tables without a fixed number of rows have none."""
    fixed = {n: table for n, table in enumerate(tables) if n not in without}
    return RowRecords(*(TouchedRows(device, container, number, fixed, kind) for kind in RowRecords._fields))
