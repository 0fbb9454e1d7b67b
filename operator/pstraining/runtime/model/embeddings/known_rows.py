"""Trained rows by key in a process without parameter servers: for evaluation, callbacks and export."""

import numpy as np
import tensorflow as tf

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import DType, Tensor


class KnownRows:
    """The rows of a table by key; an unknown key has the mean of initial rows.

    Args:
        width: length of a row.
        dtype: the rows' type.
        mean: the mean of the elements of initial rows.
    """

    def __init__(self, width: int, dtype: DType, mean: float) -> None:
        self._unknown = np.full([1, width], mean, dtype)
        self._keys = tf.Variable(np.zeros([0], np.int64), shape=[None], trainable=False)
        self._rows = tf.Variable(self._unknown, shape=[None, width], trainable=False)  # the last row: of unknown keys
        self._given: dict[str, Array] = {}
        self.keys, self.rows = KnownColumn(self, "keys", np.int64), KnownColumn(self, "rows", dtype)
        """The columns, as variables of the model; both are assigned, in either order."""

    def rows_of(self, keys: Tensor) -> Tensor:
        """Emit the rows of keys. Integers [...] to [..., width]."""
        wanted, known = tf.cast(keys, tf.int64), self._keys.read_value()
        flat, number = tf.reshape(wanted, [-1]), tf.size(known)
        place = tf.searchsorted(known, flat)
        held = tf.gather(tf.concat([known, [0]], 0), place)
        found = tf.where((place < number) & tf.equal(held, flat), place, number)
        rows = tf.gather(self._rows, found)
        return tf.reshape(rows, tf.concat([tf.shape(wanted), tf.shape(rows)[1:]], 0))

    def values(self, column: str) -> Array:
        """Return a column, in ascending order of the keys."""
        return np.array(self._keys.numpy() if column == "keys" else self._rows.numpy()[:-1])

    def with_unknown(self) -> Array:
        """Return the row of unknown keys, and the rows in ascending order of the keys."""
        return np.concatenate([self._unknown, self.values("rows")])

    def give(self, column: str, values: Array) -> None:
        """Set a column; the rows are replaced once both columns are set."""
        self._given[column] = values
        if len(self._given) == 2:
            keys, rows = self._given.pop("keys"), self._given.pop("rows")
            order = np.argsort(keys)
            self._keys.assign(np.asarray(keys)[order])
            self._rows.assign(np.concatenate([np.asarray(rows)[order], self._unknown]))


class KnownColumn:
    """A column of `KnownRows` with the interface of a Keras variable."""

    def __init__(self, table: KnownRows, name: str, dtype: DType) -> None:
        self._table, self._name = table, name
        self.dtype = tf.as_dtype(dtype)

    @property
    def value(self) -> "KnownColumn":
        """Return this object, whose methods read the value."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the value."""
        return self.numpy().shape

    def read_value(self) -> Array:
        """Return the value."""
        return self.numpy()

    def numpy(self) -> Array:
        """Return the value."""
        return self._table.values(self._name)

    def assign(self, value: object) -> None:
        """Replace the value."""
        self._table.give(self._name, np.asarray(value))
