"""A trained model as plain Keras loads it: with `keras.layers.Embedding` in the place of ours, and not compiled.

Loss, metrics and optimizer stay behind: what they need may be the program's own, and the optimizer's state is on the
servers.
"""

from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

LARGEST_BYTES: Final = 1 << 30
"""Weights beyond this are not exported with the model: the chief would need memory for two copies more."""
_OURS: Final = "pstraining>Embedding"
"""The name under which `embedding.Embedding` is registered."""
_SAME: Final = ("name", "trainable", "dtype", "input_dim", "output_dim", "embeddings_initializer")


class NotExportedError(Exception):
    """A model that Keras cannot save as a whole."""


def save_weights(model: Any, path: Path) -> None:
    """The weights alone, as Keras writes them."""
    with tf.device("CPU:0"):
        model.save_weights(path)


def save_model(model: Any, path: Path) -> None:
    """The whole model.

    Raises:
        NotExportedError: it has a part that cannot be built from a config, or is too large for a second copy.
        OSError: the file cannot be written.
    """
    size = sum(int(np.prod(weight.shape)) * tf.as_dtype(weight.dtype).size for weight in model.weights)
    if size > LARGEST_BYTES:
        raise NotExportedError(f"its weights are of {size} bytes, more than {LARGEST_BYTES}")
    try:
        with tf.device("CPU:0"):
            plain(model).save(path)
    except OSError:
        raise
    except Exception as error:  # what a class of the program's own raises
        raise NotExportedError(f"{type(error).__name__}: {error}") from error


def plain(model: Any) -> Any:
    """The same model, made of Keras's own layers where it has ours, with the same weights."""
    compiled, model.compiled = model.compiled, False  # else a loss and a schedule would need a config
    try:
        config = _with_keras_layers(keras.saving.serialize_keras_object(model))
    finally:
        model.compiled = compiled
    config.pop("compile_config", None)  # of a class that has a `get_compile_config` of its own
    made = keras.saving.deserialize_keras_object(config, safe_mode=False)  # it is this process's own model
    for own, other in zip(made.weights, model.weights, strict=True):
        own.assign(other)
    return made


def _with_keras_layers(config: Any) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_with_keras_layers(part) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("registered_name") == _OURS:
        own = {name: value for name, value in config["config"].items() if name in _SAME}
        config = {**config, "module": "keras.layers", "registered_name": None, "config": own}
    return {name: _with_keras_layers(value) for name, value in config.items()}
