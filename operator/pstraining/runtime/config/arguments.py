"""The checks of the arguments that a program gives the `Trainer`. Imports no TensorFlow."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from pstraining.runtime.config.settings import CheckpointSettings, SettingsError

_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "class_weight": (Mapping, "a mapping from a class to its weight, such as {0: 1.0, 1: 5.0}"),
    "checkpoint": (CheckpointSettings, 'CheckpointSettings, such as CheckpointSettings(path="/checkpoints")'),
    "training": (Mapping, 'a mapping from settings to values, such as {"mode": "Sync"}'),
}
"""The type of each argument that others than functions create, with an example."""

OF_KERAS: Final[Mapping[str, str]] = {
    "x": "data is a function that returns batches",
    "y": "the batches that data returns are (x, y)",
    "batch_size": "batch the dataset that data returns, as in dataset.batch(32)",
    "verbose": "leave it out; the chief prints a line every 2 seconds",
    "validation_split": "leave these samples out of data, and give validation, a function that returns their batches",
    "validation_data": "give validation, a function that returns batches",
    "shuffle": "shuffle the dataset that data returns; Ranges and Files have a seed for the order of their splits",
    "sample_weight": "the batches that data returns may be (x, y, sample_weight)",
    "initial_epoch": "leave it out; a program that is run again continues from its newest checkpoint",
    "validation_batch_size": "batch the dataset that validation returns",
    "validation_freq": "give validation_every, a number of epochs",
    "run_eagerly": "leave it out; workers always trace the training step, and tf.print shows values in it",
    "steps_per_execution": "leave it out; it does not change what is trained",
    "auto_scale_loss": "leave it out; the loss is scaled with the policy mixed_float16, and not with mixed_bfloat16",
}
"""The arguments of `keras.Model.fit` and `compile` that the `Trainer` does not have, each with the way out."""

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind")


def refusing_others(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Refuse calls of a method that its parameters do not fit, in which Python would raise a TypeError.

    Such a program is wrong in every run, so a SettingsError ends it. The message names the argument and the way out.
    """
    signature = inspect.signature(function)
    owner, _, method = function.__qualname__.rpartition(".")
    name = owner if method == "__init__" else f"{owner}.{method}"
    known = list(signature.parameters)[1:]

    @wraps(function)
    def called(*given: Given.args, **named: Given.kwargs) -> Returned:
        if others := [own for own in named if own not in known]:
            way = OF_KERAS.get(others[0]) or (f"it has {', '.join(known)}" if known else f"give {owner} the arguments")
            raise SettingsError(f"{others[0]}: {name} has no such argument: {way}")
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            raise SettingsError(f"{name}: {error}; its arguments are {', '.join(known) or 'none'}") from None
        return function(*given, **named)

    return called


def strict(kind: type[Kind]) -> type[Kind]:
    """Refuse other arguments of a class than its own, as `refusing_others` does."""
    created: Callable[..., None] = vars(kind)["__init__"]
    created.__qualname__ = f"{kind.__qualname__}.__init__"  # that of a dataclass has another one
    setattr(kind, created.__name__, refusing_others(created))
    return kind


def check_functions(model: object, optimizer: object, data: object, **others: object) -> None:
    """Refuse objects in place of the functions that create them; a SettingsError names the argument."""
    for name, given in {"model": model, "optimizer": optimizer, **others}.items():
        is_built = hasattr(given, "trainable_variables") and not isinstance(given, type)
        if given is not None and (not callable(given) or is_built):
            raise SettingsError(f"{name}: give a function that creates it; it is a {type(given).__name__}")
    if not callable(data) and not all(hasattr(data, name) for name in ("count", "order", "open")):
        raise SettingsError(
            "data: give a function of a worker's index and the number of workers that returns a dataset of batches, or "
            f"Ranges or Files; it is a {type(data).__name__}"
        )
    for name, given in {"model": model, "optimizer": optimizer, **others}.items():
        check_call(name, given, how="without arguments")
    if callable(data):
        check_call("data", data, 0, 1, how="with a worker's index and the number of workers")


def check_call(name: str, function: object, *given: object, how: str) -> None:
    """Refuse a function that cannot be called with the arguments that it will get.

    Args:
        name: name of the argument of the program.
        function: the function; None, and a function of C without a signature, are accepted. A decorator may add
            arguments to those of the decorated function, so its own parameters count.
        given: such arguments.
        how: the arguments in words.

    Raises:
        SettingsError: names the argument and what the function gets.
    """
    if function is None:
        return
    if not callable(function):
        raise SettingsError(f"{name}: give a function; it is a {type(function).__name__}")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise SettingsError(
            f"{name}: the function is called {how}, and cannot be ({error}); functools.partial sets other arguments"
        ) from None


def check_metrics(**given: object) -> None:
    """Refuse a metric in place of the list, or of the function that creates it.

    Raises:
        SettingsError: names the argument, and has an example.
    """
    for name, value in given.items():
        is_metric = hasattr(value, "update_state")
        if callable(value) and not is_metric:
            try:
                inspect.signature(value, follow_wrapped=False).bind()
            except TypeError:
                is_metric = True
            except ValueError:  # a function of C without a signature
                continue
        if is_metric:
            kind = getattr(value, "__name__", type(value).__name__)
            raise SettingsError(f"{name}: give a list, such as [{kind}], or a function without arguments; it is {kind}")


def check_validation(validation: object, *, every: int, steps: int | None) -> None:
    """Refuse settings of a validation that is missing; a SettingsError names the argument and the way out."""
    for name, given in {"validation_every": every > 1, "validation_steps": steps is not None}.items():
        if given and validation is None:
            raise SettingsError(
                f"{name}: there is no validation: give validation, a function that returns batches, or leave {name} out"
            )


def check_kinds(**given: object) -> None:
    """Refuse an argument of another type; a SettingsError names the argument, and has an example."""
    for name, value in given.items():
        kind, instead = _KINDS[name]
        if value is not None and not isinstance(value, kind):
            raise SettingsError(f"{name}: give {instead}; it is a {type(value).__name__}")


def class_weights(given: Mapping[int, float] | None) -> dict[int, float] | None:
    """Return the weights by the numbers of classes, which may be NumPy's, and negative as in hinge losses.

    Raises:
        SettingsError: a class is no whole number, as a text from JSON, or a weight is no number.
    """
    if given is None:
        return None
    found = {}
    for number, weight in given.items():
        try:
            found[_whole(number)] = float(weight)
        except (TypeError, ValueError):
            raise SettingsError(
                f"class_weight: give the weight of a class by its number, such as {{0: 1.0, 1: 5.0}}; it has "
                f"{number!r}: {weight!r}"
            ) from None
    return found


def _whole(number: object) -> int:
    if isinstance(number, Real) and float(number).is_integer():
        return int(float(number))
    raise TypeError


def check_once(given: Mapping[str, object], training: Mapping[str, object]) -> None:
    """Refuse an argument that differs from the setting of its name in `training`, which would replace it."""
    for name in given.keys() & training.keys():
        if given[name] != training[name]:
            raise SettingsError(
                f"{name}: it is {given[name]!r}, and in training {training[name]!r}; leave one of them out"
            )


def check_jit(given: object) -> None:
    """Refuse a value of `jit_compile` that would leave XLA off without a word."""
    if not (given is None or isinstance(given, bool) or given == "auto"):
        raise SettingsError(f'jit_compile must be True, False or "auto"; it is {given!r}')


def check_summaries(tensorboard: object) -> None:
    """Refuse a URI as TensorBoard's folder, which would be a folder of that name in the pod, and other types.

    Raises:
        SettingsError: names the argument, and how event files get into an object store.
    """
    if not (tensorboard is None or isinstance(tensorboard, bool | str | Path)):
        raise SettingsError(f"tensorboard: give a folder, as a text or a Path, or False; it is {tensorboard!r}")
    if isinstance(tensorboard, str | Path) and re.match(r"\w+:/", str(tensorboard)):
        raise SettingsError(
            f"tensorboard: {tensorboard} is not a folder. Leave the argument out: event files are beside the "
            "checkpoints, also in an object store (checkpoint.path)"
        )


def count(name: str, given: object) -> int:
    """Return a number, which may be one of NumPy's, as one of Python's, which JSON can contain.

    Raises:
        SettingsError: it is not a whole number of at least 1; the message names the argument.
    """
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise SettingsError(f"{name} must be a whole number; it is {given!r}")
    if (number := int(given)) < 1:
        raise SettingsError(f"{name} must be at least 1; it is {number}")
    return number
