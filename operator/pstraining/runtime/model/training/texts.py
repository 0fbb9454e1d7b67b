"""Refuses texts in place of numbers: TensorFlow traces such a cast, and fails when the step runs, in each run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import keras
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.tensor import Batch, Tensor

PARTS: Final = ("x", "y", "sample_weight")
"""Names of the parts of a batch that is a tuple or a list."""


@contextmanager
def refusing_texts(argument: str, batch: Batch) -> Iterator[None]:
    """Refuse texts of a batch that the operations emitted in the block turn into numbers by a cast.

    Args:
        argument: name of the `Trainer`'s argument that returns the batch.
        batch: the batch that is traced.

    Raises:
        ModelError: names the part of the batch, the needed type and the way out.
    """
    graph = tf.compat.v1.get_default_graph()
    since = len(graph.get_operations())
    yield
    for operation in graph.get_operations()[since:]:
        if operation.type != "Cast" or operation.inputs[0].dtype != tf.string or not operation.outputs[0].consumers():
            continue
        raise ModelError(
            f"{argument}: {_place(operation.inputs[0], batch)} of a batch has texts where the model needs "
            f"{operation.outputs[0].dtype.name}: turn them into numbers in the dataset, with tf.strings.to_number or "
            'keras.layers.StringLookup; a model may also have such a layer itself, behind keras.Input(dtype="string")'
        )


def _place(tensor: Tensor, batch: Batch) -> str:
    """Return the part of a batch from which a tensor is made, such as x['country']."""
    paths: dict[int, str] = {}
    for path, part in keras.tree.flatten_with_path(batch):
        is_named = isinstance(batch, tuple | list) and path[0] < len(PARTS)
        name, keys = (PARTS[path[0]], path[1:]) if is_named else ("a part", path)
        text = name + "".join(f"[{key!r}]" for key in keys)
        paths |= {id(inner): text for inner in tf.nest.flatten(part, expand_composites=True)}
    while id(tensor) not in paths and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return paths.get(id(tensor), "a part")
