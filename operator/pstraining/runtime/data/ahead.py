"""Batches on the computing device, read and copied there while the previous batch is trained."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import tensorflow as tf

from pstraining.runtime.model.tensor import Batch, Tensor

_ON_CPU = (tf.int32, tf.string, tf.resource, tf.variant)
"""Types that TensorFlow keeps in the CPU's memory on every device."""


def on_device(batches: Iterator[Batch], device: str, *, cpu: str) -> Iterator[Batch]:
    """Return the batches on a device; if that is the CPU, the iterator itself.

    Args:
        batches: an iterator without another user.
        device: the device that computes.
        cpu: this task's CPU, on which the iterator runs.
    """
    return batches if device == cpu else _Ahead(batches, device, cpu)


class _Ahead(Iterator[Batch]):
    """A thread reads one batch ahead. It ends with the iterator, or when this object is dropped."""

    def __init__(self, batches: Iterator[Batch], device: str, cpu: str) -> None:
        self._wanted, self._found = SimpleQueue[bool](), SimpleQueue[Batch | _End]()
        self._end: _End | None = None
        # The thread must not hold this object, which would never be dropped.
        arguments = batches, device, cpu, self._wanted, self._found
        threading.Thread(target=_read, args=arguments, name="pstraining-ahead-of-time", daemon=True).start()
        self._wanted.put(True)

    def __next__(self) -> Batch:
        if self._end is None:
            found = self._found.get()
            if not isinstance(found, _End):
                self._wanted.put(True)
                return found
            self._end = found
        raise self._end.error

    def __del__(self) -> None:
        self._wanted.put(False)


class _End:
    """The end of the batches, with the exception if there was one."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _read(
    batches: Iterator[Batch], device: str, cpu: str, wanted: SimpleQueue[bool], found: "SimpleQueue[Batch | _End]"
) -> None:
    while wanted.get():
        try:
            with tf.device(cpu):
                batch = next(batches)
            with tf.device(device):
                found.put(tf.nest.map_structure(_copied, batch))
        except BaseException as error:  # noqa: BLE001 - raised again in the worker's thread
            found.put(_End(error))
            return


def _copied(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor on the current device; None, such as for labels that a batch does not have, is kept."""
    return tensor if tensor is None or tensor.dtype in _ON_CPU else tf.identity(tensor)
