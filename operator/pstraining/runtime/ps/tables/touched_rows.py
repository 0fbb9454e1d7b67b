"""The record of the rows in a server's tables that change while a chief copies the tables.

Tables are copied in ranges while training continues, and copied rows may change before the last range is copied. Only
the rows recorded here are then copied again. Outside of a copy nothing is recorded.
"""

from collections.abc import Mapping

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
    """

    def __init__(self, device: str, container: str, number: int, tables: Mapping[int, Segment]) -> None:
        def variable(name: str, shape: tuple[int, ...], dtype: tf.DType) -> PSVariable:
            return PSVariable(
                name=f"{number}/{name}",
                container=container,
                device=device,
                shape=shape,
                dtype=dtype,
                initial=lambda: tf.zeros(shape, dtype),
            )

        self._token = variable("touched", (), tf.int64)
        self._marks = {
            number: variable(f"touched/{number}", (table.slices[0].rows,), tf.bool) for number, table in tables.items()
        }

    # Each method below emits operations, in the critical section.

    def begin(self, token: Tensor) -> list[Operation]:
        """Start a record of changed rows; return the operations to wait for.

        Args:
            token: the record's name, not 0. int64[].
        """
        cleared = [mark.assign(mark.initial(), read_value=False) for mark in self._marks.values()]
        return [*cleared, self._token.assign(token, read_value=False)]

    def is_recorded(self, token: Tensor) -> Tensor:
        """Return whether the record of this name is under way. bool[]."""
        own = self._token
        return tf.equal(tf.cond(own.initialized(), own.read_value, lambda: tf.zeros([], tf.int64)), token)

    def record(self, indices: Mapping[int, Tensor]) -> list[Operation]:
        """Record that a step changes rows, if a record is under way; return the operations to wait for.

        Args:
            indices: local indices of rows, by the tables' numbers. int64[n].
        """
        if not self._marks:
            return []

        def mark() -> Tensor:
            marked = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self._marks[number].handle, indices=rows, updates=tf.ones_like(rows, dtype=tf.bool)
                )
                for number, rows in indices.items()
            ]
            return with_dependencies(marked, applied())

        return [tf.cond(self._token.initialized(), mark, not_applied)]

    def rows(self, table: int) -> Tensor:
        """Return the local indices of a table's rows that have changed since `begin`. int64[n]."""
        return tf.reshape(tf.where(self._marks[table].read_value()), [-1])

    def forget(self) -> list[Operation]:
        """End and delete the record; return the operations to wait for."""
        return [
            tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
            for variable in (self._token, *self._marks.values())
        ]
