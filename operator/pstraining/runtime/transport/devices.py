"""A connected task's own devices, as TensorFlow lists them."""

import os

import tensorflow as tf

from pstraining.runtime.config.cluster import Task
from pstraining.runtime.config.devices import check_gpus
from pstraining.runtime.model.tensor import Structure


def prepare(requested: int) -> None:
    """Let GPU memory grow with its use, so that processes can share a GPU; before TensorFlow creates its devices.

    Unlike `tf.config`, the environment variable is accepted after the program has listed its devices.

    Args:
        requested: GPUs that must be visible.

    Raises:
        SettingsError, GpuMissingError: see `check_gpus`.
    """
    gpus = tf.config.list_physical_devices("GPU")
    check_gpus(requested=requested, visible=len(gpus), is_built_for_gpus=tf.test.is_built_with_gpu_support())
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def of_task(task: Task) -> tuple[str, ...]:
    """Return the names of a connected task's own devices, such as CPU:0 and GPU:0."""
    specs = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    return tuple(
        f"{spec.device_type}:{spec.device_index}"
        for spec in specs
        if (spec.job or task.type) == task.type and (spec.task or 0) == task.index
    )


def emit_received(result: Structure, cpu: str) -> Structure:
    """Emit receiving tensors from servers on this task's CPU, in memory that an accelerator copies from directly.

    TensorFlow decodes a message straight into a tensor on a CPU alone; for a GPU it would parse and copy the message
    twice. An operation on the CPU whose output goes to a GPU writes to pinned memory. It has to write a new tensor: an
    identity would return the received one.
    """
    with tf.device(cpu):
        received: Structure = tf.nest.map_structure(lambda value: tf.raw_ops.DeepCopy(x=value), result)
        return received
