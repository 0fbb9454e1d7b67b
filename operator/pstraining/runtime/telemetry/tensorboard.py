"""Scalars for TensorBoard, in event files that it reads while training goes on."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from pstraining.runtime.telemetry.events import event


class Summaries:
    """A writer of scalars; without a folder it writes nothing, and one that fails is given up: training goes on.

    Args:
        folder: where event files go; a chief that comes next adds a file of its own.
        device: this task's device.
    """

    def __init__(self, folder: Path | None, device: str) -> None:
        self._device, self._lock = device, threading.Lock()
        self._writer: tf.summary.SummaryWriter | None = None
        if folder is not None:
            self._guarded(lambda: self._open(folder))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers at a global step."""
        if (writer := self._writer) is not None:
            self._guarded(lambda: self._write(writer, step, scalars))

    def _guarded(self, act: Callable[[], None]) -> None:
        with self._lock, tf.device(self._device):
            try:
                act()
            except (tf.errors.OpError, OSError) as error:  # a disk that is full, a folder that is not ours
                self._writer = None
                event("no_summaries", reason=str(error).partition("\n")[0])

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = tf.summary.create_file_writer(str(folder))

    def _write(self, writer: "tf.summary.SummaryWriter", step: int, scalars: Mapping[str, float]) -> None:
        with writer.as_default(step=step):
            for name, value in scalars.items():
                # As tf.summary.scalar does it, without the package tensorboard, which the image need not have.
                metadata = tf.compat.v1.SummaryMetadata()
                metadata.plugin_data.plugin_name = "scalars"
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
            writer.flush()
