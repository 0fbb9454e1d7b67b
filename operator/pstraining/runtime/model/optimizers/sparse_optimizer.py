"""Applies the user's optimizer to the touched rows of a parameter server's embedding tables.

Row r of a table is on server r modulo the number of servers. An element-wise optimizer gives a row the same numbers
whether it updates some rows or the whole table; `Rows` objects replace its variables. As in TensorFlow's sparse
optimizers, untouched rows do not change: neither their momentum nor their weights decay.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from pstraining.runtime.model.embeddings import dynamic_rows
from pstraining.runtime.model.optimizers import optimizer as optimizers
from pstraining.runtime.model.tensor import DType, KerasOptimizer, KerasVariable, Operation, Shape, Tensor, Variable


class Rows:
    """Rows of a server's variable, with the interface of a variable; `store` writes the assigned values."""

    def __init__(self, variable: Variable, indices: Tensor) -> None:
        self._variable, self._indices = variable, indices
        self.dtype, self.name = variable.dtype, variable.name
        self._unique_id = variable._unique_id
        self.value = tf.raw_ops.ResourceGather(resource=variable.handle, indices=indices, dtype=variable.dtype)

    @property
    def shape(self) -> Shape:
        """Return the shape of the rows."""
        return self.value.shape

    def __tf_tensor__(self, dtype: DType = None, name: str | None = None) -> Tensor:
        del name
        return self.value if dtype is None else tf.cast(self.value, dtype)

    def assign(self, value: Tensor) -> None:
        """Replace the rows."""
        self.value = tf.convert_to_tensor(value)

    def assign_add(self, value: Tensor) -> None:
        """Add to the rows."""
        self.value = self.value + value

    def assign_sub(self, value: Tensor) -> None:
        """Subtract from the rows."""
        self.value = self.value - value

    def store(self) -> Operation:
        """Emit writing the rows; return the operation to wait for."""
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self._variable.handle, indices=self._indices, updates=self.value
        )


class RowOptimizer:
    """The user's optimizer on the tables of one server; create it inside `variables_on` for that server.

    Args:
        optimizer: the user's optimizer.
        tables: the tables' Keras variables on the server.
        groups: each table's group, which determines whether touched rows decay.
    """

    def __init__(self, optimizer: KerasOptimizer, tables: Sequence[KerasVariable], groups: Sequence[str]) -> None:
        self.clone = optimizers.clone(optimizer, list(tables), groups, fused=False)
        self._tracing = threading.RLock()  # while a worker trains, a thread traces steps on the other members
        self.tables, self._decayed = list(tables), [optimizers.is_decayed(group) for group in groups]
        # The slots: lists with one variable per table, by the attribute that holds the list.
        self._slots = {
            name: value
            for name, value in vars(self.clone).items()
            if isinstance(value, list)
            and len(value) == len(tables)
            and all(isinstance(one, keras.Variable) for one in value)
            and all(
                one is not table and tuple(one.shape) == tuple(table.shape)
                for one, table in zip(value, tables, strict=True)
            )
        }

    def apply(self, step: Tensor, touched: Sequence[tuple[Tensor, Tensor]]) -> list[Operation]:
        """Emit an update of the touched rows; return the operations to wait for.

        Args:
            step: number of earlier updates. int64[].
            touched: for each table the local indices of rows, without repetition, int64[n], and their gradients,
                [n, width].
        """
        rows = [Rows(table.value, indices) for table, (indices, _) in zip(self.tables, touched, strict=True)]
        slots = {
            name: [Rows(slot.value, indices) for slot, (indices, _) in zip(found, touched, strict=True)]
            for name, found in self._slots.items()
        }
        with self._tracing, self._in_place_of_variables(step, rows, slots):
            self._update(rows, [gradient for _, gradient in touched])
        return [row.store() for row in rows] + [row.store() for found in slots.values() for row in found]

    @contextmanager
    def _in_place_of_variables(self, step: Tensor, rows: list[Rows], slots: dict[str, list[Rows]]) -> Iterator[None]:
        """Let rows replace the optimizer's variables in the block; this bypasses Keras's tracking of attributes."""
        own = vars(self.clone)
        places = {row._unique_id: number for number, row in enumerate(rows)}
        iterations = tf.cast(step, self.clone._iterations.dtype)
        seen = {**slots, "_iterations": iterations, "_trainable_variables_indices": places}
        before = {name: own[name] for name in seen}
        own.update(seen)
        try:
            yield
        finally:
            own.update(before)

    def _update(self, rows: Sequence[Rows], gradients: Sequence[Tensor]) -> None:
        clone = self.clone
        rate = clone._get_current_learning_rate()
        for row, gradient, decays in zip(rows, gradients, self._decayed, strict=True):
            clipped = gradient
            if clone.clipvalue and clone.clipvalue > 0:  # as Keras does
                clipped = tf.clip_by_value(gradient, -clone.clipvalue, clone.clipvalue)
            if decays and clone.weight_decay is not None:
                row.assign_sub(row.value * (tf.cast(tf.convert_to_tensor(rate), row.dtype) * clone.weight_decay))
            clone.update_step(clipped, row, rate)


class TableOptimizers:
    """The program's optimizers on the tables of one server; create it inside `variables_on` for that server.

    Args:
        program: the program's optimizers, by the numbers in the groups.
        tables: the tables' Keras variables on the server.
        groups: each table's group; see `Model.table_groups`.
    """

    def __init__(
        self, program: Sequence[KerasOptimizer], tables: Sequence[KerasVariable], groups: Sequence[str]
    ) -> None:
        self._tables_of = optimizers.places(groups)
        self._each = {
            index: RowOptimizer(program[index], [tables[n] for n in numbers], [groups[n] for n in numbers])
            for index, numbers in self._tables_of.items()
        }

    @property
    def clones(self) -> dict[int, KerasOptimizer]:
        """Return the clones by the optimizers' numbers."""
        return {index: own.clone for index, own in self._each.items()}

    def slots(self) -> Iterator[tuple[str, int, Any]]:
        """Yield each slot's name, the number of its table, and its variable, a `PSVariable`."""
        for index, own in self._each.items():
            for (slot, place), value in optimizers.state_of(own.clone, own.tables)[0].items():
                yield slot, self._tables_of[index][place], value

    def apply(self, step: Tensor, touched: Sequence[tuple[Tensor, Tensor]]) -> list[Operation]:
        """Emit an update of the touched rows of every table; see `RowOptimizer.apply`."""
        done: list[Operation] = []
        for index, own in self._each.items():
            done += own.apply(step, [touched[number] for number in self._tables_of[index]])
        return done


def merged(pieces: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Emit the sum of rows' gradients: indices without repetition, and one gradient for each."""
    indices = tf.concat([found for found, _ in pieces], 0)
    gradients = tf.concat([gradient for _, gradient in pieces], 0)
    unique, place = tf.unique(indices)
    return unique, tf.math.unsorted_segment_sum(gradients, place, tf.shape(unique)[0])


def routed(indices: Tensor, servers: int, *, dynamic: bool) -> tuple[Tensor, Tensor]:
    """Emit each row's server, int32[n], and its index there, int64[n]; of a dynamic table, indices are keys."""
    if dynamic:
        return dynamic_rows.owners(indices, servers), indices
    return tf.cast(indices % servers, tf.int32), indices // servers


def split(indices: Tensor, gradients: Tensor, servers: int, *, dynamic: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Emit each server's share of the rows: their indices there, and gradients; see `routed`."""
    owner, local = routed(indices, servers, dynamic=dynamic)
    places = tf.dynamic_partition(local, owner, servers)
    values = tf.dynamic_partition(gradients, owner, servers)
    return list(zip(places, values, strict=True))
