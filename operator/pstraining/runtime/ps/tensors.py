"""Operations on single elements of servers' variables, and sets of workers as bits."""

from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import remembered
from pstraining.runtime.ps.record import RECORD_SIZE, RecordField

WORKER_SLOTS: Final = 4096
"""Maximum number of workers."""


def at(variable: Variable, index: Tensor) -> Tensor:
    """Return one element of a vector. Shape: []."""
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=index, dtype=variable.dtype)


def put(variable: Variable, index: Tensor, value: Tensor) -> Operation:
    """Set one element of a vector, or one row of a matrix; return the operation to wait for."""
    return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=index, updates=value)


def field(record: Tensor, which: RecordField) -> Tensor:
    """Return one field of a record, int64[5]. Shape: []."""
    return _fields(record)[which]


def with_field(record: Tensor, which: RecordField, value: Tensor) -> Tensor:
    """Return a record, int64[5], with another value of one field."""
    changed = list(_fields(record))
    changed[which] = value
    return tf.stack(changed)


def _fields(record: Tensor) -> list[Tensor]:
    """Emit all fields of a record by one operation, once in a function; an index takes four operations."""
    known = remembered("fields")
    if record.ref() not in known:
        known[record.ref()] = tf.unstack(record, num=RECORD_SIZE)
    found: list[Tensor] = known[record.ref()]
    return found


def bits(sets: Tensor) -> Tensor:
    """Return sets of workers as bits, the first worker the lowest. uint8[sets, WORKER_SLOTS / 8]."""
    bytes_ = tf.reshape(tf.cast(sets, tf.int32), [sets.shape[0], WORKER_SLOTS // 8, 8])
    return tf.cast(tf.reduce_sum(bytes_ * tf.constant([1, 2, 4, 8, 16, 32, 64, 128]), 2), tf.uint8)


def from_bits(packed: Tensor) -> Tensor:
    """Return one set of workers from its bits. uint8[WORKER_SLOTS / 8] to int64[WORKER_SLOTS]."""
    bit_numbers = tf.constant(list(range(8)), tf.uint8)
    return tf.cast(tf.reshape(tf.bitwise.right_shift(packed[:, tf.newaxis], bit_numbers) & 1, [-1]), tf.int64)
