"""Compression of a worker's gradients, with error feedback.

Error feedback (Karimireddy et al., 2019): a codec loses a part of a gradient, the residual. It is added to the next
gradient before encoding. The residual stays on the worker, and counts only once the servers have accepted the gradient.
A gradient is resent as the same bytes. A residual belongs to one set of parameters: a restore ends it.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.codecs import VectorCodec, is_codable, is_coded
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor, Variable
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore

Parts = list[list[list[Tensor]]]
"""The tensors of every segment of every server."""


class Residual(NamedTuple):
    """The residual of an encoded gradient; it counts once the servers have accepted the gradient."""

    vectors: list[list[Tensor]]
    """A vector for each segment of each server, of length 0 without a residual; empty: the residual does not change."""
    has_residual: bool
    """Whether any element may differ from zero."""
    store: ParameterStore | None = None
    """The servers whose segments the vectors have; None if there are no vectors."""


class PushCompressor:
    """Encodes a worker's gradients in one of several wire formats.

    The residual of one format is sent with the next gradient, in any format.

    Args:
        store: the servers' segments.
        codecs: the codec of each format; None for no codec.
        feedback: whether residuals are sent later.
        former: the compressor for the former layout, whose residual this one takes over.
    """

    def __init__(
        self,
        store: ParameterStore,
        codecs: Sequence[VectorCodec | None],
        *,
        feedback: bool = True,
        former: "PushCompressor | None" = None,
    ) -> None:
        used = any(codecs)
        self._store, self._codecs, self._feedback = store, codecs, feedback and used
        self._coded = [[used and is_coded(s) for s in shard.segments] for shard in store.shards]
        self._former = former if self._feedback else None
        # A segment that is too small for a codec may have the residual of a larger one of the former layout.
        has_room = is_codable if self._former else is_coded
        self._has_residual = False
        with tf.device(store.client.compute):
            self._residuals = [
                [tf.Variable(tf.zeros([segment.size if used and has_room(segment) else 0])) for segment in own.segments]
                for own in store.shards
            ]
        self._encode = [tf.function(partial(self._emit_encode, codec), autograph=False) for codec in codecs if codec]
        self._encoders = dict(zip([number for number, codec in enumerate(codecs) if codec], self._encode, strict=True))
        self._flush = tf.function(self._emit_flush, autograph=False)
        self._commit = tf.function(self._emit_commit, autograph=False)

    def on(self, store: ParameterStore) -> "PushCompressor":
        """Return the compressor for other servers: this one for members of the same layout."""
        if store.layout == self._store.layout:
            return self
        return PushCompressor(store, self._codecs, feedback=self._feedback, former=self)

    def take_over(self) -> None:
        """Move the residual of the former layout to this one, at the first call; the former compressor is over."""
        if (former := self._former) is None:
            return
        self._former = None
        former.take_over()
        values = [[own.read_value() for own in row] for row in former._residuals]
        former._residuals = []
        self.commit_residual(Residual(values, former._has_residual, former._store))

    def forget(self) -> None:
        """Drop the residual: the gradients that it is a part of are not in the parameters that were restored."""
        if self._has_residual:
            with tf.device(self._store.client.compute):
                self._commit([[tf.zeros(owed.shape) for owed in row] for row in self._residuals])
            self._has_residual = False

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
                return as_parts(together), Residual(nothing, has_residual=False, store=self._store)
            parts, residual = self._encoders[fmt](vectors)
            return parts, Residual(residual, has_residual=True, store=self._store)

    def commit_residual(self, residual: Residual) -> None:
        """Commit the residual of a gradient that the servers have accepted, maybe those of the former layout."""
        if not self._feedback or residual.store is None:
            return
        is_own = residual.store is self._store
        with tf.device(self._store.client.compute):
            self._commit(residual.vectors if is_own else self._moved(residual.vectors, residual.store))
        self._has_residual = residual.has_residual

    def _moved(self, vectors: Sequence[Sequence[Tensor]], former: ParameterStore) -> list[list[Tensor]]:
        """Return residuals of another layout in the segments of this one."""
        whole = [
            [
                vector if vector.shape[0] else tf.zeros([part.size])
                for vector, part in zip(row, own.segments, strict=True)
            ]
            for row, own in zip(vectors, former.shards, strict=True)
        ]
        packed = self._store.pack(former.unpack(whole))
        return [
            [vector if own.shape[0] else tf.zeros([0]) for vector, own in zip(row, owned, strict=True)]
            for row, owned in zip(packed, self._residuals, strict=True)
        ]

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
                    parts[-1].append([_with(owed, vector)])
                    residual[-1].append(tf.zeros(owed.shape))
                    continue
                whole = vector + owed.read_value() if self._feedback else vector
                sent = codec.encode(tf.ensure_shape(whole, [segment.size]))
                parts[-1].append(sent)
                residual[-1].append(whole - codec.decode(sent, segment.size) if self._feedback else tf.zeros([0]))
        return parts, residual

    def _emit_flush(self, vectors: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Emit the vectors plus the residuals, and reset the residuals to zero."""
        together = [
            [_with(owed, vector) for vector, owed in zip(*row, strict=True)]
            for row in zip(vectors, self._residuals, strict=True)
        ]
        return together, [[tf.zeros(owed.shape) for owed in row] for row in self._residuals]

    def _emit_commit(self, residual: Sequence[Sequence[Tensor]]) -> None:
        for targets, values in zip(self._residuals, residual, strict=True):
            for target, value in zip(targets, values, strict=True):
                target.assign(value)


def _with(owed: Variable, vector: Tensor) -> Tensor:
    """Emit a vector plus its residual, if it has one."""
    return vector + owed.read_value() if owed.shape[0] else vector


def as_parts(vectors: Sequence[Sequence[Tensor]]) -> Parts:
    """Return vectors without an encoding as parts."""
    return [[[vector] for vector in row] for row in vectors]
