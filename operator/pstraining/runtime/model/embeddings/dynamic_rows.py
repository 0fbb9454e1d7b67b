"""Rows by key, for tables without a fixed number of rows: the server and the initial row of each key.

Every task computes both from the key only, with integers: the order in which keys arrive has no effect.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Final

import keras
import numpy as np
import tensorflow as tf

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import DType, Tensor

BUCKETS: Final = 1 << 16
"""Number of buckets of keys; bucket b is on server b modulo the number of servers."""
_STRIDE: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Increment, shifts and multipliers of SplitMix64 (Steele, Lea and Flood, 2014)."""


def _multipliers(width: int) -> Array:
    """Return one odd random number for each element of a row. uint64[width]."""
    found = []
    for place in range(1, width + 1):
        value = place * _STRIDE % 2**64
        for shift, factor in _FACTORS:
            value = (value ^ value >> shift) * factor % 2**64
        found.append(value ^ value >> 31 | 1)
    return np.array(found, np.uint64)


def mixed(values: Tensor) -> Tensor:
    """Emit SplitMix64's output function, a bijection. uint64[...] to uint64[...]."""
    for shift, factor in _FACTORS:
        values = (values ^ _shifted(values, shift)) * tf.constant(factor, tf.uint64)
    return values ^ _shifted(values, 31)


def owners(keys: Tensor, servers: int) -> Tensor:
    """Emit the number of each key's server. int64[n] to int32[n]."""
    bucket = tf.cast(_shifted(mixed(tf.bitcast(keys, tf.uint64)), 32), tf.int64) % BUCKETS
    return tf.cast(bucket % servers, tf.int32)


@dataclass(frozen=True)
class RowPolicy:
    """The rule that decides which keys of a table have rows."""

    max_rows: int | None = None
    """Maximum number of rows; None: unlimited."""
    min_count: int = 1
    """Number of updates with a gradient for a key after which the key gets a row."""
    expire_after: int | None = None
    """Number of updates without a gradient for a key after which the key loses its row; None: rows are kept."""

    def check(self, layer: str, *, is_dynamic: bool) -> None:
        """Refuse numbers that are out of range, and a policy of a table with a fixed number of rows.

        Args:
            layer: name of the layer, for the error.
            is_dynamic: whether the table has rows by key.

        Raises:
            ModelError: names the layer and the argument.
        """
        for name, value in self.given().items():
            if not is_dynamic:
                raise ModelError(f"layer {layer}: {name} is for tables with rows by key; give input_dim=None")
            if not isinstance(value, int):
                raise ModelError(f"layer {layer}: {name} must be a whole number, not {value!r}")
            if value < 1:
                raise ModelError(f"layer {layer}: {name} must be at least 1, not {value!r}")

    def given(self) -> dict[str, int]:
        """Return the numbers that differ from their defaults, by name."""
        return {own.name: value for own in fields(self) if (value := getattr(self, own.name)) != own.default}

    @property
    def removes(self) -> bool:
        """Return whether rows are removed."""
        return self.max_rows is not None or self.expire_after is not None

    @property
    def drops(self) -> bool:
        """Return whether a gradient is dropped if its key has no row."""
        return self.max_rows is not None or self.min_count > 1

    def on_each_of(self, servers: int) -> "RowPolicy":
        """Return the policy that each of `servers` servers applies to its part of the table."""
        return self if self.max_rows is None else replace(self, max_rows=-(-self.max_rows // servers))


@dataclass(frozen=True)
class RowInitializer:
    """The initial rows of keys: elements uniform in [low, high], a function of seed, key and position.

    Seed and key are mixed once. An element has the high bits of their product with its own odd number, as in
    multiply-shift hashing (Dietzfelbinger et al., 1997): one multiplication in place of SplitMix64's nine operations.
    """

    low: float
    high: float
    seed: int

    @classmethod
    def of(cls, initializer: object, *, path: str, layer: str) -> "RowInitializer":
        """Return the initializer of a table with the settings of a Keras initializer.

        Args:
            initializer: a Keras initializer; without a seed, the table's path is the seed.
            path: the table's path.
            layer: name of the layer, for the error.

        Raises:
            ModelError: the initializer is not RandomUniform, Zeros, Ones or Constant.
        """
        kinds, given = keras.initializers, None
        if isinstance(initializer, kinds.RandomUniform):
            low, high, given = initializer.minval, initializer.maxval, getattr(initializer, "_init_seed", None)
        elif isinstance(initializer, kinds.Zeros | kinds.Ones):
            low = high = float(isinstance(initializer, kinds.Ones))
        elif isinstance(initializer, kinds.Constant) and isinstance(initializer.value, Real):
            low = high = float(initializer.value)
        else:
            raise ModelError(
                f"layer {layer}: embeddings_initializer={type(initializer).__name__} cannot be used with "
                "input_dim=None, where a row is a function of its key; use RandomUniform, Zeros, Ones or Constant"
            )
        drawn = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
        return cls(float(low), float(high), given % 2**64 if isinstance(given, int) else drawn)

    @property
    def mean(self) -> float:
        """Return the mean of an element over all keys."""
        return (self.low + self.high) / 2

    def rows(self, keys: Tensor, width: int, dtype: DType) -> Tensor:
        """Emit the rows of keys. int64[n] to [n, width]."""
        if self.low == self.high:
            return tf.fill([tf.size(keys), width], tf.constant(self.low, dtype))
        base = mixed(tf.bitcast(keys, tf.uint64) + tf.constant(self.seed, tf.uint64))
        # As an array: inside a function, TensorFlow rounds a list of such numbers to doubles.
        drawn = tf.bitcast(base[:, tf.newaxis] * tf.constant(_multipliers(width)), tf.int64)
        wide = tf.float64 if dtype == tf.float64 else tf.float32  # float16 has no number as large as these
        scale, middle = (tf.constant(value, wide) for value in ((self.high - self.low) * 2.0**-64, self.mean))
        return tf.cast(tf.cast(drawn, wide) * scale + middle, dtype)


def _shifted(values: Tensor, bits: int) -> Tensor:
    return tf.bitwise.right_shift(values, tf.constant(bits, tf.uint64))
