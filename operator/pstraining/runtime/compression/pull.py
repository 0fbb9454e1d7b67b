"""Compression of pulled parameters: servers send encoded moves, and keep a shadow of the workers' copy."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from pstraining.runtime.compression.auto_select import CODED
from pstraining.runtime.compression.codecs import VectorCodec, is_coded
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import DType, Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies


class PullShadow:
    """The workers' copy of a server's parameters, kept on the server; create it inside `variables_on` for that server.

    With every step the server encodes how far its parameters are from the shadow, moves the shadow by what that comes
    to, and all workers fetch the same bytes and move by the same: they hold the shadow, bit for bit. What the codec
    loses stays in the difference, and is sent with a later step.

    Args:
        segments: of the server.
        vectors: the parameters.
        codec: for the moves.
        optional: whether a step may also be made without: workers then fetch the parameters themselves, and hold those.
    """

    def __init__(
        self, segments: Sequence[Segment], vectors: Sequence[Variable], codec: VectorCodec, *, optional: bool
    ) -> None:
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

    def _room(self, size: int) -> list[Variable]:
        room: list[Variable] = []
        for shape, dtype in self._codec.parts(size):
            empty = [length or 0 for length in shape]
            room.append(tf.Variable(_zeros(empty, dtype), dtype=dtype, shape=list(shape)))
        return room

    def is_held(self) -> Tensor:
        """Emits whether workers hold the shadow, not the parameters themselves. bool[]."""
        return tf.constant(True) if self._coded is None else tf.equal(self._coded.read_value(), 1)

    def as_workers_hold(self, number: int) -> Tensor:
        """Emit a segment as up-to-date workers hold it."""
        own = self.values[number].read_value
        return own() if self._coded is None else tf.cond(self.is_held(), own, self._vectors[number].read_value)

    def begin(self, fmt: Tensor) -> list[Operation]:
        """Emits, in the critical section and before a step of this format: be what the workers hold."""
        if self._coded is None:
            return []

        def catch_up() -> Tensor:
            done = [self.values[n].assign(self._vectors[n].read_value(), read_value=False) for n in self.numbers]
            return with_dependencies(done, applied())

        return [tf.cond(tf.equal(fmt, CODED) & tf.logical_not(self.is_held()), catch_up, not_applied)]

    def follow(self, fmt: Tensor) -> list[Operation]:
        """Emits, in the critical section and after a step of this format: move on; what is yet to be waited for."""
        if self._coded is None:
            return self._move()
        coded = tf.equal(fmt, CODED)
        with tf.control_dependencies([tf.cond(coded, lambda: with_dependencies(self._move(), applied()), not_applied)]):
            return [self._coded.assign(tf.cast(coded, tf.int64), read_value=False)]

    def _move(self) -> list[Operation]:
        done: list[Operation] = []
        for number in self.numbers:
            shadow, size = self.values[number], self._sizes[number]
            parts = self._codec.encode(self._vectors[number].read_value() - shadow.read_value())
            done.append(shadow.assign_add(self._codec.decode(parts, size), read_value=False))
            done += [room.assign(part, read_value=False) for room, part in zip(self.moves[number], parts, strict=True)]
        return done

    def decode(self, number: int, parts: Sequence[Tensor]) -> Tensor:
        """Emits, on the worker: how far a segment has moved."""
        return self._codec.decode(parts, self._sizes[number])


def _zeros(shape: list[int], dtype: DType) -> Callable[[], Tensor]:
    return lambda: tf.zeros(shape, dtype)
