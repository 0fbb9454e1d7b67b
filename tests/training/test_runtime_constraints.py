"""Constraints of variables hold after each step, as in `fit`, on any number of servers."""

from typing import Any, Final

import numpy as np
import pytest

from tests.support.servers import Rig, batches
from tests.support.soak_marks import in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
LIMIT: Final = 0.2
"""A limit for the norms of the first kernel's columns, most of which are larger at the beginning."""


def tight(w: Any) -> Any:
    """A custom constraint that needs the whole tensor."""
    import keras

    return w / keras.ops.maximum(1.0, keras.ops.max(keras.ops.abs(w)) * 4)


def model() -> Any:
    import keras

    of_first = {"kernel_constraint": keras.constraints.MaxNorm(LIMIT), "bias_constraint": tight}
    of_last = {"kernel_constraint": "non_neg"}
    layers = [
        keras.layers.Dense(300, activation="tanh", **of_first),
        keras.layers.Dense(300, activation="tanh", kernel_constraint=keras.constraints.UnitNorm()),
        keras.layers.Dense(3, activation="softmax", **of_last),
    ]
    return keras.Sequential([keras.Input((8,)), *layers])


def optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(0.3, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize(
    ("mode", "ps"),
    some(
        [("Sync", 3), ("Async", 1), ("Async", 3), ("Hybrid", 3)],
        lambda mode, ps: (mode, ps) == ("Sync", 3),
        in_all("tests/training/test_runtime_constraints.py::test_parameters_equal_those_of_fit"),  # all modes
    ),
)
def test_parameters_equal_those_of_fit(client: Any, mode: str, ps: int) -> None:
    rig = Rig(client, optimizer, ps=ps, build=model, mode=mode, minShardBytes=0)
    try:
        rig.start()
        rig.train(batches(6))
        found = rig.snapshot().variables
    finally:
        for updates in rig.workers if mode == "Hybrid" else ():  # its workers have connections
            updates.close()
    alone = model()
    alone.compile(optimizer=optimizer(), loss="sparse_categorical_crossentropy", jit_compile=False)
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        variable.assign(rig.initial[tensor.path])
    for batch in batches(6):
        alone.train_on_batch(*batch)
    for variable, tensor in zip(alone.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(found[tensor.path], variable.numpy(), rtol=0, atol=2e-6, err_msg=tensor.path)
    kernels = [found[tensor.path] for tensor in rig.model.tensors if tensor.path.endswith("kernel")]
    assert np.linalg.norm(kernels[0], axis=0).max() == pytest.approx(LIMIT, abs=1e-4), "some norms are at the limit"
    assert kernels[2].min() == 0


def test_a_tensor_with_a_constraint_is_not_divided(client: Any) -> None:
    from pstraining.runtime.model.errors import ModelError

    rig = Rig(client, optimizer, ps=3, build=model)
    slices = [slice_ for segment in rig.store.layout.segments for slice_ in segment.slices]
    assert len(slices) == len(rig.model.tensors), "the kernel of 360 KB is whole"
    assert {tensor.group for tensor in rig.model.tensors if tensor.whole} == {"constrained-decayed"}
    assert "MaxNorm" in rig.model.identity()
    with pytest.raises(ModelError, match=r"localSteps: .*kernel has a constraint"):
        Rig(client, optimizer, ps=1, build=model, localSteps=2)
