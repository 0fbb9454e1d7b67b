"""Scalars for TensorBoard, in event files that it reads during training."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from pstraining.runtime.telemetry.events import event


class Summaries:
    """Writes scalars; writes nothing without a folder or after a failure, and training continues.

    Args:
        folder: folder of event files; each chief adds a file.
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
            except (tf.errors.OpError, OSError) as error:  # a full disk, or a folder without permission
                self._writer = None
                event("no_summaries", reason=str(error).partition("\n")[0])

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = tf.summary.create_file_writer(str(folder))

    def _write(self, writer: "tf.summary.SummaryWriter", step: int, scalars: Mapping[str, float]) -> None:
        with writer.as_default(step=step):
            for name, value in scalars.items():
                # As in tf.summary.scalar, but without the package tensorboard, which the image need not contain.
                metadata = tf.compat.v1.SummaryMetadata()
                metadata.plugin_data.plugin_name = "scalars"
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
            writer.flush()
