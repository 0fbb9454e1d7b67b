"""The chief's checks before training: it refuses callbacks and monitors without effect, and endless datasets.

Batches are trained on the workers, so a callback's hooks for batches are never called. A callback that has other hooks
as well, as those of experiment trackers do, is accepted, and an event names the hooks that are not called.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from string import Formatter
from typing import Final

import keras

from pstraining.runtime.data.batches import check_batches, first_batches, is_empty, repeats_forever, types_of
from pstraining.runtime.data.validation import KeptData, Validation
from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.errors import KERAS, is_raised_by, is_refusal_of_keras, refusing_repeated_errors
from pstraining.runtime.model.overrides import lacks_loss
from pstraining.runtime.model.tensor import Dataset, KerasModel, KerasOptimizer
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.long_evaluation import noting_long

BATCH_HOOKS: Final = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
OTHER_HOOKS: Final = tuple(
    f"on_{what}_{when}" for what in ("epoch", "train", "test", "test_batch") for when in ("begin", "end")
)
REFUSED: Final = {
    "BackupAndRestore": "the chief saves and restores checkpoints",
    "SwapEMAWeights": "leave it out; with use_ema, the model has the averages at the end of training",
    "TerminateOnNaN": "spec.training.nonFinite: Fail, the default, ends training at a gradient with NaN or infinity; a "
    "loss that is NaN is in the logs of on_epoch_end",
}
"""Keras's callbacks that do not work on a chief, each with its replacement or the reason."""

PACKAGES: Final = {
    "TensorBoard": ("tensorboard", ": the Trainer writes an epoch's logs for TensorBoard beside the checkpoints"),
    "RemoteMonitor": ("requests", ""),
}
"""Packages of Keras's callbacks whose absence Keras reports only at the end of the first epoch, and other ways out."""

MONITORING: Final = tuple(
    getattr(keras.callbacks, name)
    for name in ("EarlyStopping", "ModelCheckpoint", "OrbaxCheckpoint", "ReduceLROnPlateau")
    if hasattr(keras.callbacks, name)  # older versions of Keras lack OrbaxCheckpoint
)
"""Keras's callbacks that monitor a name in the logs."""
OF_KERAS: Final = ("keras.src.callbacks.", "keras.src.optimizers.")
"""Modules of Keras that raise an error for settings of callbacks."""
OF_SETTINGS: Final = (TypeError, ValueError)
"""The errors that Keras raises for settings. A KeyError may pass: an epoch's logs lack the metrics of late workers."""


class CallbackRefusedError(FinalError, ValueError):
    """A callback or a dataset that cannot be used on a chief; the message names the replacement."""


def created(make: Callable[[], object] | None) -> list["keras.callbacks.Callback"]:
    """Return the program's callbacks. As in `fit`, they may also be a single one, a nested list, or a `CallbackList`.

    Args:
        make: creates them; None: there are none.

    Raises:
        CallbackRefusedError: Keras refuses the arguments of a callback, or lacks a package for it.
    """
    try:
        found = make() if make else None
    except (*OF_SETTINGS, ImportError) as error:
        if refusal := refused(error):
            raise refusal from error
        raise
    if found is None:
        return []
    flat = keras.tree.flatten(list(found) if isinstance(found, Iterable) else found)
    return [callback for one in flat for callback in _members(one)]


def _members(callback: "keras.callbacks.Callback") -> list["keras.callbacks.Callback"]:
    """Return the callbacks in a `CallbackList`, which would hide them from all checks; otherwise the callback."""
    if type(callback) is not keras.callbacks.CallbackList:  # a subclass may have hooks of its own
        return [callback]
    return [found for one in callback.callbacks for found in _members(one)]


def check_all(
    callbacks: Sequence["keras.callbacks.Callback"],
    validation: Validation | None,
    evaluate: Callable[[], Dataset] | None,
) -> dict[str, object]:
    """Make all checks that need no model.

    Returns:
        The types of the batches to evaluate, by the `Trainer`'s argument; None if they are unknown.

    Raises:
        CallbackRefusedError: names the argument and its replacement.
    """
    check(callbacks)
    specs: dict[str, object] = {}
    if validation is None:
        check_monitors(callbacks, LogNames(None, ()))
    else:
        limited = validation.steps is not None
        specs["validation"] = check_data("validation", validation.data, "give validation_steps", may_be_endless=limited)
        if validation.every > 1:
            _check_paths(callbacks)
    if evaluate is not None:
        specs["evaluate"] = check_data("evaluate", evaluate, "end it with take(n)")
    return specs


def check(callbacks: Sequence["keras.callbacks.Callback"]) -> None:
    """Refuse callbacks that do not work on a chief.

    Raises:
        CallbackRefusedError: names the callback and its replacement.
    """
    for callback in callbacks:
        name = type(callback).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise CallbackRefusedError(f"callbacks: {name} is not a keras.callbacks.Callback")
        for refused, instead in REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, refused)):
                raise CallbackRefusedError(f"callbacks: {name} cannot be used on parameter servers: {instead}")
        if option := _option_of_batches(callback):
            raise CallbackRefusedError(
                f"callbacks: {name} works only at the end of epochs, because batches are trained on the workers: leave "
                f"out {option}"
            )
        _check_package(callback, name)
        _check_hooks(callback, name)


def check_rates(callbacks: Sequence["keras.callbacks.Callback"], optimizers: Sequence[KerasOptimizer]) -> None:
    """Refuse callbacks of an older Keras that set the one learning rate of a program with several.

    Raises:
        CallbackRefusedError: names the callback and its replacement.
    """
    setters = {
        keras.callbacks.LearningRateScheduler: "_update_optimizer_lr",
        keras.callbacks.ReduceLROnPlateau: "_reduce_optimizer_lr",
    }
    kinds = tuple(kind for kind, of_each in setters.items() if not hasattr(kind, of_each))
    for callback in callbacks:
        if len(optimizers) > 1 and isinstance(callback, kinds):
            raise CallbackRefusedError(
                f"callbacks: {type(callback).__name__} of this Keras sets one learning rate, but a MultiOptimizer has "
                "one for each optimizer: use Keras 3.15, set the rates of self.model.optimizer.optimizers in a custom "
                "callback, or use schedules"
            )


def refused(error: BaseException) -> CallbackRefusedError | None:
    """Return a refusal with Keras's message if its own callbacks or optimizers have raised the error.

    Such an error is about a setting, or about a package that the image lacks, so another run would meet it again. An
    example is a learning rate that cannot be set beside a schedule. Errors of the program's own callbacks may pass.
    """
    lacks = isinstance(error, ImportError) and is_raised_by(error, KERAS)
    return CallbackRefusedError(f"callbacks: {error}") if lacks or is_refusal_of_keras(error, OF_KERAS) else None


def check_directions(callbacks: Sequence["keras.callbacks.Callback"], model: KerasModel) -> None:
    """Refuse callbacks without `mode` for whose monitor Keras knows no direction, once the model's metrics are built.

    Raises:
        CallbackRefusedError: has Keras's message, which names the way out.
    """
    if model._compile_metrics is not None and not model._compile_metrics.built:
        return
    for callback in callbacks:
        if isinstance(callback, MONITORING) and getattr(callback, "monitor_op", callback) is None:
            try:
                callback._set_monitor_op()  # Keras does so at the end of the first epoch
            except ValueError as error:
                if refusal := refused(error):
                    raise refusal from error
                raise


def check_restores(callbacks: Sequence["keras.callbacks.Callback"], layers: Sequence[str]) -> None:
    """Refuse callbacks that restore the best weights of a model with rows by key, which are not in Keras's weights.

    Args:
        callbacks: the program's callbacks.
        layers: names of the layers with rows by key.

    Raises:
        CallbackRefusedError: names the callback and its replacement.
    """
    for callback in callbacks:
        if layers and getattr(callback, "restore_best_weights", False):
            raise CallbackRefusedError(
                f"callbacks: {type(callback).__name__}.restore_best_weights would not restore the rows of the layer "
                f"{layers[0]}, whose input_dim is None: leave it out, and let ModelCheckpoint save the best model"
            )


def check_loss(model: KerasModel, arguments: Iterable[str]) -> None:
    """Refuse an evaluation without a loss, which Keras would refuse after training.

    Args:
        model: the compiled model.
        arguments: names of the `Trainer`'s arguments that request an evaluation.

    Raises:
        CallbackRefusedError: names the argument and the way out.
    """
    for argument in arguments:
        if lacks_loss(model):
            raise CallbackRefusedError(
                f"{argument}: Keras evaluates a model only with a loss: give the Trainer a loss as well, which "
                f"train_step does not use, or leave {argument} out"
            )


def check_data(argument: str, data: Callable[[], Dataset], instead: str, *, may_be_endless: bool = False) -> object:
    """Refuse data that are no batches, and a dataset that is known to be empty or endless.

    Args:
        argument: name of the `Trainer`'s argument.
        data: creates the dataset. The first batches of a generator are read if this function can keep them.
        instead: advice to the user about an endless dataset.
        may_be_endless: whether the number of batches is limited otherwise.

    Returns:
        The types of the batches; None if they are unknown.

    Raises:
        CallbackRefusedError: names the argument.
        DataError: names the argument and the type of the data.
        ModelError: Keras refuses the batches; names the argument.
    """
    found = data()
    check_batches(found, argument)
    _check_not_empty(argument, found)
    if not may_be_endless:
        if isinstance(found, keras.utils.PyDataset) and found.num_batches is None:
            raise CallbackRefusedError(f"{argument}: the PyDataset never ends (num_batches is None): {instead}")
        if repeats_forever(found):
            raise CallbackRefusedError(f"{argument}: the dataset never ends (repeat() without a count): {instead}")
    try:
        with refusing_repeated_errors(f"{argument}: the model cannot be evaluated"), noting_long(argument):
            first = first_batches(found) if isinstance(data, KeptData) else None
            if isinstance(data, KeptData) and first is not None:
                data.keep(first, found)
                _check_not_empty(argument, first)
            return types_of(found if first is None else first)
    except FinalError:
        raise
    except Exception:  # noqa: BLE001 - of the program, which may be able to read the batches later
        return None


def _check_not_empty(argument: str, data: Dataset) -> None:
    if is_empty(data):
        raise CallbackRefusedError(
            f"{argument}: the dataset is empty, but must have a batch. With drop_remainder=True, it must have the "
            "samples of a batch"
        )


@dataclass(frozen=True)
class LogNames:
    """Names that the logs of an epoch can have. None: not known yet."""

    training: Collection[str] | None
    validation: Collection[str] | None
    """Names that begin with val_; empty without a validation."""

    def lack(self, name: str) -> bool:
        """Return whether certainly no log has this name."""
        part = self.validation if name.startswith("val_") else self.training
        return part is not None and name not in part


def check_monitors(callbacks: Sequence["keras.callbacks.Callback"], names: LogNames) -> None:
    """Refuse callbacks that monitor a name that no log has, or have it in their path.

    A callback with the program's own `on_epoch_end` may add to the logs of an epoch, which it and later callbacks use,
    as in `fit`.

    Raises:
        CallbackRefusedError: names the callback, and the names that it can use.
    """
    for callback in callbacks:
        if _is_own(callback, "on_epoch_end"):
            return
        for use, name in _used(callback):
            if names.lack(name):
                known = ", ".join(sorted({*(names.training or ()), *(names.validation or ())}))
                instead = f"they have {known}" if known else "give the Trainer a validation"
                raise CallbackRefusedError(
                    f"callbacks: {type(callback).__name__} has {use}, which no epoch's logs have: {instead}"
                )


def _used(callback: "keras.callbacks.Callback") -> Iterator[tuple[str, str]]:
    """Yield each use of a name in the logs by one of Keras's callbacks, in words, and the name."""
    if isinstance(callback, MONITORING) and getattr(callback, "save_best_only", True):
        yield f"monitor={callback.monitor!r}", str(callback.monitor)
    for name in _placeholders(callback):
        yield f"{{{name}}} in filepath", name


def _placeholders(callback: "keras.callbacks.Callback") -> list[str]:
    """Return the names in ModelCheckpoint's path, such as {val_loss:.2f}, that Keras replaces by values of the logs."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return []
    try:
        fields = [field for _, field, _, _ in Formatter().parse(callback.filepath) if field is not None]
    except ValueError:  # Keras refuses the path when it uses it
        return []
    return [name for field in fields if (name := re.split(r"[.\[]", field)[0]) != "epoch"]


def _check_paths(callbacks: Sequence["keras.callbacks.Callback"]) -> None:
    """Refuse results of the validation in paths, because some epochs are not validated."""
    for callback in callbacks:
        if _is_own(callback, "on_epoch_end"):  # it may add to the logs
            return
        if found := [name for name in _placeholders(callback) if name.startswith("val_")]:
            raise CallbackRefusedError(
                f"callbacks: {type(callback).__name__} has {{{found[0]}}} in filepath, which epochs without a "
                "validation lack: leave it out, or leave out validation_every"
            )


def _option_of_batches(callback: "keras.callbacks.Callback") -> str:
    """Return the option of Keras's own callbacks that needs batches; empty for none."""
    if getattr(callback, "save_freq", "epoch") != "epoch":
        return "save_freq, or set it to 'epoch'"
    if isinstance(callback, keras.callbacks.TensorBoard):
        if callback.update_freq != "epoch":
            return "update_freq, or set it to 'epoch'"
        if callback._start_batch > 0:
            return "profile_batch"
        if callback.write_steps_per_second:
            return "write_steps_per_second"
    return ""


def _check_package(callback: "keras.callbacks.Callback", name: str) -> None:
    for kind, (package, more) in PACKAGES.items():
        if isinstance(callback, getattr(keras.callbacks, kind)) and find_spec(package) is None:
            raise CallbackRefusedError(
                f"callbacks: {name} needs the package {package}: install it in the image (pip install {package}), or "
                f"leave the callback out{more}"
            )


def _check_hooks(callback: "keras.callbacks.Callback", name: str) -> None:
    own = [hook for hook in BATCH_HOOKS if _is_own(callback, hook)]
    if not own:
        return
    if not any(_is_own(callback, hook) for hook in OTHER_HOOKS):
        raise CallbackRefusedError(
            f"callbacks: {name}.{own[0]} would never be called: batches are trained on the workers. Use "
            "on_epoch_end, with shorter epochs (steps_per_epoch)"
        )
    event("batch_hooks_not_called", callback=name, hooks=own, reason="batches are trained on the workers")


def has_own_hook(callback: "keras.callbacks.Callback") -> bool:
    """Return whether a callback has a hook of the program's, or of another library, that is called."""
    return any(_is_own(callback, hook) for hook in OTHER_HOOKS)


def _is_own(callback: "keras.callbacks.Callback", hook: str) -> bool:
    """Return whether the program overrides this method of Keras."""
    if hook in vars(callback):
        return not getattr(vars(callback)[hook], "__module__", "keras").startswith("keras.")
    owner = next(kind for kind in type(callback).__mro__ if hook in vars(kind))
    return not owner.__module__.startswith("keras.")
