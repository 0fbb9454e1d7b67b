"""Check and apply as one step on a parameter server: a critical section under a named mutex.

The mutex lives on the server by name like the variables, and TensorFlow frees it when its holder dies. Rules that keep
a section whole when its caller is killed: all inputs have arrived before the lock is taken, and nothing loops, waits or
receives after the first write.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

Tensor = Any

SMALL: Final = 64
"""Numbers of 8 bytes that an input has at most to travel together with others."""


as_it_is = tf.autograph.experimental.do_not_convert
"""For what is called where a user's code is traced: AutoGraph takes seconds to translate ours, to no purpose."""


def after(operations: Sequence[Any], value: Tensor) -> Tensor:
    """`value`, once `operations` are done."""
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.identity(value)


def one() -> Tensor:
    """For `tf.cond`: something was done. int64[]."""
    return tf.constant(1, tf.int64)


def zero() -> Tensor:
    """For `tf.cond`: nothing was done. int64[]."""
    return tf.constant(0, tf.int64)


def critical(device: str, container: str, inputs: Sequence[Tensor], body: Callable[..., Any]) -> Any:
    """Emit `body(*inputs)` so that it runs alone on the server.

    Args:
        device: the server's device.
        container: the job's container there, which holds the mutex.
        inputs: tensors from anywhere; they are on the server before the lock is taken.
        body: emits the operations; what it returns must depend on every write that it makes.

    Returns:
        The structure of tensors that `body` returned, available after the lock is free again.
    """
    small = [tf.convert_to_tensor(value) for value in inputs if _is_small(value)]
    large = [value for value in inputs if not _is_small(value)]
    packed = [_pack(small)] if small else []
    with tf.device(device):
        arrived = [tf.identity(value) for value in [*packed, *large]]
        with tf.control_dependencies(arrived):
            mutex = tf.raw_ops.MutexV2(container=container, shared_name="mutex")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            held = [tf.identity(value) for value in arrived]
            unpacked, rest = iter(_unpack(held[0], small) if small else []), iter(held[len(packed) :])
            result = body(*[next(unpacked if _is_small(value) else rest) for value in inputs])
        with tf.control_dependencies(tf.nest.flatten(result)):
            released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([released]):
            return tf.nest.map_structure(tf.identity, result)


def _is_small(value: Tensor) -> bool:
    """Whether an input travels together with others: every tensor that crosses to a server is a call of its own."""
    return value.dtype in (tf.int64, tf.float64) and (value.shape.num_elements() or SMALL + 1) <= SMALL


def _pack(values: Sequence[Tensor]) -> Tensor:
    """All numbers one behind the other. int64[n]."""
    flat = [tf.reshape(value, [-1]) for value in values]
    return tf.concat([part if part.dtype == tf.int64 else tf.bitcast(part, tf.int64) for part in flat], 0)


def _unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = tf.split(packed, [value.shape.num_elements() for value in like])
    return [
        tf.reshape(part if value.dtype == tf.int64 else tf.bitcast(part, value.dtype), value.shape)
        for part, value in zip(parts, like, strict=True)
    ]


def arbiter_first(
    servers: Sequence[Any], emit: Callable[[int, Tensor], Tensor], go: Tensor | None = None
) -> list[Tensor]:
    """Emits what every server answers, where it is; the arbiter's answer, which begins with a yes or no, is for all.

    Args:
        servers: the arbiter is the first.
        emit: gets a server's number and what it is told: the arbiter's answer, or for the arbiter whether it may.
        go: 1 if the arbiter may; None: it may. int64[].
    """
    first = emit(0, tf.reshape(one() if go is None else go, [1]))
    return [first, *(emit(number, first) for number in range(1, len(servers)))]
