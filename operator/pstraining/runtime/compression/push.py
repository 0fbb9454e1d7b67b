"""What of a worker's gradients crosses the network, and in which form.

Error feedback (Karimireddy et al., 2019): what a codec loses of a gradient is added to the next one before that is
encoded, so nothing is lost for good. What is left over belongs to the worker, and counts only once the servers have
taken the gradient; a gradient that has to be sent again is sent as the same bytes.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.compression.codecs import Codec, is_coded
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore

Parts = list[list[list[Tensor]]]
"""The tensors of every segment of every server."""


class Left(NamedTuple):
    """What a worker owes once the servers have taken what was encoded with it."""

    vectors: list[list[Tensor]]
    """One for each segment of each server; none at all: what is owed does not change."""
    owes: bool
    """Whether anything in them may differ from zero."""


class PushWire:
    """A worker's gradients on their way to the servers, in one of several forms at a time.

    What is left over of one form is sent with the next gradient in whatever form that has.

    Args:
        store: the servers' segments.
        codecs: of each form; None: vectors are sent as they are.
        feedback: whether what a codec loses is sent later.
    """

    def __init__(self, store: ParameterStore, codecs: Sequence[Codec | None], *, feedback: bool = True) -> None:
        used = any(codecs)
        self._store, self._codecs, self._feedback = store, codecs, feedback and used
        self._coded = [[used and is_coded(s) for s in shard.segments] for shard in store.shards]
        self._owes = False
        with tf.device(store.client.local):
            self._left = [
                [tf.Variable(tf.zeros([segment.size if coded else 0])) for segment, coded in self._of(number)]
                for number in range(len(store.shards))
            ]
        self._encode = [tf.function(partial(self._emit_encode, codec), autograph=False) for codec in codecs if codec]
        self._encoders = dict(zip([number for number, codec in enumerate(codecs) if codec], self._encode, strict=True))
        self._settle = tf.function(self._emit_settle, autograph=False)
        self._keep = tf.function(self._emit_keep, autograph=False)

    def is_plain(self, form: int) -> bool:
        """Whether the next vectors are sent as they are in this form."""
        return self._codecs[form] is None and not self._owes

    def warm_up(self, vectors: Sequence[Sequence[Tensor]]) -> None:
        """Trace everything, without an effect."""
        with tf.device(self._store.client.local):
            for function in [*self._encoders.values(), *([self._settle] if self._feedback else [])]:
                function(vectors)

    def encode(self, vectors: Sequence[Sequence[Tensor]], form: int) -> tuple[Parts, Left]:
        """What is sent, and what is then left over."""
        if self.is_plain(form):
            return as_parts(vectors), Left([], owes=False)
        with tf.device(self._store.client.local):
            if self._codecs[form] is None:
                together, nothing = self._settle(vectors)
                return as_parts(together), Left(nothing, owes=False)
            parts, left = self._encoders[form](vectors)
            return parts, Left(left, owes=True)

    def keep(self, left: Left) -> None:
        """The servers have taken it: what is left over counts from now on."""
        if self._feedback and left.vectors:
            with tf.device(self._store.client.local):
                self._keep(left.vectors)
            self._owes = left.owes

    def decode(self, shard: Shard, parts: Sequence[Sequence[Tensor]], form: int) -> list[Tensor]:
        """Emits the vectors of a server's segments again, on that server."""
        codec, number = self._codecs[form], shard.number
        with tf.device(shard.device):
            return [
                codec.decode(sent, segment.size) if codec is not None and coded else sent[0]
                for sent, (segment, coded) in zip(parts, self._of(number), strict=True)
            ]

    def _of(self, number: int) -> list[tuple[Segment, bool]]:
        return list(zip(self._store.shards[number].segments, self._coded[number], strict=True))

    def _emit_encode(self, codec: Codec, vectors: Sequence[Sequence[Tensor]]) -> tuple[Parts, list[list[Tensor]]]:
        parts: Parts = []
        left: list[list[Tensor]] = []
        for number, row in enumerate(vectors):
            parts.append([])
            left.append([])
            for vector, owed, (segment, coded) in zip(row, self._left[number], self._of(number), strict=True):
                if not coded:
                    parts[-1].append([vector])
                    left[-1].append(tf.zeros([0]))
                    continue
                whole = vector + owed.read_value() if self._feedback else vector
                sent = codec.encode(tf.ensure_shape(whole, [segment.size]))
                parts[-1].append(sent)
                left[-1].append(whole - codec.decode(sent, segment.size) if self._feedback else tf.zeros([0]))
        return parts, left

    def _emit_settle(self, vectors: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """The vectors with what is owed; and nothing, to be owed from then on."""
        together = [
            [vector + owed.read_value() if coded else vector for vector, owed, coded in zip(*row, strict=True)]
            for row in zip(vectors, self._left, self._coded, strict=True)
        ]
        return together, [[tf.zeros(owed.shape) for owed in row] for row in self._left]

    def _emit_keep(self, left: Sequence[Sequence[Tensor]]) -> None:
        for targets, values in zip(self._left, left, strict=True):
            for target, value in zip(targets, values, strict=True):
                target.assign(value)


def as_parts(vectors: Sequence[Sequence[Tensor]]) -> Parts:
    """Vectors that are sent as they are."""
    return [[[vector] for vector in row] for row in vectors]
