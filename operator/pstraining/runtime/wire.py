"""What of a worker's gradients and of the servers' parameters crosses the network, and in which form.

Error feedback (Karimireddy et al., 2019): what a codec loses of a gradient is added to the next one before that is
encoded, so nothing is lost for good. What is left over belongs to the worker, and counts only once the servers have
taken the gradient; a gradient that has to be sent again is sent as the same bytes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from pstraining.api.sizes import SMALLEST
from pstraining.runtime.auto import CODED
from pstraining.runtime.codecs import Codec
from pstraining.runtime.critical import after, one, zero
from pstraining.runtime.layout import Segment
from pstraining.runtime.model import STATE
from pstraining.runtime.shard import Shard
from pstraining.runtime.store import ParameterStore
from pstraining.runtime.tensor import Tensor

Parts = list[list[list[Tensor]]]
"""The tensors of every segment of every server."""


def is_coded(segment: Segment) -> bool:
    """Whether a codec is used for a segment: not for state, which has no gradient, nor for what is too small."""
    return segment.group != STATE and segment.dtype == "float32" and segment.size >= SMALLEST


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

    def prepare(self, vectors: Sequence[Sequence[Tensor]]) -> None:
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


class Shadow:
    """What workers hold of a server's parameters, kept on the server; create it where variables go to that server.

    With every step the server encodes how far its parameters are from the shadow, moves the shadow by what that comes
    to, and all workers fetch the same bytes and move by the same: they hold the shadow, bit for bit. What the codec
    loses stays in the difference, and is sent with a later step.

    Args:
        segments: of the server.
        vectors: the parameters.
        codec: for the moves.
        optional: whether a step may also be made without: workers then fetch the parameters themselves, and hold those.
    """

    def __init__(self, segments: Sequence[Segment], vectors: Sequence[Any], codec: Codec, *, optional: bool) -> None:
        self._codec = codec
        self.numbers = [number for number, segment in enumerate(segments) if is_coded(segment)]
        """Of the segments that are fetched through the codec."""
        self._sizes = {number: segments[number].size for number in self.numbers}
        self._vectors = vectors
        self.values = {
            number: tf.Variable(vectors[number].read_value, dtype=tf.float32, shape=[self._sizes[number]])
            for number in self.numbers
        }
        """What a worker holds that has every step, if the last one was encoded."""
        self.moves = {number: self._room(self._sizes[number]) for number in self.numbers}
        """The last step's, encoded."""
        self._coded = tf.Variable(tf.zeros([], tf.int64)) if optional else None

    def _room(self, size: int) -> list[Any]:
        room = []
        for shape, dtype in self._codec.parts(size):
            empty = [length or 0 for length in shape]
            room.append(tf.Variable(_zeros(empty, dtype), dtype=dtype, shape=list(shape)))
        return room

    def is_held(self) -> Tensor:
        """Emits whether workers hold the shadow, not the parameters themselves. bool[]."""
        return tf.constant(True) if self._coded is None else tf.equal(self._coded.read_value(), 1)

    def held(self, number: int) -> Tensor:
        """Emits a segment as workers hold it that have every step."""
        own = self.values[number].read_value
        return own() if self._coded is None else tf.cond(self.is_held(), own, self._vectors[number].read_value)

    def begin(self, form: Tensor) -> list[Any]:
        """Emits, in the critical section and before a step of this form: be what the workers hold."""
        if self._coded is None:
            return []

        def catch_up() -> Tensor:
            done = [self.values[n].assign(self._vectors[n].read_value(), read_value=False) for n in self.numbers]
            return after(done, one())

        return [tf.cond(tf.equal(form, CODED) & tf.logical_not(self.is_held()), catch_up, zero)]

    def follow(self, form: Tensor) -> list[Any]:
        """Emits, in the critical section and after a step of this form: move on; what is yet to be waited for."""
        if self._coded is None:
            return self._move()
        coded = tf.equal(form, CODED)
        with tf.control_dependencies([tf.cond(coded, lambda: after(self._move(), one()), zero)]):
            return [self._coded.assign(tf.cast(coded, tf.int64), read_value=False)]

    def _move(self) -> list[Any]:
        done = []
        for number in self.numbers:
            shadow, size = self.values[number], self._sizes[number]
            parts = self._codec.encode(self._vectors[number].read_value() - shadow.read_value())
            done.append(shadow.assign_add(self._codec.decode(parts, size), read_value=False))
            done += [room.assign(part, read_value=False) for room, part in zip(self.moves[number], parts, strict=True)]
        return done

    def decode(self, number: int, parts: Sequence[Tensor]) -> Tensor:
        """Emits, on the worker: how far a segment has moved."""
        return self._codec.decode(parts, self._sizes[number])


def _zeros(shape: list[int], dtype: Any) -> Any:
    return lambda: tf.zeros(shape, dtype)
