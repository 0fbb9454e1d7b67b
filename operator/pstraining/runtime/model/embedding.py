"""An embedding layer whose table lives on the parameter servers: only the rows that a batch touches travel.

On a worker the layer has no weight, and fetches rows while a batch's gradient is computed. On the chief, and in
programs without parameter servers, it equals Keras's embedding layer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from pstraining.runtime.model.tensor import KerasVariable, Shape, Tensor


class _Local(threading.local):
    """How this thread builds and calls layers."""

    remote: bool = False
    """Whether layers are built without a local table."""
    lookups: "Lookups | None" = None
    """What fetches the rows; None: they are in the layer."""


_local = _Local()


@keras.saving.register_keras_serializable(package="pstraining")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """Turns indices into rows of a table.

    Args:
        input_dim: number of rows.
        output_dim: length of a row.
        embeddings_initializer: initializer of the table.

    Input: integers of any shape, in [0, input_dim). Output: that shape with one more dimension, `output_dim`.
    """

    def __init__(
        self, input_dim: int, output_dim: int, embeddings_initializer: object = "uniform", **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.input_dim, self.output_dim = int(input_dim), int(output_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings: KerasVariable | None = None

    def build(self, _: Shape) -> None:
        """Create the table, unless it is on the parameter servers."""
        if not _local.remote:
            self.embeddings = self.add_weight(
                shape=(self.input_dim, self.output_dim), initializer=self.embeddings_initializer, name="embeddings"
            )
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Return the rows of the indices."""
        if _local.lookups is None:
            return keras.ops.take(self.embeddings, inputs, axis=0)
        return tf.cast(_local.lookups.rows(self, inputs), self.compute_dtype)

    def compute_output_spec(self, inputs: Tensor) -> "keras.KerasTensor":
        """Return shape and dtype of the output; needs no table."""
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, object]:
        """Return the layer's configuration."""
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        own = {"input_dim": self.input_dim, "output_dim": self.output_dim, "embeddings_initializer": initializer}
        return {**super().get_config(), **own}


@dataclass
class Lookups:
    """The rows that one pass over a batch fetches."""

    tape: "tf.GradientTape"
    fetch: Callable[[Embedding, Tensor], Tensor]
    """Emits the rows of a layer's table from indices without repetition. int64[n] to [n, output_dim]."""
    found: list[tuple[Embedding, Tensor, Tensor]] = field(default_factory=list)
    """Layer, indices and rows of each lookup."""

    def rows(self, layer: Embedding, inputs: Tensor) -> Tensor:
        """Emit the layer's output; each row is fetched once."""
        indices = tf.cast(inputs, tf.int64)
        inside = tf.debugging.Assert(
            tf.reduce_all((indices >= 0) & (indices < layer.input_dim)),
            [f"layer {layer.name}: indices must be at least 0 and less than input_dim, {layer.input_dim}"],
        )
        with tf.control_dependencies([inside]):
            unique, place = tf.unique(tf.reshape(indices, [-1]))
        rows = self.fetch(layer, unique)
        self.tape.watch(rows)
        self.found.append((layer, unique, rows))
        return tf.reshape(tf.gather(rows, place), tf.concat([tf.shape(indices), [layer.output_dim]], 0))


@contextmanager
def remote_tables() -> Iterator[None]:
    """Layers that are built inside have no local table."""
    _local.remote = True
    try:
        yield
    finally:
        _local.remote = False


@contextmanager
def looking_up(lookups: Lookups) -> Iterator[None]:
    """Layers that are called inside fetch their rows through `lookups`."""
    _local.lookups = lookups
    try:
        yield
    finally:
        _local.lookups = None
