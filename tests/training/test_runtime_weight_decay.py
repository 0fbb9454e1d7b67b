"""Which variables an optimizer decays: those that Keras decays on TensorFlow."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.servers import small

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("client"),  # a process connects before it creates any tensor
]


@pytest.mark.parametrize("name", ["AdamW", "Muon"])
def test_variables_are_excluded_from_weight_decay_by_the_names_that_keras_searches(name: str) -> None:
    """Names of layers count, as in `fit`, but not with Muon. A gradient of zeros changes decayed variables only."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def make() -> Any:
        own = getattr(keras.optimizers, name)(0.1, **{"weight_decay": 0.1, **more})
        own.exclude_from_weight_decay(var_names=["layer_normalization", "bias"])
        return own

    more = {"adam_weight_decay": 0.1} if name == "Muon" else {}
    model, alone, own = Model(small, make, Objective("mse")), small(), make()
    own.build(alone.trainable_variables)
    for variable in alone.trainable_variables:
        variable.assign(tf.ones(variable.shape))
    own.apply([tf.zeros(variable.shape) for variable in alone.trainable_variables])
    expected = ["undecayed" if np.all(variable.numpy() == 1) else "decayed" for variable in alone.trainable_variables]
    assert [tensor.group for tensor in model.tensors] == expected
    assert len(set(expected)) == 2


@pytest.mark.parametrize("with_tables", [True, False], ids=["chief", "worker"])
def test_tables_are_excluded_from_weight_decay_by_the_names_of_keras_layers(with_tables: bool) -> None:
    import keras

    from pstraining.runtime import Embedding
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def build(kind: Any) -> Any:
        return keras.Sequential([keras.Input((3,), dtype="int32"), kind(8, 4, name="users")])

    def make() -> Any:
        own = keras.optimizers.AdamW(0.1)
        own.exclude_from_weight_decay(var_names=["users"])
        return own

    (variable,) = build(keras.layers.Embedding).trainable_variables
    assert "users" in variable.value.name
    model = Model(partial(build, Embedding), make, Objective("mse"), with_tables=with_tables)
    assert model.table_groups == ["undecayed"]
