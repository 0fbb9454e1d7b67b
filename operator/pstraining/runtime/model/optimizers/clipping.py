"""Clipping by norm of the mean gradient, whose tensors are on several parameter servers.

Keras clips the gradient of all batches together. In rounds this gradient is the mean, which no process has as a whole.
Each process computes the sums of squares of its part, and their totals give every process the same norms. The
optimizers' clones clip by value.

A sum of squares is added up in blocks of fixed length, so that it is the same on any number of cores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.partition import Layout, Segment
from pstraining.runtime.model.tensor import KerasOptimizer, Tensor

BLOCK: Final = 1024
"""Number of elements that are added up at once."""
Rows = tuple[Tensor, Tensor]
"""Indices of rows, int64[n], and their gradients, [n, width]."""


@dataclass(frozen=True)
class Norm:
    """One norm of a mean gradient."""

    limit: float
    """Maximum value of the norm."""
    joint: bool
    """Whether the norm covers all of an optimizer's variables (Keras's `global_clipnorm`), or a single variable."""


@dataclass(frozen=True)
class Norms:
    """The norms by which a model's mean gradient is clipped."""

    each: tuple[Norm, ...]
    """All norms; sums of squares are in this order."""
    of_tensor: tuple[int | None, ...]
    """The number of each tensor's norm, in the layout's order; None for a tensor that is not clipped."""


def norms_of(trained_by: Mapping[str, KerasOptimizer], layout: Layout) -> Norms | None:
    """Return the norms of a model's mean gradient; None if no optimizer clips by norm.

    Args:
        trained_by: the optimizer of each trained variable and table, by path.
        layout: the layout of the whole model.
    """
    found: dict[tuple[str, int], int] = {}
    each: list[Norm] = []
    of_tensor: list[int | None] = []
    for number, tensor in enumerate(layout.tensors):
        optimizer = trained_by.get(tensor.path)
        norm = _norm_of(optimizer) if optimizer is not None else None
        if norm is None:
            of_tensor.append(None)
            continue
        key = ("optimizer", id(optimizer)) if norm.joint else ("tensor", number)
        if key not in found:
            found[key] = len(each)
            each.append(norm)
        of_tensor.append(found[key])
    return Norms(tuple(each), tuple(of_tensor)) if each else None


def added(parts: Sequence[Tensor]) -> Tensor:
    """Emit the sum of the parts' sums of squares, added in the given order."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def are_usable(totals: Tensor, overflowed: Tensor) -> Tensor:
    """Emit whether a step may use these norms: all are finite, or the loss scale skips the step. bool[].

    The norm of finite gradients may be infinite. In Keras such a norm turns the parameters into NaN.

    Args:
        totals: sums of squares. float64[length].
        overflowed: above 0 if the loss is scaled and a gradient is not finite. float64[].
    """
    return tf.reduce_all(tf.math.is_finite(totals)) | (overflowed > 0)


def _norm_of(optimizer: KerasOptimizer) -> Norm | None:
    """Return how an optimizer clips by norm; None if it does not. Zero is no limit, as in Keras."""
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        return Norm(optimizer.clipnorm, joint=False)
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        return Norm(optimizer.global_clipnorm, joint=True)
    return None


class MeanClipping:
    """Clips one process's part of a mean gradient; the methods emit operations where the part is.

    Args:
        norms: the norms of the whole model.
        segments: the segments of the part.
        tables: the process's rows of every table; none if it has no rows.
    """

    def __init__(self, norms: Norms, segments: Sequence[Segment], tables: Sequence[Segment] = ()) -> None:
        self._norms = norms.each
        self._runs = [_runs(norms, segment) for segment in segments]
        self._of_table = [norms.of_tensor[table.slices[0].tensor] for table in tables]
        self.length = len(norms.each)
        """Number of sums of squares."""

    def squares(self, vectors: Sequence[Tensor], touched: Sequence[Rows] = ()) -> Tensor:
        """Emit the sums of squares of the process's part. float64[length].

        Args:
            vectors: the mean gradient, one vector per segment.
            touched: for each table the touched rows and their mean gradient, each row once.
        """
        found: list[list[Tensor]] = [[] for _ in self._norms]
        for vector, runs in zip(vectors, self._runs, strict=True):
            for part, (_, norm) in zip(_split(vector, runs), runs, strict=True):
                if norm is not None:
                    found[norm].append(sum_of_squares(part))
        for (_, gradients), norm in zip(touched, self._of_table, strict=True):
            if norm is not None:
                found[norm].append(_sum_of_rows(gradients))
        return tf.stack([added(parts) if parts else tf.zeros([], tf.float64) for parts in found])

    def vectors(self, vectors: Sequence[Tensor], totals: Tensor) -> list[Tensor]:
        """Emit the clipped vectors.

        Args:
            vectors: see `squares`.
            totals: the sums of squares of all processes together. float64[length].
        """
        return [self._vector(vector, runs, totals) for vector, runs in zip(vectors, self._runs, strict=True)]

    def rows(self, touched: Sequence[Rows], totals: Tensor) -> list[Rows]:
        """Emit the clipped rows; see `vectors`."""
        tables = zip(touched, self._of_table, strict=True)
        return [(indices, self._clipped(gradients, norm, totals)) for (indices, gradients), norm in tables]

    def _vector(self, vector: Tensor, runs: "_Runs", totals: Tensor) -> Tensor:
        if all(norm is None for _, norm in runs):
            return vector
        clipped = [
            self._clipped(part, norm, totals) for part, (_, norm) in zip(_split(vector, runs), runs, strict=True)
        ]
        return tf.concat(clipped, 0) if len(clipped) > 1 else clipped[0]

    def _clipped(self, values: Tensor, norm: int | None, totals: Tensor) -> Tensor:
        """Emit values clipped by the arithmetic of Keras, in their dtype."""
        if norm is None:
            return values
        limit, length = self._norms[norm].limit, tf.cast(tf.sqrt(totals[norm]), values.dtype)
        if self._norms[norm].joint:
            return values * (limit * tf.minimum(1 / length, 1 / limit))
        return values * limit / tf.maximum(length, limit)


_Runs = list[tuple[int, int | None]]
"""Lengths of neighboring elements with one norm, and the number of that norm."""


def _runs(norms: Norms, segment: Segment) -> _Runs:
    parts = [(slice_.size, norms.of_tensor[slice_.tensor]) for slice_ in segment.slices]
    return [(sum(size for size, _ in own), norm) for norm, own in groupby(parts, key=lambda part: part[1])]


def _split(vector: Tensor, runs: _Runs) -> list[Tensor]:
    return list(tf.split(vector, [size for size, _ in runs])) if len(runs) > 1 else [vector]


def sum_of_squares(vector: Tensor) -> Tensor:
    """Emit the sum of squares of a vector of known length. float64[]."""
    wide = tf.cast(vector, tf.float32) if vector.dtype == tf.float16 else vector
    return tf.cast(_sum(tf.square(wide), vector.shape[0]), tf.float64)


def _sum(values: Tensor, size: int) -> Tensor:
    """Emit the sum of a vector: first the sum of each block, and then the sum of the blocks' sums."""
    if size <= BLOCK:
        return tf.reduce_sum(tf.reshape(values, [1, size]), 1)[0]
    whole = size // BLOCK
    sums = tf.reduce_sum(tf.reshape(values[: whole * BLOCK], [whole, BLOCK]), 1)
    rest = size - whole * BLOCK
    return _sum(sums, whole) + (_sum(values[whole * BLOCK :], rest) if rest else 0)


def _sum_of_rows(gradients: Tensor) -> Tensor:
    """Emit the sum of squares of any number of rows. float64[]."""
    return tf.reduce_sum(tf.square(tf.cast(gradients, tf.float64)))
