"""Check and apply as one step on a parameter server: a critical section under a named mutex.

The mutex lives on the server by name like the variables, and TensorFlow frees it when its holder dies. Rules that keep
a section whole when its caller is killed: all inputs have arrived before the lock is taken, and nothing loops, waits or
receives after the first write.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def after(operations: Sequence[Any], value: Tensor) -> Tensor:
    """`value`, once `operations` are done."""
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.identity(value)


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
    with tf.device(device):
        arrived = [tf.identity(value) for value in inputs]
        with tf.control_dependencies(arrived):
            mutex = tf.raw_ops.MutexV2(container=container, shared_name="mutex")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            result = body(*[tf.identity(value) for value in arrived])
        with tf.control_dependencies(tf.nest.flatten(result)):
            released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([released]):
            return tf.nest.map_structure(tf.identity, result)
