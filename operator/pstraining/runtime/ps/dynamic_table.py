"""A table with rows by any int64 key on one parameter server, as operations to emit inside a traced function.

Rows and the optimizer's slots of them are in variables of equal length, and `keys` has the key of each place. The index
from keys to places is a hash table beside them, which follows from `keys`. Only a step, or a restore, inserts keys. A
step inserts its new ones in ascending order, so that equal steps give equal places. A pull of an unknown key returns
the row with which the key would begin, and inserts nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import tensorflow as tf
from tensorflow.python.framework import ops

from pstraining.runtime.model.dynamic_rows import RowInitializer
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, remembered, unordered, with_dependencies
from pstraining.runtime.ps.variables import PSVariable, function_graph

KEYS: Final = "keys"
"""The column of keys."""
ROWS: Final = "rows"
"""The column of rows; those of slots have the slots' names, with a prefix."""
ROOM: Final = 1024
"""Minimum number of places after the first insertion; later the number doubles when it is used up."""


class DynamicTable:
    """The rows of one table on one server; create it inside `variables_on` for that server.

    Args:
        name: of the index, unique on the server.
        container: the job's container there.
        rows: the variable of rows, with one row so far.
        slots: the optimizer's slots of it, by name, with one row each, in which all elements are equal.
        initializer: of rows.
    """

    def __init__(
        self,
        name: str,
        container: str,
        rows: PSVariable,
        slots: Mapping[str, PSVariable],
        initializer: RowInitializer,
    ) -> None:
        self._name, self._container, self._device, self._initializer = name, container, rows.device, initializer
        self._width = rows.shape[1]
        self.used: PSVariable = tf.Variable(tf.zeros([], tf.int64))
        """Number of places in use: the first ones. int64[]."""
        self.columns: dict[str, PSVariable] = {KEYS: tf.Variable(tf.zeros([1], tf.int64)), ROWS: rows, **slots}
        """Variables of one element, or one row, for each place."""
        for column in self.columns.values():
            column.let_grow()

    def fetch(self, keys: Tensor) -> Tensor:
        """Return the rows of keys, of unknown ones those with which they would begin. int64[n] to [n, width]."""
        places = self._find(keys)
        rows = _gathered(self.columns[ROWS], tf.maximum(places, 0))
        missing = tf.where(places < 0)

        def completed() -> Tensor:
            return tf.tensor_scatter_nd_update(rows, missing, self._initial(tf.gather_nd(keys, missing)))

        return tf.cond(tf.size(missing) > 0, completed, lambda: tf.identity(rows))

    # The methods below belong into the critical section.

    def admit(self, keys: Tensor) -> Tensor:
        """Insert the unknown ones of a step's keys; return the places of all. int64[n] to int64[n].

        Args:
            keys: in any order, without repetition.
        """
        places = self._find(keys)
        new = tf.sort(tf.boolean_mask(keys, places < 0))
        is_new = tf.size(new) > 0
        inserted = tf.cond(is_new, lambda: self._append(new, {}), not_applied)
        with tf.control_dependencies([inserted]):
            return tf.cond(is_new, lambda: self._find(keys), lambda: tf.identity(places))

    def append(self, begin: Tensor, keys: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        """Insert unknown keys in their order, if `begin` places are in use; return 1 if it applied. int64[].

        Args:
            begin: number of places in use. int64[].
            keys: without repetition. int64[n].
            columns: values by the names of columns, flat; the other columns begin with initial values.
        """
        expected = tf.equal(self.used.read_value(), begin)
        return tf.cond(expected, lambda: self._append(keys, columns), not_applied)

    def reset(self) -> list[Operation]:
        """Emit forgetting all keys; return the operations to wait for. Memory is free once columns are reset."""
        none = tf.zeros([0], tf.int64)
        cleared = tf.raw_ops.LookupTableImportV2(table_handle=self._index(), keys=none, values=none)
        return [cleared, self.used.assign(self.used.initial(), read_value=False)]

    def rebuild(self) -> Operation:
        """Emit rebuilding the index from the keys, which were overwritten; return the operation to wait for."""
        keys, places = self.live(self.columns[KEYS]), tf.range(self.used.read_value())
        return tf.raw_ops.LookupTableImportV2(table_handle=self._index(), keys=keys, values=places)

    def live(self, column: PSVariable) -> Tensor:
        """Return what a column has of the places in use."""
        return _gathered(column, tf.range(self.used.read_value()))

    def _append(self, keys: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        used, number = self.used.read_value(), tf.size(keys, tf.int64)
        places = used + tf.range(number)
        with tf.control_dependencies([self._grown(used + number)]):
            written = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=column.handle, indices=places, updates=self._values(name, column, keys, given)
                )
                for name, column in self.columns.items()
            ]
        with tf.control_dependencies(written):
            known = tf.raw_ops.LookupTableInsertV2(table_handle=self._index(), keys=keys, values=places)
        with tf.control_dependencies([known]):
            return with_dependencies([self.used.assign(used + number, read_value=False)], applied())

    def _values(self, name: str, column: PSVariable, keys: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Return a column's values of new keys."""
        if name == KEYS:
            return keys
        if name in given:
            return tf.reshape(given[name], [-1, self._width])
        if name == ROWS:
            return self._initial(keys)
        return tf.broadcast_to(column.initial(), [tf.size(keys), self._width])

    def _grown(self, number: Tensor) -> Tensor:
        """Emit growing every column to so many places or more; return 1 if they grew. int64[]."""
        room = tf.raw_ops.VariableShape(input=self.columns[KEYS].handle, out_type=tf.int64)[0]

        def grow() -> Tensor:
            size = tf.maximum(tf.maximum(2 * room, number), ROOM)
            source, done = tf.minimum(tf.range(size), room - 1), list[Operation]()
            for column in self.columns.values():  # one after the other: each needs memory twice meanwhile
                with tf.control_dependencies(done[-1:]):
                    done.append(column.assign(_gathered(column, source), read_value=False))
            return with_dependencies(done, applied())

        return tf.cond(number > room, grow, not_applied)

    def _initial(self, keys: Tensor) -> Tensor:
        return self._initializer.rows(keys, self._width, self.columns[ROWS].dtype)

    def _find(self, keys: Tensor) -> Tensor:
        """Return the places of keys, -1 of unknown ones. int64[n] to int64[n]."""
        unknown = tf.constant(-1, tf.int64)
        found = tf.raw_ops.LookupTableFindV2(table_handle=self._index(), keys=keys, default_value=unknown)
        return tf.ensure_shape(found, [None])

    def _index(self) -> Tensor:
        """Return the hash table's handle in the function that is being traced; see `PSVariable.handle`."""
        graph = function_graph(tf.compat.v1.get_default_graph())
        key = (self._container, self._name, self._device)
        with graph.as_default():
            cache = remembered("indices")
            if key not in cache:
                with ops.control_dependencies(None), tf.device(self._device):
                    cache[key] = unordered(
                        tf.raw_ops.MutableHashTableV2(
                            container=self._container,
                            shared_name=self._name,
                            key_dtype=tf.int64,
                            value_dtype=tf.int64,
                        )
                    )
        return cache[key]


def _gathered(column: PSVariable, places: Tensor) -> Tensor:
    """Emit reading some places of a column, without a copy of the others."""
    return tf.raw_ops.ResourceGather(resource=column.handle, indices=places, dtype=column.dtype)


def sizes(tables: Sequence[DynamicTable]) -> Tensor:
    """Emit the number of rows of each table. int64[n]."""
    return tf.stack([table.used.read_value() for table in tables]) if tables else tf.zeros([0], tf.int64)
