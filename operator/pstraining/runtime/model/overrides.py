"""Methods of `keras.Model` that a program's own class replaces: used here, or refused before training starts.

A model may override `call`, `add_loss`, `compute_loss`, `compile`, and the methods that `evaluate` calls on the chief:
`test_step`, `make_test_function`, `compute_metrics` and `metrics`. The methods of `TRAINING` compute gradients and
apply an optimizer, which workers and parameter servers do here. Keras calls such a method whenever `fit` runs. Training
without it would give another model, so a model that overrides it is refused.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

import keras
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError

TRAINING: Final = ("train_step", "make_train_function", "train_on_batch", "fit")
"""Methods that would train the model."""
EVALUATION: Final = ("test_step", "make_test_function", "evaluate", "compute_metrics")
"""Methods that name the results of an evaluation."""
LOSSES: Final = ("compute_loss", "test_step", "make_test_function", "evaluate")
"""Methods that may measure a loss in an evaluation."""
COMPILED: Final = ("loss", "loss_weights", "metrics", "weighted_metrics")
"""Arguments of `compile` that decide what is trained and measured; the `Trainer` has them, too."""
LIMITS: Final = {"max_epochs": "epochs", "max_steps_per_epoch": "steps"}
"""Limits of Keras for debugging, which `fit` obeys, and the `Trainer`'s arguments that replace them."""


def check_settings() -> None:
    """Refuse settings for debugging: Keras's limits, which would not limit training, and functions without a trace.

    Raises:
        ModelError: names the setting and the way out.
    """
    if tf.config.functions_run_eagerly():  # a critical section of a server is one function
        raise ModelError(
            "tf.config.run_functions_eagerly(True) is set, but parameter servers run only traced functions: leave it "
            "out, or use it with fit in one process, without the Trainer; tf.print shows values in a traced step"
        )
    for name, argument in LIMITS.items():
        if limit := getattr(keras.config, name, lambda: None)():  # older versions of Keras lack them
            raise ModelError(
                f"keras.config.set_{name}, or KERAS_{name.upper()}, is {limit}, and has no effect on workers: leave it "
                f"out, and give the Trainer {argument}"
            )


def check(model: Any, options: Mapping[str, object], *, has_step: bool) -> None:
    """Refuse methods that the model overrides and that would not be called.

    Args:
        model: the program's model, not compiled yet.
        options: the arguments that `compile` will receive, by name.
        has_step: whether the program gives `Trainer(train_step=...)`, which replaces the methods of `TRAINING`.

    Raises:
        ModelError: names the method, or the argument of the program's own `compile`, and an alternative.
    """
    _check_compiled(model, options)
    name = type(model).__name__
    own = [] if has_step else [method for method in TRAINING if _is_own(model, method)]
    if own:
        raise ModelError(
            f"{name}.{own[0]} is the model's own and would not be called: workers compute the gradient, and parameter "
            "servers apply it with one optimizer. Return the loss of a batch from a function, and give it as "
            "Trainer(train_step=...); a model that several optimizers train in turn (a GAN) cannot be trained here"
        )
    if _is_own(model, "compile"):
        try:
            inspect.signature(model.compile).bind(**options)
        except TypeError as error:
            raise ModelError(
                f"{name}.compile is the model's own, and must accept {', '.join(f'{key}=' for key in options)} "
                f"({error}); add **kwargs and pass them to super().compile"
            ) from None


def names_results(model: keras.Model) -> bool:
    """Return whether the model itself may name the results of its evaluation, not only its compiled metrics."""
    return any(_is_own(model, method) for method in EVALUATION)


def evaluates_itself(model: keras.Model) -> bool:
    """Return whether the model itself decides what an evaluation does with a batch, not only how it measures one."""
    return any(_is_own(model, method) for method in ("make_test_function", "evaluate"))


def lacks_loss(model: keras.Model) -> bool:
    """Return whether an evaluation certainly finds no loss: neither in `compile`, nor in the model or its layers."""
    if model._compile_loss is not None or model.losses or any(_is_own(model, method) for method in LOSSES):
        return False
    return all(
        type(layer).__module__.startswith(("keras.", "pstraining."))
        and getattr(layer, "activity_regularizer", None) is None
        for layer in model._flatten_layers()
    )


def check_layers(layers: Iterable[keras.layers.Layer]) -> None:
    """Refuse settings of layers that would have no effect.

    Raises:
        ModelError: names the layer and an alternative.
    """
    for layer in layers:
        if getattr(layer, "synchronized", False) and isinstance(layer, keras.layers.BatchNormalization):
            raise ModelError(
                f"{layer.name}: synchronized=True has no effect among workers, each of which normalizes its own batch; "
                "leave it out, or use LayerNormalization or GroupNormalization"
            )
        if odd := [own.path for own in layer._trainable_variables if getattr(own, "overwrite_with_gradient", False)]:
            raise ModelError(
                f"{odd[0]} is replaced by its gradient in each step, as in float8, which parameter servers do not "
                "support; use the policy mixed_bfloat16"
            )


def _check_compiled(model: keras.Model, options: Mapping[str, object]) -> None:
    """Refuse what the program's own `compile` was given, and the `Trainer` was not: it would have no effect."""
    given = model._compile_config.config if model.compiled and not _is_own(model, "compile") else {}
    if lost := [name for name in COMPILED if given.get(name) and options.get(name) is None]:
        raise ModelError(
            f"the model function compiles the model with {lost[0]}, which would have no effect: give it to the "
            f"Trainer, as {lost[0]}=..., and leave `compile` out; load a saved model with compile=False"
        )


def _is_own(model: Any, method: str) -> bool:
    """Return whether a method differs from Keras's, in a class or on the object."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)
