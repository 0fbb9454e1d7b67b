"""Where a traced step's operations run, and which tensors cross between devices, from the graphs that TensorFlow ran.

Logical CPU devices stand in for accelerators: TensorFlow places operations and copies tensors between them as it does
between a CPU and a GPU, except that each kernel exists on both.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.run_metadata import recorded

LOGICAL = 3
"""The CPU devices of the process that runs the tests."""
USUAL = "usual"
"""As a test's parameter: the devices that the client has, CPU:0 or those of PSTRAINING_TEST_DEVICES."""


def divide_cpu() -> None:
    """Divide the CPU into logical devices; must be called before TensorFlow uses it."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL)


def wanted_devices() -> list[str] | None:
    """Return the computing devices of PSTRAINING_TEST_DEVICES, such as CPU:1,CPU:2; None leaves TensorFlow's own.

    The process then has them. Call it before TensorFlow uses the CPU.
    """
    wanted = os.environ.get("PSTRAINING_TEST_DEVICES")
    if not wanted:
        return None
    divide_cpu()
    return wanted.split(",")


def sees_gpu() -> bool:
    """Return whether tests compute on a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


@contextmanager
def computing_on(client: Any, *names: str) -> Iterator[None]:
    """Let the client compute on this device, such as CPU:1; USUAL leaves its devices as they are."""
    before = client.devices
    client.devices = tuple(client._own(name) for name in names if name != USUAL) or before
    try:
        yield
    finally:
        client.devices = before


def assert_computes(store: Any, device: str) -> None:
    """Demand that the model of a worker's store is on this device, such as CPU:1 or USUAL."""
    found = {_short(variable.value.device).split()[-1] for variable in store.model.variables}
    assert device == USUAL or found == {device}


@dataclass
class Copies:
    """The work of a step's functions: copies between devices by dtype, and operations by device."""

    between: Counter[tuple[str, str, str]]
    """Copies by source, target and dtype, without those that only order operations."""
    kinds: dict[str, set[str]]
    """The kinds of operations by device."""

    def sent(self, device: str, dtypes: Sequence[str] = ("float32", "int8", "uint8", "bfloat16")) -> int:
        """Return copies of parameters or gradients from a device to any other."""
        return sum(n for (source, _, dtype), n in self.between.items() if source == device and dtype in dtypes)

    def received(self, device: str, dtypes: Sequence[str] = ("float32", "int8", "uint8", "bfloat16")) -> int:
        """Return copies of parameters or gradients to a device from any other."""
        return sum(n for (_, target, dtype), n in self.between.items() if target == device and dtype in dtypes)

    def devices_of(self, kind: str) -> set[str]:
        """Return the devices with an operation whose kind contains this text."""
        return {device for device, kinds in self.kinds.items() if any(kind in one for one in kinds)}


@contextmanager
def watched() -> Iterator[Copies]:
    """Record the copies and operations of the functions that the block runs."""
    found = Copies(Counter(), {})
    with recorded() as functions:
        yield found
    for graph in itertools.chain.from_iterable(functions):
        _note(graph, found)


def _note(graph: Any, found: Copies) -> None:
    import tensorflow as tf

    orders = {node.name for node in graph.node if node.op == "Const"}
    for node in graph.node:
        found.kinds.setdefault(_short(node.device), set()).add(node.op)
        if node.op == "_Send" and node.input[0] not in orders:
            ends = (_short(node.attr[name].s.decode()) for name in ("send_device", "recv_device"))
            found.between[*ends, tf.as_dtype(node.attr["T"].type).name] += 1


def _short(device: str) -> str:
    """Return the short form of a device's name, such as ps 0 CPU:0."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device)
    return f"{spec.job} {spec.task} {spec.device_type}:{spec.device_index}"
