"""The private names of Keras that the runtime uses; a release that changes one fails here, with its name."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pstraining import runtime

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]

MONITORING: Final = ("EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau")
PRIVATE: Final = {
    "model": {
        *("_call_has_training_arg", "_compile_config", "_compile_loss", "_compile_metrics", "_compute_loss"),
        *("_flatten_layers", "_loss_tracker"),
    },
    "layer": {"_seed_generators", "_trainable_variables"},
    "variable": {"_path", "_value"},
    "optimizer": {
        *("_accumulated_gradients", "_apply_weight_decay", "_clip_gradients", "_get_current_learning_rate"),
        *("_get_variable_index", "_iterations", "_learning_rate", "_momentums", "_use_weight_decay", "_velocities"),
    },
    "MultiOptimizer": {"_inner_optimizers", "_optimizer_map"},
    **{kind: {"_set_monitor_op"} for kind in MONITORING},
    "TensorBoard": {"_start_batch"},
}
"""The private names, by the object of Keras that has them."""


@pytest.fixture
def objects(client: Any) -> dict[str, Any]:
    """Return Keras's objects by their names in PRIVATE; the model has seen a batch."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
    model.compile(optimizer, loss="mse", metrics=["mae"])
    optimizer.build(model.trainable_variables)
    model.evaluate(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    found = {"model": model, "layer": model.layers[0], "variable": model.variables[0], "optimizer": optimizer}
    if several := getattr(keras.optimizers, "MultiOptimizer", None):  # since Keras 3.15
        found["MultiOptimizer"] = several(lambda _: optimizer)
    checkpoint = keras.callbacks.ModelCheckpoint("model.keras")
    others = [keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau(), keras.callbacks.TensorBoard()]
    return found | {type(callback).__name__: callback for callback in (checkpoint, *others)}


def used() -> Iterator[str]:
    """Yield the private attributes that modules of the runtime use of other objects than their own."""
    for path in Path(runtime.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr


def test_this_keras_has_every_private_name_that_the_runtime_uses(objects: dict[str, Any]) -> None:
    import keras

    lacking = {
        kind: missing
        for kind, found in objects.items()
        if (missing := sorted(name for name in PRIVATE[kind] if not hasattr(found, name)))
    }
    assert not lacking, f"Keras {keras.__version__} has changed: adapt the modules of pstraining.runtime that use these"


def test_the_table_has_the_names_in_use(objects: dict[str, Any]) -> None:
    known = set[str]().union(*PRIVATE.values())
    names = {name for name in used() if name.startswith("_") and not name.startswith("__")}
    assert not known - names, "no module of pstraining.runtime uses these any more: remove them from the table"
    of_keras = {name for name in names - known for found in objects.values() if name in defined_by_keras(found)}
    assert not of_keras, "pstraining.runtime uses these private names of Keras, too: add them to the table"


def defined_by_keras(found: Any) -> set[str]:
    """Return the names of an object that Keras defines, and not Python or TensorFlow."""
    kinds = [kind for kind in type(found).__mro__ if kind.__module__.startswith("keras.")]
    return {name for kind in kinds for name in vars(kind)} | {*vars(found)}


@pytest.mark.parametrize("kind", MONITORING)
def test_a_callback_chooses_its_direction_from_metrics_that_are_built(objects: dict[str, Any], kind: str) -> None:
    """`refusals.check_directions` calls `_set_monitor_op` once `_compile_metrics.built`."""
    callback, model = objects[kind], objects["model"]
    assert model._compile_metrics.built
    callback.set_model(model)
    callback.monitor, callback.monitor_op = "val_mae", None
    callback._set_monitor_op()
    assert callback.monitor_op is not None
    callback.monitor, callback.monitor_op = "val_other", None
    with pytest.raises(ValueError, match="val_other"):
        callback._set_monitor_op()
