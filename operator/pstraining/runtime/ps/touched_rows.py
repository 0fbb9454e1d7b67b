"""Which rows of a server's tables steps have changed since a chief began to copy them.

Tables are copied in ranges while training continues. A range that was copied can change before the last one is copied;
only the rows recorded here are then copied once more. Nothing is recorded at other times.
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
        device: the server's.
        container: the job's container there.
        number: of the server.
        tables: the tables' segments, by the numbers of the tables.
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
        """Record from now on, under this name, which is not 0; return the operations to wait for.

        Args:
            token: int64[].
        """
        cleared = [mark.assign(mark.initial(), read_value=False) for mark in self._marks.values()]
        return [*cleared, self._token.assign(token, read_value=False)]

    def is_recorded(self, token: Tensor) -> Tensor:
        """Return whether this name's record is being kept. bool[]."""
        own = self._token
        return tf.equal(tf.cond(own.initialized(), own.read_value, lambda: tf.zeros([], tf.int64)), token)

    def record(self, indices: Mapping[int, Tensor]) -> list[Operation]:
        """Record that a step changes rows, if a record is kept; return the operations to wait for.

        Args:
            indices: local indices of rows, by the numbers of the tables. int64[n].
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
        """End the record; return the operations to wait for."""
        return [
            tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
            for variable in (self._token, *self._marks.values())
        ]
