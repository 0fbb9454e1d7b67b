"""Tensors that cross between machines in one call of a traced function, as TensorFlow has partitioned it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.run_metadata import recorded

Messages = dict[tuple[str, str], int]
"""Tensors from one task to another, such as `worker-0` to `ps-1`, including signals without a value."""


def messages_of(call: Callable[[], Any]) -> list[Messages]:
    """Return the messages of every function on several machines that the call runs for the first time."""
    with recorded() as functions:
        call()
    found = []
    for parts in functions:
        sent = [node for part in parts for node in part.node if node.op in ("_Send", "_HostSend")]
        pairs = Counter((_task(node, "send_device"), _task(node, "recv_device")) for node in sent)
        found.append({pair: number for pair, number in pairs.items() if pair[0] != pair[1]})
    return [messages for messages in found if messages]


def _task(node: Any, attribute: str) -> str:
    import tensorflow as tf

    device = tf.DeviceSpec.from_string(node.attr[attribute].s.decode())
    return f"{device.job}-{device.task}"
