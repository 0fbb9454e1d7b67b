"""Keras callbacks and validation on the chief, in a separate thread: neither delays training nor the chief's work.

Callbacks see a snapshot of the parameter servers' state in the chief's Keras model. Batches are trained on the workers,
so callbacks with hooks for batches are refused: a callback that is never called would be worse than an error.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import keras
import numpy as np
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.tensor import Dataset, KerasOptimizer
from pstraining.runtime.telemetry.events import event

BATCH_HOOKS: Final = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
REFUSED: Final = {
    "BackupAndRestore": "the chief's checkpoints do it",
    "SwapEMAWeights": "averages lie on the parameter servers",
    "TerminateOnNaN": "spec.training.nonFinite: Fail, the default, does it",
}
"""Keras's callbacks that do not work on a chief, and the replacement of each."""


SCHEDULE: Final = keras.optimizers.schedules.LearningRateSchedule


class CallbackError(RuntimeError):
    """A callback or the validation has failed."""


class CallbackRefusedError(FinalError, ValueError):
    """A callback that cannot be used on a chief; the message says what to use in its place."""


@dataclass(frozen=True)
class EpochEnd:
    """An epoch that has ended."""

    epoch: int
    """Number of the epoch, from 0; of the last one if several have ended since the last report."""
    step: int
    logs: dict[str, float]
    state: State | None
    """The parameters at the epoch's end; None if neither callbacks nor validation need them."""
    validate: bool
    following: int | None
    """Number of the current epoch; None if training is over."""


def check(callbacks: Sequence["keras.callbacks.Callback"]) -> None:
    """Refuse callbacks that do not work on a chief.

    Raises:
        CallbackRefusedError: names the callback and what to use in its place.
    """
    for callback in callbacks:
        name = type(callback).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise CallbackRefusedError(f"callbacks: {name} is not a keras.callbacks.Callback")
        for refused, instead in REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, refused)):
                raise CallbackRefusedError(f"callbacks: {name} cannot be used on parameter servers: {instead}")
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq != "epoch":
            raise CallbackRefusedError(
                f"callbacks: {name} can save at the end of epochs alone: leave save_freq at 'epoch'"
            )
        if getattr(callback, "restore_best_weights", False):
            raise CallbackRefusedError(
                f"callbacks: {name} with restore_best_weights keeps the best weights in the chief's memory, where they "
                "are lost with it; use ModelCheckpoint(save_best_only=True) beside it"
            )
        if own := [hook for hook in BATCH_HOOKS if _is_own(callback, hook)]:
            raise CallbackRefusedError(
                f"callbacks: {name}.{own[0]} would never be called: batches are trained on the workers. Use "
                "on_epoch_end, with shorter epochs (steps_per_epoch)"
            )


def _is_own(callback: "keras.callbacks.Callback", hook: str) -> bool:
    """Return whether the program overrides this method of Keras's."""
    if hook in vars(callback):
        return not getattr(vars(callback)[hook], "__module__", "keras").startswith("keras.")
    owner = next(kind for kind in type(callback).__mro__ if hook in vars(kind))
    return not owner.__module__.startswith("keras.")


class EpochEnds:
    """A thread that validates and calls callbacks, one epoch's end after the other.

    Args:
        model: the chief's model.
        device: the device that computes.
        callbacks: Keras callbacks that `check` accepted.
        validation: creates the validation dataset.
        done: called with every epoch's end and its complete logs.
    """

    def __init__(
        self,
        model: Model,
        device: str,
        callbacks: Sequence["keras.callbacks.Callback"],
        validation: Callable[[], Dataset] | None,
        done: Callable[[EpochEnd], None] = lambda end: None,
    ) -> None:
        self._model, self._device, self._validation, self._done = model, device, validation, done
        self._callbacks = CallbackList(list(callbacks), model=model.keras) if callbacks else None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy = threading.Semaphore(0)
        self._waiting = 0  # unfinished tasks; only the chief's thread changes the number
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pstraining-callbacks", daemon=True)

    @property
    def wants_state(self) -> bool:
        """Return whether callbacks need the parameters at every epoch's end."""
        return self._callbacks is not None

    def begin(self, epoch: int, **params: object) -> None:
        """Start the thread; training starts or resumes in this epoch."""
        self._model.keras.stop_training = False
        self._thread.start()
        self._give(lambda: self._begin(epoch, params))

    def end(self, end: EpochEnd) -> None:
        """Process an epoch's end; call it while `busy` is false."""
        self._give(lambda: self._end(end))

    def close(self) -> None:
        """Call the callbacks for the end of training."""
        self._give(lambda: self._callbacks.on_train_end() if self._callbacks else None)

    @property
    def busy(self) -> bool:
        """Return whether a task is unfinished.

        Raises:
            CallbackError: a callback or the validation has failed.
        """
        while self._busy.acquire(blocking=False):
            self._waiting -= 1
        if self._error is not None:
            what = f"{type(self._error).__name__}: {self._error}"
            raise CallbackError(f"a callback or the validation has failed: {what}") from self._error
        return self._waiting > 0

    @property
    def stop_asked(self) -> bool:
        """Return whether a callback has set `model.stop_training`."""
        return self._callbacks is not None and bool(self._model.keras.stop_training)

    def _give(self, task: Callable[[], None]) -> None:
        self._waiting += 1
        self._tasks.put(task)

    def _run(self) -> None:
        with tf.device(self._device):
            while task := self._tasks.get():
                try:
                    task()
                except BaseException as error:  # noqa: BLE001 - raised again in the chief's thread
                    self._error = error
                    return
                finally:
                    self._busy.release()

    def _begin(self, epoch: int, params: dict[str, object]) -> None:
        if self._callbacks:
            self._callbacks.set_params({"verbose": 0, **params})
            self._callbacks.on_train_begin()
            self._callbacks.on_epoch_begin(epoch)

    def _end(self, end: EpochEnd) -> None:
        if end.state is not None:
            self._model.assign(end.state.variables)
        if end.validate and self._validation:
            measured = self._model.keras.evaluate(
                self._validation(), callbacks=self._callbacks, return_dict=True, verbose=0
            )
            end.logs.update({f"val_{name}": float(np.asarray(value)) for name, value in measured.items()})
        event("epoch", epoch=end.epoch, step=end.step, **end.logs)
        self._done(end)
        if self._callbacks:
            self._callbacks.on_epoch_end(end.epoch, dict(end.logs))
            if end.following is not None and not self.stop_asked:
                self._callbacks.on_epoch_begin(end.following)


def learning_rate(optimizer: KerasOptimizer, step: int) -> float | None:
    """Return the optimizer's learning rate at a step; None if it is not a number."""
    rate = getattr(optimizer, "_learning_rate", None)
    with suppress(TypeError, ValueError):
        return float(np.asarray(rate(step) if isinstance(rate, SCHEDULE) else optimizer.learning_rate))
    return None
