"""A connected task's own devices, as TensorFlow lists them."""

import tensorflow as tf

from pstraining.runtime.config.cluster import Task


def prepare() -> None:
    """Let GPU memory grow with its use, so that processes can share a GPU; before TensorFlow uses a device."""
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)


def of_task(task: Task) -> tuple[str, ...]:
    """Return the names of a connected task's own devices, such as CPU:0 and GPU:0."""
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    return tuple(
        f"{spec.device_type}:{spec.device_index}"
        for spec in specs
        if (spec.job or task.type) == task.type and (spec.task or 0) == task.index
    )
