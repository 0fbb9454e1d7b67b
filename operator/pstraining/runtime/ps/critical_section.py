"""Check and apply as one step on a parameter server: a critical section under a named mutex.

The mutex lives on the server by name like the variables, and TensorFlow frees it when its holder dies. Two rules keep a
section atomic when its caller is killed: all inputs arrive before the lock is acquired, and nothing loops, waits
or receives after the first write.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Structure, Tensor

SMALL: Final = 64
"""Maximum numbers of 8 bytes in an input that is sent together with others."""
LONGEST_SECONDS: Final = 60.0
"""Maximum seconds from the present to a time at which something on a server ends."""
NEVER: Final = 4e9
"""The end of what does not end by time, in seconds since 1970."""


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


def unless(skipped: Tensor | None, apply: Callable[[], Sequence[Operation] | None]) -> list[Operation]:
    """Emit `apply` unless a condition, bool[], is true; None is always false. Return the operations to wait for."""
    if skipped is None:
        return list(apply() or [])
    return [tf.cond(skipped, not_applied, lambda: with_dependencies(apply() or [], applied()))]


def clock() -> Tensor:
    """Emit the seconds since 1970 on the server's clock, read inside the critical section. float64[]."""
    return unordered(tf.timestamp())


def is_ahead(until: Tensor, most: float = LONGEST_SECONDS) -> Tensor:
    """Emit whether a time on the server's clock has yet to come, inside the critical section. bool[...].

    A time that is farther ahead than any that is set counts as over, because the clock was set back. NEVER does not.

    Args:
        until: the time. float64[...].
        most: seconds from the present to the latest time that is set.
    """
    left = until - clock()
    return ((left > 0) & (left < most + 1)) | (until >= NEVER)  # sums of large numbers are rounded


def critical(device: str, container: str, inputs: Sequence[Tensor], body: Callable[..., Structure]) -> Structure:
    """Emit `body(*inputs)` as the only critical section that runs on the server at a time.

    Args:
        device: the server's device.
        container: the job's container there, which holds the mutex.
        inputs: tensors on any device; they are sent to the server before the lock is acquired.
        body: emits the operations; its result must depend on every write.

    Returns:
        The structure of tensors that `body` returned, available after the lock is free again.
    """
    values, former = sent_to(device, inputs), remembered("sections")
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


def sent_to(device: str, values: Sequence[Tensor]) -> list[Tensor]:
    """Emit sending tensors to a server: each once per function, and small ones of one machine together.

    Every tensor that is sent to a server costs a call there. An input of a later section may be sent with those of an
    earlier one.
    """
    given = [tf.convert_to_tensor(value) for value in values]
    here = remembered(f"sent to {device}")
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
        packed = _pack(found) if len(found) > 1 else found[0]
        with tf.device(device):
            packed = tf.identity(packed)
            parts = _unpack(packed, found) if len(found) > 1 else [packed]
            here.update({value.ref(): part for value, part in zip(found, parts, strict=True)})
    return [here[value.ref()] for value in given]


def unordered(emitted: Operation) -> Operation:
    """Return an emitted operation without TensorFlow's automatic control dependencies.

    Inside a function, TensorFlow runs operations with an effect, and without a resource that it knows, in the order in
    which they were emitted, on all machines. Sections of several servers would then wait for each other, with a message
    from each to the next. Here, an operation that has to wait has an input from the one that it waits for.
    """
    manager = tf.compat.v1.get_default_graph().experimental_acd_manager
    if manager is not None:
        manager.run_independently(emitted if isinstance(emitted, tf.Operation) else emitted.op)
    return emitted


def remembered(what: str) -> dict[Hashable, Tensor]:
    """Return the entries of one kind that belong to the function that is being traced.

    The kind `sections` holds the release of the last section on each server: the sections of one server run in the
    order in which they were emitted.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_pstraining"):
        graph._pstraining = {}
    found: dict[Hashable, Tensor] = graph._pstraining.setdefault(what, {})
    return found


def _return_at_once() -> None:
    """Let the traced function return its results before all its operations have run.

    TensorFlow would hold the results back until a message from every server. The call itself ends at the same time.
    """
    manager = tf.compat.v1.get_default_graph().experimental_acd_manager
    if manager is not None:
        manager._returned_tensors = _Nothing()


class _Nothing(list[Operation]):
    """A list that stays empty."""

    def add(self, _: Operation) -> None:
        """Ignore the operation."""


def _is_small(value: Tensor) -> bool:
    return value.dtype in (tf.int64, tf.float64) and (value.shape.num_elements() or SMALL + 1) <= SMALL


def _server_of(value: Tensor) -> str:
    """Return the device of the server that computes a tensor; empty for this task."""
    return value.device if "/job:ps/" in value.device else ""


def _pack(values: Sequence[Tensor]) -> Tensor:
    """Emit the numbers of one machine as one vector there. int64[n]."""
    server = _server_of(values[0])
    with tf.device(server) if server else nullcontext():
        parts = [value if value.dtype == tf.int64 else tf.bitcast(value, tf.int64) for value in values]
        if _are_scalars(values):
            return tf.stack(parts)
        return tf.concat([part if part.shape.rank == 1 else tf.reshape(part, [-1]) for part in parts], 0)


def _unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    if _are_scalars(like):
        parts = tf.unstack(packed, num=len(like))
    else:
        parts = tf.split(packed, [value.shape.num_elements() for value in like])
        parts = [
            part if value.shape.rank == 1 else tf.reshape(part, value.shape)
            for part, value in zip(parts, like, strict=True)
        ]
    return [
        part if value.dtype == tf.int64 else tf.bitcast(part, value.dtype)
        for part, value in zip(parts, like, strict=True)
    ]


def _are_scalars(values: Sequence[Tensor]) -> bool:
    return all(value.shape.rank == 0 for value in values)


def arbiter_first(
    servers: Sequence[object], emit: Callable[[int, Tensor], Tensor], go: Tensor | None = None
) -> list[Tensor]:
    """Emit every server's reply, on that server; the other servers receive the arbiter's reply with their request.

    Args:
        servers: the servers, the arbiter first.
        emit: emits a server's reply from its number and the arbiter's reply, or for the arbiter from `go`.
        go: 1 if the arbiter may apply the request; None: 1. int64[].
    """
    first = emit(0, tf.constant(1, tf.int64) if go is None else go)
    return [first, *(emit(number, first) for number in range(1, len(servers)))]
