"""An embedding layer whose table is on the parameter servers: only the rows that a batch uses are sent.

On a worker the layer has no weight, and fetches rows while a batch's gradient is computed. On the chief, and in
programs without parameter servers, it equals Keras's embedding layer.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import SupportsInt, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.model.embeddings.dynamic_rows import RowInitializer, RowPolicy
from pstraining.runtime.model.embeddings.known_rows import KnownRows
from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasVariable, Operation, Shape, Tensor

_Number = TypeVar("_Number", bound=int | None)


class _Local(threading.local):
    """This thread's settings for building and calling layers."""

    remote: bool = False
    """Whether layers are built without a local table."""
    lookups: "Lookups | None" = None
    """The functions that fetch rows; None if the rows are in the layer."""


_local = _Local()


@keras.saving.register_keras_serializable(package="pstraining")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """Maps indices, or keys, to rows of a table.

    Args:
        input_dim: number of rows. None: one row for each int64 key in the training data; see `docs/users/updates.md`.
        output_dim: length of a row.
        embeddings_initializer: initializer of the table; without input_dim, RandomUniform, Zeros, Ones or Constant.
        max_rows: maximum number of rows of a table without input_dim, on all servers together. None: any number.
        min_count: number of updates with a gradient for a key after which the key gets a row, without input_dim.
        expire_after: number of updates without a gradient for a key after which the key loses its row, without
            input_dim. None: rows are kept.

    Input: integers of any shape, in [0, input_dim), or any keys. Output: the input's shape with one more dimension,
    `output_dim`.

    Raises:
        ModelError: the initializer cannot be used without input_dim, or a number is out of range.
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: object = "uniform",
        *,
        max_rows: int | None = None,
        min_count: int = 1,
        expire_after: int | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # as in Keras's layer: half precision would round indices that come as floats
        self.input_dim = None if input_dim is None else _size(f"layer {self.name}: input_dim", input_dim)
        self.output_dim = _size(f"layer {self.name}: output_dim", output_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings: KerasVariable | None = None
        self.known: KnownRows | None = None
        """The rows by key of a trained table, in a process that evaluates or exports it; None with input_dim."""
        self.number: int | None = None
        """The number of the layer, which its config has while the model is exported; None at other times."""
        self.row_policy = RowPolicy(_python(max_rows), _python(min_count), _python(expire_after))
        """The rule that decides which keys have rows."""
        self.tensorflow_name: Callable[[], str] = lambda: ""
        """Returns the name that TensorFlow gives the variable of Keras's own layer, once the model is built."""
        self.row_policy.check(self.name, is_dynamic=self.is_dynamic)
        if self.is_dynamic:
            self.row_initializer("")

    @property
    def is_dynamic(self) -> bool:
        """Return whether rows are by key, and their number is not fixed."""
        return self.input_dim is None

    def row_initializer(self, path: str) -> RowInitializer:
        """Return the initializer of the rows by key, for the table's path."""
        return RowInitializer.of(self.embeddings_initializer, path=path, layer=self.name)

    def build(self, _: Shape) -> None:
        """Create the table, unless it is on the parameter servers."""
        if self.is_dynamic:
            if not _local.remote:
                self.known = KnownRows(self.output_dim, self.variable_dtype, self.row_initializer("").mean)
        elif not _local.remote:
            self.embeddings = self.add_weight(
                shape=(self.input_dim, self.output_dim), initializer=self.embeddings_initializer, name="embeddings"
            )
        with keras.name_scope(self.name, caller=self):  # as in add_weight
            probe = keras.Variable("zeros", shape=(), name="embeddings")  # not a weight: Keras tracks only attributes
        self.tensorflow_name = lambda: str(probe.value.name)  # Keras may create the variable of TensorFlow later
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the rows of the indices.

        Raises:
            ModelError: rows by key would be trained without parameter servers, the keys are floats or not dense, the
                input has texts, or the rows are needed to build the model.
        """
        inputs = self._whole_numbers(inputs)
        if _local.lookups is None:
            if self.known is not None:
                if training:
                    raise ModelError(
                        f"layer {self.name}: input_dim=None can only be trained on parameter servers; run the program "
                        "with python -m pstraining.runtime.local, or in a job"
                    )
                return tf.cast(self.known.rows_of(inputs), self.compute_dtype)
            if self.embeddings is None:
                raise ModelError(
                    f"layer {self.name}: a layer or a model of the program's own calls it to build the model, but its "
                    "rows are on the parameter servers: call it on a keras.Input, in a functional model, and give that "
                    "layer the rows"
                )
            return keras.ops.cast(keras.ops.take(self.embeddings, inputs, axis=0), self.compute_dtype)
        return tf.cast(_local.lookups.rows(self, inputs), self.compute_dtype)

    def compute_output_spec(self, inputs: Tensor, training: bool | None = None) -> "keras.KerasTensor":
        """Return shape and dtype of the output; needs no table."""
        del training
        self._check_keys(inputs.dtype)
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)

    def _whole_numbers(self, inputs: Tensor) -> Tensor:
        """Return the indices or keys, which are cast as in Keras's layer if they are not int32 or int64."""
        if isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)):
            kind = type(inputs).__name__
            raise ModelError(f"layer {self.name}: the indices are a {kind}; use to_tensor() or tf.sparse.to_dense")
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        self._check_keys(dtype)
        return (
            inputs if dtype in ("int32", "int64") else keras.ops.cast(inputs, "int64" if self.is_dynamic else "int32")
        )

    def _check_keys(self, dtype: str) -> None:
        """Refuse texts, and keys that are floats, which are equal for many large keys."""
        if dtype == "string":
            raise ModelError(
                f"layer {self.name}: its input has texts, but rows belong to whole numbers: turn them into numbers "
                "before, with keras.layers.Hashing or keras.layers.StringLookup"
            )
        if self.is_dynamic and "float" in dtype:
            raise ModelError(
                f"layer {self.name}: input_dim=None needs whole keys, and its input is {dtype}: give "
                'keras.Input(dtype="int64")'
            )

    def save_own_variables(self, store: MutableMapping[str, Array]) -> None:
        """Add the weights to a Keras file; with rows by key, also add the keys."""
        super().save_own_variables(store)
        if self.known is not None:
            store["keys"], store["rows"] = self.known.keys.numpy(), self.known.rows.numpy()

    def load_own_variables(self, store: Mapping[str, Array]) -> None:
        """Set the weights to those of a Keras file."""
        if self.known is not None:
            self.known.keys.assign(np.array(store["keys"]))
            self.known.rows.assign(np.array(store["rows"]))
            return
        super().load_own_variables(store)

    def get_config(self) -> dict[str, object]:
        """Return the layer's configuration."""
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        own = {"input_dim": self.input_dim, "output_dim": self.output_dim, "embeddings_initializer": initializer}
        numbered = {} if self.number is None else {"number": self.number}
        return {**super().get_config(), **own, **self.row_policy.given(), **numbered}


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
        with tf.control_dependencies([] if layer.is_dynamic else [_inside(layer, indices)]):
            unique, place = tf.unique(tf.reshape(indices, [-1]))
        rows = self.fetch(layer, unique)
        self.tape.watch(rows)
        self.found.append((layer, unique, rows))
        return tf.reshape(tf.gather(rows, place), tf.concat([tf.shape(indices), [layer.output_dim]], 0))


def _size(what: str, given: object) -> int:
    """Return a size of a table, which may be a number of any library, such as 1e6.

    Args:
        what: the layer and the argument, for the error.
        given: the program's argument.

    Raises:
        ModelError: it is not a whole number of at least 1.
    """
    try:
        number = int(cast("SupportsInt", given))
    except (TypeError, ValueError, OverflowError):
        number = 0
    if number < 1 or number != given:
        raise ModelError(f"{what} must be a whole number of at least 1, not {given!r}")
    return number


def _python(number: _Number) -> _Number:
    """Return a whole number of NumPy as one of Python, which the layer's configuration can contain."""
    return cast("_Number", int(number)) if isinstance(number, np.integer) else number


def _inside(layer: Embedding, indices: Tensor) -> Operation:
    """Emit a check that all indices are in the table, if its number of rows is fixed."""
    return tf.debugging.Assert(
        tf.reduce_all((indices >= 0) & (indices < layer.input_dim)),
        [f"layer {layer.name}: indices must be at least 0 and less than input_dim, {layer.input_dim}"],
    )


@contextmanager
def remote_tables() -> Iterator[None]:
    """Let layers that are built in the block have no local table."""
    _local.remote = True
    try:
        yield
    finally:
        _local.remote = False


@contextmanager
def looking_up(lookups: Lookups) -> Iterator[None]:
    """Let layers that are called in the block fetch their rows through `lookups`."""
    _local.lookups = lookups
    try:
        yield
    finally:
        _local.lookups = None
