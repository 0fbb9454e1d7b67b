"""Export of a trained model for plain Keras: with `keras.layers.Embedding` layers, and not compiled.

Loss, metrics and optimizer are left out: they may need the program's classes, and the optimizer's state is on the
servers.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.model.partition import Array

LARGEST_BYTES: Final = 1 << 30
"""Maximum bytes of weights in an exported model: the export needs memory for two further copies."""
KEYS, ROWS = "keys", "rows"
"""What the layers contain that replace one with rows by key."""
_OURS: Final = "pstraining>Embedding"
"""The name under which `embedding.Embedding` is registered."""
_SAME: Final = ("name", "trainable", "dtype", "input_dim", "output_dim", "embeddings_initializer")


class NotExportedError(Exception):
    """A model that Keras cannot save as a whole."""


def save_weights(model: keras.Model, path: Path) -> None:
    """Write the weights to a file, as Keras does.

    Raises:
        OSError: the file cannot be written.
    """
    with tf.device("CPU:0"):
        model.save_weights(path)


def save_model(model: keras.Model, path: Path) -> None:
    """Write the whole model to a file.

    Raises:
        NotExportedError: a part of the model cannot be built from a config, or the model is too large.
        OSError: the file cannot be written.
    """
    size = sum(int(np.prod(weight.shape)) * tf.as_dtype(weight.dtype).size for weight in model.weights)
    size += sum(layer.known.rows.numpy().nbytes for layer in _dynamic(model))
    if size > LARGEST_BYTES:
        raise NotExportedError(f"its weights have {size} bytes, more than {LARGEST_BYTES}")
    try:
        with tf.device("CPU:0"):
            plain(model).save(path)
    except OSError:
        raise
    except Exception as error:  # a class of the program may raise any error
        raise NotExportedError(f"{type(error).__name__}: {error}") from error


def plain(model: keras.Model) -> keras.Model:
    """Return an equal model with Keras's layers instead of this package's, the same weights and vocabularies.

    A layer with rows by key becomes an `IntegerLookup` and a `keras.layers.Embedding`, whose row 0 is that of unknown
    keys.
    """
    dynamic = _dynamic(model)
    compiled, model.compiled = model.compiled, False  # else a loss and a schedule would need a config
    for number, layer in enumerate(dynamic):  # layers of nested models may have the same name
        layer.number = number
    try:
        config = _with_keras_layers(keras.saving.serialize_keras_object(model), dynamic)
    finally:
        model.compiled = compiled
        for layer in dynamic:
            layer.number = None
    config.pop("compile_config", None)  # present if the class overrides `get_compile_config`
    own = _own_objects(model)
    made = keras.saving.deserialize_keras_object(config, own, safe_mode=False)  # the model is from this process
    tables = {_name(ROWS, number): layer for number, layer in enumerate(dynamic)}
    lookups = {_name(KEYS, number) for number in range(len(dynamic))}
    by_key = {id(table) for layer in made._flatten_layers() if layer.name in tables for table in layer.weights}
    for weight, other in zip([one for one in made.weights if id(one) not in by_key], model.weights, strict=True):
        weight.assign(other)
    for layer in made._flatten_layers():
        if layer.name in tables:
            layer.weights[0].assign(_rows(tables[layer.name]))
    adapted = [layer for layer in _with_own_state(made) if layer.name not in lookups]
    for layer, other in zip(adapted, _with_own_state(model), strict=True):
        _copy_state(other, layer)
    return made


def _own_objects(model: keras.Model) -> dict[str, object]:
    """Return the program's classes and functions in a model by the names by which Keras looks for them.

    Keras imports no module but its own. It knows others only if they are registered, or given.

    Raises:
        NotExportedError: two of them have the same name.
    """
    found: dict[str, object] = {}
    for layer in model._flatten_layers():
        for held in (layer, *vars(layer).values()):
            is_function = isinstance(held, FunctionType)
            own = held if is_function else type(held)
            # Keras also holds its wrappers of a layer's methods, such as `build`.
            is_part = not hasattr(type(layer), own.__name__) if is_function else hasattr(own, "get_config")
            if is_part and own.__name__ != "<lambda>" and not _is_library(own):
                name = keras.saving.get_registered_name(own)
                if found.setdefault(name, own) is not own:
                    raise NotExportedError(f"two classes or functions have the name {name}")
    return found


def _is_library(own: type | FunctionType) -> bool:
    """Return whether a class, a method or a function is of Keras, TensorFlow or this package."""
    return str(own.__module__).partition(".")[0] in ("keras", "tensorflow", "pstraining")


def _with_own_state(model: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield the layers whose state is not in weights alone.

    Such are a `StringLookup` with its vocabulary, and layers with a `save_own_variables` of the program's own.
    """
    for layer in model._flatten_layers():
        if hasattr(layer, "save_assets") or not _is_library(type(layer).save_own_variables):
            yield layer


def _copy_state(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Give a layer the state of another one, as saving and loading it does: a config lacks an adapted vocabulary."""
    variables: dict[str, object] = {}
    source.save_own_variables(variables)
    target.load_own_variables(variables)
    if hasattr(source, "save_assets"):
        with TemporaryDirectory() as folder:
            source.save_assets(folder)
            target.load_assets(folder)


def _dynamic(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers with rows by key."""
    return [layer for layer in model._flatten_layers() if getattr(layer, "known", None) is not None]


def _name(kind: str, number: int) -> str:
    """Return the name of a layer that replaces a numbered one."""
    return f"pstraining_{kind}_{number}"


def _lookup(layer: keras.layers.Layer, number: int) -> dict[str, Any]:
    """Return the config of Keras's layers that look up the rows that a numbered layer knows."""
    keys = layer.known.keys.numpy().tolist() or [0]  # Keras needs one key; it gets the row of unknown keys
    known = set(keys)
    unused = next(key for key in itertools.count(-1, -1) if key not in known)
    found = keras.layers.IntegerLookup(vocabulary=keys, oov_token=unused, name=_name(KEYS, number))
    own = keras.layers.Embedding(len(keys) + 1, layer.output_dim, dtype=layer.dtype_policy, name=_name(ROWS, number))
    config: dict[str, Any] = keras.saving.serialize_keras_object(keras.Sequential([found, own], name=layer.name))
    return config


def _rows(layer: keras.layers.Layer) -> Array:
    """Return the rows of unknown keys, and then those of the keys of `_lookup`."""
    rows: Array = layer.known.with_unknown()
    return rows if len(rows) > 1 else np.repeat(rows, 2, 0)


def _with_keras_layers(config: Any, dynamic: Sequence[keras.layers.Layer]) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_with_keras_layers(part, dynamic) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("registered_name") == _OURS:
        if (number := config["config"].get("number")) is not None:
            return {**config, **_lookup(dynamic[number], number)}
        own = {name: value for name, value in config["config"].items() if name in _SAME}
        config = {**config, "module": "keras.layers", "registered_name": None, "config": own}
    return {name: _with_keras_layers(value, dynamic) for name, value in config.items()}
