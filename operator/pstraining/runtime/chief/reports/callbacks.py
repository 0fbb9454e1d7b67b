"""Keras callbacks and validation on the chief, in a separate thread: neither delays training nor the chief's work.

Callbacks see a snapshot of the parameter servers' state in the chief's Keras model.
"""

import csv
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import keras
import tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList
from keras.src.utils import file_utils

from pstraining.runtime.checkpoint.state import StateParts
from pstraining.runtime.chief.refusals import refused
from pstraining.runtime.chief.reports.assigned_weights import AssignedWeights
from pstraining.runtime.chief.reports.evaluation import evaluation_weights, numbers
from pstraining.runtime.chief.reports.fixed_settings import FixedSettings
from pstraining.runtime.data.batches import for_evaluation
from pstraining.runtime.data.validation import Validation
from pstraining.runtime.model.errors import refusing_repeated_errors
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.own_state import with_settings
from pstraining.runtime.model.partition import Array
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.long_evaluation import noting_long


class CallbackError(RuntimeError):
    """A callback or the validation has failed."""


@dataclass(frozen=True)
class EpochEnd:
    """An epoch that has ended."""

    epoch: int
    """Number of the epoch, from 0; of the last one if several have ended since the last report."""
    step: int
    logs: dict[str, float]
    state: StateParts | None
    """The parameters at the epoch's end; None if neither callbacks nor validation need them."""
    validate: bool
    following: int | None
    """Number of the current epoch; None if training is over."""
    skipped: int = 0
    """Steps that overflowed, which optimizers do not count."""


class EpochEnds:
    """A thread that validates and calls callbacks for each epoch's end in sequence.

    Args:
        model: the chief's model.
        device: the device that computes.
        callbacks: Keras callbacks that `refusals.check` accepted.
        validation: the validation at the end of epochs; None: no validation.
        done: called with every epoch's end and its complete logs.
        optimizer_steps: returns the steps of an optimizer at a global step, which schedules count.
    """

    def __init__(
        self,
        model: Model,
        device: str,
        callbacks: Sequence["keras.callbacks.Callback"],
        validation: Validation | None,
        done: Callable[[EpochEnd], None] = lambda end: None,
        *,
        optimizer_steps: Callable[[int], int] = lambda step: step,
    ) -> None:
        self._model, self._device, self._validation, self._done = model, device, validation, done
        self._optimizer_steps = optimizer_steps
        self._fixed, self._assigned = FixedSettings.of(model), AssignedWeights(model, callbacks)
        self._restoring = [callback for callback in callbacks if getattr(callback, "restore_best_weights", False)]
        self._callbacks = CallbackList(list(callbacks), add_history=True, model=model.keras) if callbacks else None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy = threading.Semaphore(0)
        self._logs: dict[str, float] = {}  # of the last epoch
        self._begun = -1  # the last epoch that callbacks have begun
        self._begun_at = 0  # the step at which it has begun
        self._ended = -1  # the last epoch that has ended
        self._is_closed = False
        self._has_result = False  # whether callbacks have assigned weights after the last batch
        self._left_out = False  # whether metrics were reported as left out
        self._waiting = 0  # unfinished tasks; only the chief's thread changes the number
        self._error: BaseException | None = None
        run = with_settings(self._run)  # callbacks may create layers
        self._thread = threading.Thread(target=run, name="pstraining-callbacks", daemon=True)

    @property
    def wants_state(self) -> bool:
        """Return whether callbacks need the parameters at every epoch's end."""
        return self._callbacks is not None

    def begin(self, epoch: int, step: int = 0, state: StateParts | None = None, **params: object) -> None:
        """Start the thread; training starts in this epoch, or resumes at this step with a state."""
        self._model.keras.stop_training = False
        self._begun, self._begun_at = epoch, step
        self._thread.start()
        self._give(lambda: self._begin(epoch, params, step, state))

    def end(self, end: EpochEnd) -> None:
        """Process an epoch's end; call it while `busy` is false."""
        self._give(lambda: self._end(end))

    def close(self, state: StateParts | None = None, *, averaged: bool = True) -> None:
        """Call the callbacks for the end of training, with the logs of the last epoch; later calls do nothing.

        Args:
            state: the last state; None: the model is not changed.
            averaged: whether the averages of an optimizer with `use_ema` replace the weights, as at the end of `fit`.
        """
        if not self._is_closed:  # the chief repeats the end of training after a loss
            self._is_closed = True
            self._give(lambda: self._close(state, averaged=averaged))

    @property
    def busy(self) -> bool:
        """Return whether a task is unfinished.

        Raises:
            CallbackError: a callback or the validation has failed.
            CallbackRefusedError: Keras refuses a callback's setting.
        """
        while self._busy.acquire(blocking=False):
            self._waiting -= 1
        if self._error is not None:
            if refusal := refused(self._error):
                raise refusal from self._error
            what = f"{type(self._error).__name__}: {self._error}"
            raise CallbackError(f"a callback or the validation has failed: {what}") from self._error
        return self._waiting > 0

    @property
    def stop_asked(self) -> bool:
        """Return whether a callback has set `model.stop_training`."""
        return self._callbacks is not None and bool(self._model.keras.stop_training)

    def stops(self, step: int) -> bool:
        """Return whether a callback ends training at this step.

        As in `fit`, the epoch that callbacks have begun has an update first, also if they stop it at its beginning.
        """
        return self.stop_asked and (self.open_epoch is None or step > self._begun_at)

    @property
    def open_epoch(self) -> int | None:
        """Return the number of the epoch that has begun for callbacks, and has not ended; None for none."""
        return self._begun if self._callbacks and self._begun > self._ended else None

    def best(self) -> dict[str, Array] | None:
        """Return the parameters that a callback has set at the end of training, as EarlyStopping does, by path.

        None if no callback sets any. Call it after `close`, once `busy` is false.
        """
        held = (getattr(callback, "best_weights", None) for callback in self._restoring)
        is_set = self._has_result or any(weights is not None for weights in held)
        return self._assigned.values() if is_set else None

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

    def _begin(self, epoch: int, params: dict[str, object], step: int, state: StateParts | None) -> None:
        if self._callbacks:
            self._take(state, step)
            self._callbacks.set_params({"verbose": 0, **params})
            self._assigned.note()
            self._callbacks.on_train_begin()
            self._assigned.training_begun()
            keep_columns(self._callbacks.callbacks)
            self._fixed.check_all(self._model)
            self._callbacks.on_epoch_begin(epoch)
            check = self._fixed.check_rates if epoch else self._fixed.check_all  # later ones have no effect in `fit`
            check(self._model)
            self._assigned.check()

    def _take(self, state: StateParts | None, step: int, skipped: int = 0) -> None:
        """Give the model a state, and its optimizers the number of steps that they have made.

        TensorBoard reads the number, also a MultiOptimizer's own one, and for schedules the rate of this step.
        """
        if state is not None:
            self._model.assign(evaluation_weights(state, self._model.trained_by, over=False))
        for own in (self._model.optimizer, *self._model.optimizers):
            own._iterations.assign(max(0, self._optimizer_steps(step) - skipped))

    def _end(self, end: EpochEnd) -> None:
        self._take(end.state, end.step, end.skipped)
        if end.state is not None:
            self._assigned.note()
        if end.validate and self._validation:
            with refusing_repeated_errors("validation: the model cannot be evaluated"), noting_long("validation"):
                measured = self._model.keras.evaluate(
                    for_evaluation(self._validation.data()),
                    callbacks=self._callbacks,
                    steps=self._validation.steps,
                    return_dict=True,
                    verbose=0,
                )
            found = numbers(measured, is_reported=self._left_out)
            self._left_out |= len(found) < len(measured)
            end.logs.update({f"val_{name}": value for name, value in found.items()})
            self._assigned.note_state()
        event("epoch", **(end.logs | {"epoch": end.epoch, "step": end.step}))  # a metric may have these names, too
        self._done(end)
        self._logs = dict(end.logs)
        if self._callbacks:
            self._ended = end.epoch
            self._callbacks.on_epoch_end(end.epoch, dict(end.logs))
            if end.following is not None and not self.stop_asked:
                self._set_skipped_rates(self._callbacks, end.following)
                self._begun, self._begun_at = end.following, end.step
                self._callbacks.on_epoch_begin(end.following)
                self._assigned.check()
            else:
                self._has_result = self._assigned.are_result()
            self._fixed.check_rates(self._model)

    def _set_skipped_rates(self, callbacks: CallbackList, following: int) -> None:
        """Let LearningRateScheduler set the rates of epochs that were reported together with the one before.

        Its function may multiply the rate of the epoch before.
        """
        for epoch in range(self._begun + 1, following):
            for callback in callbacks.callbacks:
                if isinstance(callback, keras.callbacks.LearningRateScheduler):
                    callback.on_epoch_begin(epoch)

    def _close(self, state: StateParts | None, *, averaged: bool) -> None:
        if self._callbacks is None:
            return
        # As in `fit`, weights that the last `on_epoch_end` has assigned stay, unless averages replace them.
        self._has_result &= not (averaged and any(own.use_ema for own in self._model.optimizers))
        if state is not None and not self._has_result:
            self._model.assign(evaluation_weights(state, self._model.trained_by, over=averaged))
        self._assigned.note_all()
        self._callbacks.on_train_end(dict(self._logs))
        self._has_result |= self._assigned.has_result()


def keep_columns(callbacks: Sequence["keras.callbacks.Callback"]) -> None:
    """Let a CSVLogger with `append` write into the columns of its file, once training has begun.

    Keras takes the columns from the first epoch, of which a restarted chief may know fewer results.
    """
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.CSVLogger) or callback.append_header:
            continue
        with file_utils.File(callback.filename, "r") as file:
            header = next(csv.reader(file, delimiter=callback.sep), [])
        if header[:1] == ["epoch"]:
            callback.keys = header[1:]
