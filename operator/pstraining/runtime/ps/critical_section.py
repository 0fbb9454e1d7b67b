"""Check and apply as one step on a parameter server: a critical section under a named mutex.

The mutex lives on the server by name like the variables, and TensorFlow frees it when its holder dies. Rules that keep
a section whole when its caller is killed: all inputs have arrived before the lock is taken, and nothing loops, waits or
receives after the first write.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Structure, Tensor

SMALL: Final = 64
"""Numbers of 8 bytes that an input has at most to travel together with others."""


without_autograph = tf.autograph.experimental.do_not_convert
"""Excludes a function from AutoGraph inside the user's traced code; converting ours takes seconds without benefit."""


def with_dependencies(operations: Sequence[Operation | None], value: Tensor) -> Tensor:
    """Return `value`, available once `operations` are done."""
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.identity(value)


def applied() -> Tensor:
    """Return 1, the result of a branch that applied its change. int64[]."""
    return tf.constant(1, tf.int64)


def not_applied() -> Tensor:
    """Return 0, the result of a branch that applied nothing. int64[]."""
    return tf.constant(0, tf.int64)


def clock() -> Tensor:
    """Seconds since 1970 by the clock of the server where it is emitted, when that section has its turn. float64[]."""
    return unordered(tf.timestamp())


def critical(device: str, container: str, inputs: Sequence[Tensor], body: Callable[..., Structure]) -> Structure:
    """Emit `body(*inputs)` so that it runs alone on the server.

    Args:
        device: the server's device.
        container: the job's container there, which holds the mutex.
        inputs: tensors from anywhere; they are on the server before the lock is taken.
        body: emits the operations; what it returns must depend on every write that it makes.

    Returns:
        The structure of tensors that `body` returned, available after the lock is free again.
    """
    values, former = told(device, inputs), remembered("sections")
    if not former:
        _return_at_once()
    with tf.device(device):
        with tf.control_dependencies([*values, *former.get(device, [])]):
            mutex = unordered(tf.raw_ops.MutexV2(container=container, shared_name="mutex"))
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            result = body(*map(tf.identity, values))
        with tf.control_dependencies(tf.nest.flatten(result)):
            released = unordered(tf.raw_ops.ConsumeMutexLock(mutex_lock=lock))
        former[device] = [released]
        with tf.control_dependencies([released]):
            fetched: Structure = tf.nest.map_structure(tf.identity, result)
            return fetched


def told(device: str, values: Sequence[Tensor]) -> list[Tensor]:
    """Emits tensors as they are on a server, each sent once in a function, and small ones of one machine together.

    Every tensor that crosses to a server is a call of its own there. What a section needs later may be told with what
    an earlier one needs.
    """
    given = [tf.convert_to_tensor(value) for value in values]
    here = remembered(f"told {device}")
    together: dict[str, list[Tensor]] = {}
    with tf.device(device):
        for value in given:
            if value.ref() in here:
                continue
            if not _is_small(value) or value.device == device:
                here[value.ref()] = tf.identity(value)
            elif getattr(value, "op", None) is not None and value.op.type == "Const":
                here[value.ref()] = tf.constant(tf.get_static_value(value), value.dtype)
            else:
                together.setdefault(_server_of(value), []).append(value)
        for found in together.values():
            packed = tf.identity(_pack(found) if len(found) > 1 else found[0])
            parts = _unpack(packed, found) if len(found) > 1 else [packed]
            here.update({value.ref(): part for value, part in zip(found, parts, strict=True)})
    return [here[value.ref()] for value in given]


def unordered(emitted: Operation) -> Operation:
    """What was just emitted, without TensorFlow's own idea of its place among other operations.

    In a function TensorFlow lets operations with an effect, and without a resource that it knows, run one after the
    other as they are emitted, on whatever machine. Sections of several servers would wait for each other so, with a
    message from each to the next, and calls would take longer with every further server. Here what has to wait has an
    input from what it waits for.
    """
    manager = tf.compat.v1.get_default_graph().experimental_acd_manager
    if manager is not None:
        manager.run_independently(emitted if isinstance(emitted, tf.Operation) else emitted.op)
    return emitted


def remembered(what: str) -> dict[Hashable, Tensor]:
    """What is remembered of a kind while a function is traced.

    Of `sections` the release of the last one on each server: those of one server run in the order in which they are
    emitted.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_pstraining"):
        graph._pstraining = {}
    found: dict[Hashable, Tensor] = graph._pstraining.setdefault(what, {})
    return found


def _return_at_once() -> None:
    """Do not hold back what the function that is traced returns until all that it does is done.

    TensorFlow would, by a message of every server; the call itself ends no sooner.
    """
    manager = tf.compat.v1.get_default_graph().experimental_acd_manager
    if manager is not None:
        manager._returned_tensors = _Nothing()


class _Nothing(list[Operation]):
    """Takes what is added, and is empty."""

    def add(self, _: Operation) -> None:
        """Forget it."""


def _is_small(value: Tensor) -> bool:
    return value.dtype in (tf.int64, tf.float64) and (value.shape.num_elements() or SMALL + 1) <= SMALL


def _server_of(value: Tensor) -> str:
    """The server that has made a tensor; nothing if this task has."""
    return value.device if "/job:ps/" in value.device else ""


def _pack(values: Sequence[Tensor]) -> Tensor:
    """All numbers of one machine one behind the other, and there. int64[n]."""
    with tf.device(None), tf.device(_server_of(values[0]) or None):
        flat = [tf.reshape(value, [-1]) for value in values]
        return tf.concat([part if part.dtype == tf.int64 else tf.bitcast(part, tf.int64) for part in flat], 0)


def _unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = tf.split(packed, [value.shape.num_elements() for value in like])
    return [
        tf.reshape(part if value.dtype == tf.int64 else tf.bitcast(part, value.dtype), value.shape)
        for part, value in zip(parts, like, strict=True)
    ]


def arbiter_first(
    servers: Sequence[object], emit: Callable[[int, Tensor], Tensor], go: Tensor | None = None
) -> list[Tensor]:
    """Emits what every server answers, where it is; the arbiter's answer, which begins with a yes or no, is for all.

    Args:
        servers: the arbiter is the first.
        emit: gets a server's number and what it is told: the arbiter's answer, or for the arbiter whether it may.
        go: 1 if the arbiter may; None: it may. int64[].
    """
    first = emit(0, tf.constant(1, tf.int64) if go is None else go)
    return [first, *(emit(number, first) for number in range(1, len(servers)))]
