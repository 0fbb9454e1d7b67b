"""The choice of the devices that compute: the task's accelerators, or the devices that the program names.

Without an accelerator the task's first CPU device computes. Calls to the servers, and the small tensors of these calls,
are always on the CPU. Pure; imports no TensorFlow.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from pstraining.runtime.config.settings import SettingsError

CPU: Final = "CPU:0"
NOT_CHOSEN: Final = ("CPU", "TPU_SYSTEM", "XLA_CPU", "XLA_GPU")
"""Types of devices that compute only if the program names them."""


class GpuMissingError(RuntimeError):
    """TensorFlow sees fewer GPUs than the container's limits request; a pod on another node may see all."""


def check_gpus(*, requested: int, visible: int, is_built_for_gpus: bool) -> None:
    """Refuse to train on CPUs if the container requests GPUs.

    Args:
        requested: number of GPUs in the container's limits.
        visible: number of GPUs that TensorFlow sees.
        is_built_for_gpus: whether this build of TensorFlow supports GPUs.

    Raises:
        SettingsError: the image's TensorFlow does not support GPUs.
        GpuMissingError: TensorFlow sees fewer GPUs on this node.
    """
    if visible >= requested:
        return
    problem = f"the container's limits request {requested} GPUs, but TensorFlow sees {visible}"
    if not is_built_for_gpus:
        raise SettingsError(f"{problem}, because the image's TensorFlow is built for CPUs: use the image with GPUs")
    raise GpuMissingError(
        f"{problem}: check the node's driver, the image's CUDA libraries and CUDA_VISIBLE_DEVICES. "
        'Trainer(devices=["CPU:0"]) trains without GPUs'
    )


def by_type(devices: Sequence[str]) -> dict[str, int]:
    """Return the number of devices by type: {"GPU": 2}."""
    return dict(Counter(device.rpartition("device:")[2].partition(":")[0] for device in devices))


def accelerators(visible: Sequence[str]) -> tuple[str, ...]:
    """Return the accelerators among devices."""
    return tuple(name for name in visible if name.partition(":")[0] not in NOT_CHOSEN)


def choose(visible: Sequence[str], wanted: Sequence[str] | None, *, strict: bool) -> tuple[str, ...]:
    """Return the devices that compute: the accelerators, or else the first CPU.

    Args:
        visible: the task's devices.
        wanted: the program's choice among them, the device of the model's variables first; None: all accelerators.
        strict: whether each wanted device must be visible. Otherwise missing ones are left out.

    Raises:
        SettingsError: no device is wanted, a wanted device is not visible, it is named twice, or `wanted` is no list
            of texts.
    """
    if wanted is None:
        return accelerators(visible) or (CPU,)
    if isinstance(wanted, str):
        raise SettingsError(f"devices: {wanted!r} is a text, not a list; use devices=[{wanted!r}]")
    # A generator would be empty when the task connects again.
    if not isinstance(wanted, Collection) or not all(isinstance(name, str) for name in wanted):
        raise SettingsError(f"devices: give a list of names, such as ['GPU:0']; it is {wanted!r}")
    names = [_plain(name) for name in wanted]
    missing = [name for name in names if name not in visible]
    if not names or len(set(names)) < len(names) or (strict and missing):
        problem = f"{', '.join(missing)} not visible" if missing else "no device is named, or one is named twice"
        raise SettingsError(
            f"devices: {problem}; TensorFlow sees {', '.join(visible)} on this task. Leave devices= out to use every "
            "accelerator, or request the device in the container's limits and use an image with its libraries"
        )
    return tuple(name for name in names if name in visible) or (CPU,)


def _plain(name: str) -> str:
    """Return a device's name as TensorFlow's types and numbers: GPU:0 for /device:gpu:0 and /GPU:0."""
    kind, _, number = name.rpartition("/")[2].removeprefix("device:").partition(":")
    return f"{kind.upper()}:{number or 0}"
