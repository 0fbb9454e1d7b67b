"""The logs of an epoch equal those of `fit`, also for batches and metrics of unusual shapes."""

from typing import Any

import pytest

from tests.support.servers import Rig
from tests.training.test_runtime_fit import in_one_process, reports, two_labels, two_outputs

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


def still() -> Any:
    """Return an optimizer that changes nothing."""
    import keras

    return keras.optimizers.SGD(0.0)


def test_the_losses_of_several_outputs_weigh_batches_by_samples(client: Any) -> None:
    """The losses of the outputs weigh batches by their samples, as `fit` does where it knows the batches' sizes."""
    import tensorflow as tf

    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    rig = Rig(client, still, ps=1, build=two_outputs, loss=losses)
    rig.start()
    made = [batch[:2] for batch in two_labels(3)]
    made[2] = tf.nest.map_structure(lambda tensor: 9 * tensor[:2], made[2])
    made[2][1]["kind"] %= 3
    rig.train(made)
    _, logs = in_one_process(rig, two_outputs, made, still, loss=losses, run_eagerly=True)
    chief = rig.new_store().model.step.compiled
    total, samples = rig.control.take_losses()
    found = {"loss": total / samples} | chief.results(rig.model.step.compiled.outputs, reports(rig).state())
    assert found == {name: pytest.approx(value, rel=1e-5) for name, value in logs.items()}
