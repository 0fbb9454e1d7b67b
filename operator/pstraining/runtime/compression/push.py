"""Compression of a worker's gradients, with error feedback.

Error feedback (Karimireddy et al., 2019): a codec loses a part of a gradient, the residual. It is added to the next
gradient before encoding. The residual stays on the worker, and counts only once the servers have accepted the gradient.
A gradient is resent as the same bytes.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.codecs import VectorCodec, is_coded
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore

Parts = list[list[list[Tensor]]]
"""The tensors of every segment of every server."""


class Residual(NamedTuple):
    """The residual of an encoded gradient; it counts once the servers have accepted the gradient."""

    vectors: list[list[Tensor]]
    """A vector for each segment of each server; empty: the residual does not change."""
    has_residual: bool
    """Whether any element may differ from zero."""


class PushCompressor:
    """Encodes a worker's gradients in one of several wire formats.

    The residual of one format is sent with the next gradient, in any format.

    Args:
        store: the servers' segments.
        codecs: the codec of each format; None for no codec.
        feedback: whether residuals are sent later.
    """

    def __init__(self, store: ParameterStore, codecs: Sequence[VectorCodec | None], *, feedback: bool = True) -> None:
        used = any(codecs)
        self._store, self._codecs, self._feedback = store, codecs, feedback and used
        self._coded = [[used and is_coded(s) for s in shard.segments] for shard in store.shards]
        self._has_residual = False
        with tf.device(store.client.compute):
            self._residuals = [
                [tf.Variable(tf.zeros([segment.size if coded else 0])) for segment, coded in self._of(number)]
                for number in range(len(store.shards))
            ]
        self._encode = [tf.function(partial(self._emit_encode, codec), autograph=False) for codec in codecs if codec]
        self._encoders = dict(zip([number for number, codec in enumerate(codecs) if codec], self._encode, strict=True))
        self._flush = tf.function(self._emit_flush, autograph=False)
        self._commit = tf.function(self._emit_commit, autograph=False)

    def on(self, store: ParameterStore) -> "PushCompressor":
        """Return the compressor for other servers: this one for members of the same layout.

        Raises:
            ValueError: gradients are encoded, and the residual belongs to the present layout.
        """
        if store.layout == self._store.layout:
            return self
        if self.encodes:
            raise ValueError("the residual of encoded gradients cannot be moved to another layout")
        return PushCompressor(store, self._codecs)

    @property
    def encodes(self) -> bool:
        """Return whether any format encodes vectors."""
        return any(self._codecs)

    def is_plain(self, fmt: int) -> bool:
        """Return whether the next vectors are sent as they are in this format."""
        return self._codecs[fmt] is None and not self._has_residual

    def warm_up(self, vectors: Sequence[Sequence[Tensor]]) -> None:
        """Trace all functions, without an effect."""
        with tf.device(self._store.client.compute):
            for function in [*self._encoders.values(), *([self._flush] if self._feedback else [])]:
                function(vectors)

    def encode(self, vectors: Sequence[Sequence[Tensor]], fmt: int) -> tuple[Parts, Residual]:
        """Return the encoded tensors and their residual."""
        if self.is_plain(fmt):
            return as_parts(vectors), Residual([], has_residual=False)
        with tf.device(self._store.client.compute):
            if self._codecs[fmt] is None:
                together, nothing = self._flush(vectors)
                return as_parts(together), Residual(nothing, has_residual=False)
            parts, residual = self._encoders[fmt](vectors)
            return parts, Residual(residual, has_residual=True)

    def commit_residual(self, residual: Residual) -> None:
        """Commit the residual of a gradient that the servers have accepted."""
        if self._feedback and residual.vectors:
            with tf.device(self._store.client.compute):
                self._commit(residual.vectors)
            self._has_residual = residual.has_residual

    def decode(self, shard: Shard, parts: Sequence[Sequence[Tensor]], fmt: int) -> list[Tensor]:
        """Emit decoding a server's segments, on that server."""
        codec, number = self._codecs[fmt], shard.number
        with tf.device(shard.device):
            return [
                codec.decode(sent, segment.size) if codec is not None and coded else sent[0]
                for sent, (segment, coded) in zip(parts, self._of(number), strict=True)
            ]

    def _of(self, number: int) -> list[tuple[Segment, bool]]:
        return list(zip(self._store.shards[number].segments, self._coded[number], strict=True))

    def _emit_encode(self, codec: VectorCodec, vectors: Sequence[Sequence[Tensor]]) -> tuple[Parts, list[list[Tensor]]]:
        parts: Parts = []
        residual: list[list[Tensor]] = []
        for number, row in enumerate(vectors):
            parts.append([])
            residual.append([])
            for vector, owed, (segment, coded) in zip(row, self._residuals[number], self._of(number), strict=True):
                if not coded:
                    parts[-1].append([vector])
                    residual[-1].append(tf.zeros([0]))
                    continue
                whole = vector + owed.read_value() if self._feedback else vector
                sent = codec.encode(tf.ensure_shape(whole, [segment.size]))
                parts[-1].append(sent)
                residual[-1].append(whole - codec.decode(sent, segment.size) if self._feedback else tf.zeros([0]))
        return parts, residual

    def _emit_flush(self, vectors: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Emit the vectors plus the residuals, and reset the residuals to zero."""
        together = [
            [vector + owed.read_value() if coded else vector for vector, owed, coded in zip(*row, strict=True)]
            for row in zip(vectors, self._residuals, self._coded, strict=True)
        ]
        return together, [[tf.zeros(owed.shape) for owed in row] for row in self._residuals]

    def _emit_commit(self, residual: Sequence[Sequence[Tensor]]) -> None:
        for targets, values in zip(self._residuals, residual, strict=True):
            for target, value in zip(targets, values, strict=True):
                target.assign(value)


def as_parts(vectors: Sequence[Sequence[Tensor]]) -> Parts:
    """Return vectors without an encoding as parts."""
    return [[[vector] for vector in row] for row in vectors]
