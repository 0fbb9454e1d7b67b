"""Rows by any int64 key on one parameter server, as operations to emit inside a traced function.

An arena consists of columns: variables of equal length, of which `keys` has the key of each place. The first places are
in use. When a place becomes free, the last one in use moves there. The index from keys to places is a hash table beside
the columns, which follows from `keys`. Equal changes in equal order give equal places on all members of a shard.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import tensorflow as tf
from tensorflow.python.framework import ops

from pstraining.runtime.model.embeddings.dynamic_rows import mixed
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, remembered, unordered, with_dependencies
from pstraining.runtime.ps.variables import PSVariable, function_graph

KEYS: Final = "keys"
"""The column of keys."""
SEEN: Final = "seen"
"""The column of the steps of the last updates; only in arenas that remove keys by their age."""
ROOM: Final = 1024
"""Minimum number of places after the first insertion; later the number doubles when it is used up."""
SAMPLE: Final = 1024
"""Minimum size of the sample in which the oldest places are found; with fewer places in use, all are compared."""
SAMPLE_FACTOR: Final = 8
"""Number of places that are compared for each place that is chosen; Redis's approximated LRU compares 5."""


class Arena:
    """Columns with a place for each key; create it inside `variables_on` for its server.

    Args:
        name: the index's name, unique on the server.
        container: the job's container there.
        device: the server's device.
        numbers: names of the integer columns, which are created here.
        rows: further columns by name: variables with one row each.
        begins: emits the values of new keys by column; other columns begin with their initial value.
    """

    def __init__(
        self,
        name: str,
        container: str,
        device: str,
        numbers: Sequence[str] = (),
        *,
        rows: Mapping[str, PSVariable] | None = None,
        begins: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        self._name, self._container, self._device = name, container, device
        self._begins = {KEYS: tf.identity, **(begins or {})}
        self.used: PSVariable = tf.Variable(tf.zeros([], tf.int64))
        """Number of places in use: the first ones. int64[]."""
        own: dict[str, PSVariable] = {name: tf.Variable(tf.zeros([1], tf.int64)) for name in (KEYS, *numbers)}
        self.own = [*own.values(), self.used]
        """The variables of the state that are created here."""
        self._swept: PSVariable = tf.Variable(tf.zeros([], tf.int64))
        """The lowest place that the current sweep of `expire` has examined. int64[]."""
        self.columns = {**own, **(rows or {})}
        """Variables of one element, or one row, for each place."""
        for column in self.columns.values():
            column.let_grow()

    def find(self, keys: Tensor) -> Tensor:
        """Return the places of keys; -1 for unknown keys. int64[n] to int64[n]."""
        unknown = tf.constant(-1, tf.int64)
        found = tf.raw_ops.LookupTableFindV2(table_handle=self._index(), keys=keys, default_value=unknown)
        return tf.ensure_shape(found, [None])

    def read(self, name: str, places: Tensor) -> Tensor:
        """Return a column's values at some places. int64[n] to [n, ...]."""
        return _gathered(self.columns[name], places)

    def live(self, column: PSVariable) -> Tensor:
        """Return a column's values of the places in use."""
        return _gathered(column, tf.range(self.used.read_value()))

    # The methods below must run in the critical section.

    def write(self, name: str, places: Tensor, values: Tensor) -> Operation:
        """Emit overwriting a column at some places; return the operation to wait for."""
        return _scattered(self.columns[name], places, values)

    def insert(self, keys: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Insert unknown keys in their order; return 1. int64[].

        Args:
            keys: keys without repetition. int64[n].
            given: values by column, flat or in the column's shape.
        """
        used, number = self.used.read_value(), tf.size(keys, tf.int64)
        places = used + tf.range(number)
        with tf.control_dependencies([self._grown(used + number)]):
            written = [
                _scattered(column, places, self._values(name, column, keys, given))
                for name, column in self.columns.items()
            ]
        with tf.control_dependencies(written):
            known = tf.raw_ops.LookupTableInsertV2(table_handle=self._index(), keys=keys, values=places)
        with tf.control_dependencies([known]):
            return with_dependencies([self.used.assign(used + number, read_value=False)], applied())

    def append(self, begin: Tensor, keys: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        """Insert unknown keys in their order, if `begin` places are in use; return 1 if it applied. int64[].

        Args:
            begin: number of places in use. int64[].
            keys, columns: see `insert`.
        """
        expected = tf.equal(self.used.read_value(), begin)
        return tf.cond(expected, lambda: self.insert(keys, columns), not_applied)

    def remove(self, places: Tensor) -> Tensor:
        """Remove the keys at some places in use; return their number. int64[].

        Args:
            places: places without repetition. int64[n].
        """

        def move() -> Tensor:
            used, number = self.used.read_value(), tf.size(places, tf.int64)
            left = used - number
            at_end = tf.boolean_mask(places, places >= left) - left
            stays = tf.tensor_scatter_nd_update(
                tf.fill([number], value=True), at_end[:, tf.newaxis], tf.zeros_like(at_end, tf.bool)
            )
            moved, free = left + tf.where(stays)[:, 0], tf.sort(tf.boolean_mask(places, places < left))
            gone, keys = self.read(KEYS, places), self.read(KEYS, moved)
            with tf.control_dependencies([gone, keys]):
                index = self._index()
                forgotten = tf.raw_ops.LookupTableRemoveV2(table_handle=index, keys=gone)
                known = tf.raw_ops.LookupTableInsertV2(table_handle=index, keys=keys, values=free)
                written = [_scattered(own, free, _gathered(own, moved)) for own in self.columns.values()]
            with tf.control_dependencies([forgotten, known, *written]):
                return with_dependencies([self.used.assign(left, read_value=False)], number)

        return tf.cond(tf.size(places) > 0, move, not_applied)

    def oldest(self, number: Tensor, step: Tensor) -> Tensor:
        """Return at most `number` places whose last updates are the oldest, none of them at this step. int64[n].

        With many places in use, only a sample is compared, so the work is in proportion to `number`. The sample is a
        range that begins at a place computed from the step.
        """
        used = self.used.read_value()
        size = tf.minimum(used, tf.maximum(SAMPLE_FACTOR * number, SAMPLE))
        drawn = tf.cast(tf.bitwise.right_shift(mixed(tf.cast(step, tf.uint64)), tf.constant(1, tf.uint64)), tf.int64)
        window = (drawn + tf.range(size)) % tf.maximum(used, 1)
        seen = self.read(SEEN, window)
        order = tf.argsort(seen, stable=True)[:number]
        return tf.boolean_mask(tf.gather(window, order), tf.gather(seen, order) < step)

    def expire(self, last: Tensor, calls: int) -> Tensor:
        """Remove some of the keys whose last update is not after the step `last`; return their number. int64[].

        Each call examines the places below those of the call before, so `calls` calls examine all places. A place that
        becomes free is filled with the last place, which was examined earlier or updated since.

        Args:
            last: the step up to which keys are removed. int64[].
            calls: number of calls that together examine all places.
        """
        used, swept = self.used.read_value(), self._swept.read_value()
        end = tf.minimum(tf.where(tf.equal(swept, 0), used, swept), used)
        begin = tf.maximum(end - tf.maximum(-(-self._room() // calls), SAMPLE), 0)
        window = tf.range(begin, end)
        removed = self.remove(tf.boolean_mask(window, self.read(SEEN, window) <= last))
        with tf.control_dependencies([removed]):
            return with_dependencies([self._swept.assign(begin, read_value=False)], removed)

    def rebuild(self) -> Operation:
        """Emit rebuilding the index from the keys, which were overwritten; return the operation to wait for."""
        keys, places = self.live(self.columns[KEYS]), tf.range(self.used.read_value())
        return tf.raw_ops.LookupTableImportV2(table_handle=self._index(), keys=keys, values=places)

    def reset(self) -> list[Operation]:
        """Emit removing all keys; return the operations to wait for. Memory is freed when the columns are reset."""
        none = tf.zeros([0], tf.int64)
        cleared = tf.raw_ops.LookupTableImportV2(table_handle=self._index(), keys=none, values=none)
        return [cleared, self.used.assign(self.used.initial(), read_value=False)]

    def forget(self) -> Operation:
        """Emit deleting the index, whose variables are deleted as well; return the operation to wait for."""
        return tf.raw_ops.DestroyResourceOp(resource=self._index(), ignore_lookup_error=True)

    def _values(self, name: str, column: PSVariable, keys: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        """Return a column's values of new keys."""
        shape = column.shape.as_list()[1:]
        if name in given:
            return tf.reshape(given[name], [-1, *shape])
        if name in self._begins:
            return self._begins[name](keys)
        return tf.broadcast_to(column.initial(), [tf.size(keys), *shape])

    def _grown(self, number: Tensor) -> Tensor:
        """Emit growing every column to `number` places or more; return 1 if they grew. int64[]."""
        room = self._room()

        def grow() -> Tensor:
            size = tf.maximum(tf.maximum(2 * room, number), ROOM)
            source, done = tf.minimum(tf.range(size), room - 1), list[Operation]()
            for column in self.columns.values():  # in sequence: growing one needs its memory twice
                with tf.control_dependencies(done[-1:]):
                    done.append(column.assign(_gathered(column, source), read_value=False))
            return with_dependencies(done, applied())

        return tf.cond(number > room, grow, not_applied)

    def _room(self) -> Tensor:
        """Emit the number of places. int64[]."""
        return tf.raw_ops.VariableShape(input=self.columns[KEYS].handle, out_type=tf.int64)[0]

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


def _scattered(column: PSVariable, places: Tensor, values: Tensor) -> Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=column.handle, indices=places, updates=values)


def sizes(arenas: Sequence[Arena]) -> Tensor:
    """Emit the number of places in use in each arena. int64[n]."""
    return tf.stack([arena.used.read_value() for arena in arenas]) if arenas else tf.zeros([0], tf.int64)
