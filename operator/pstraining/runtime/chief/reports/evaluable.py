"""The chief's check, before training, that the model can evaluate the batches of its datasets."""

from collections.abc import Mapping

import tensorflow as tf

from pstraining.runtime.chief.refusals import check_loss
from pstraining.runtime.model.errors import refusing_errors
from pstraining.runtime.model.overrides import evaluates_itself
from pstraining.runtime.model.tensor import Batch, KerasModel
from pstraining.runtime.model.training.texts import refusing_texts


def check_evaluable(model: KerasModel, specs: Mapping[str, object], device: str) -> None:
    """Refuse batches that the model cannot evaluate, such as those of other shapes: Keras would do so after training.

    The evaluation of a batch is traced, and none is evaluated.

    Args:
        model: the compiled model.
        specs: the types of the batches, by the `Trainer`'s argument; None if they are unknown.
        device: the device that evaluates.

    Raises:
        CallbackRefusedError: the model has no loss.
        ModelError: names the argument, and has the message of Keras or TensorFlow.
    """
    check_loss(model, specs)
    traced: list[object] = []
    for argument, spec in specs.items():
        if spec is None or spec in traced or evaluates_itself(model):
            continue
        traced.append(spec)

        def evaluated(batch: Batch, argument: str = argument) -> object:
            with refusing_texts(argument, batch):
                return model.test_step(batch)

        with tf.device(device), refusing_errors(f"{argument}: the model cannot be evaluated"):
            tf.function(evaluated, autograph=False).get_concrete_function(tf.nest.map_structure(_present, spec))


def _present(spec: "tf.TypeSpec") -> "tf.TypeSpec | None":
    """Return the type of a part of a batch; None for a part that is None in each batch."""
    return None if spec.value_type is type(None) or isinstance(spec, tf.OptionalSpec) else spec
