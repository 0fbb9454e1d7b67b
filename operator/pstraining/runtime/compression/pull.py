"""Compression of pulled parameters: servers send encoded moves, and keep a shadow of the workers' copy."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from pstraining.runtime.compression.auto_select import CODED
from pstraining.runtime.compression.codecs import VectorCodec, is_coded
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import DType, Operation, Tensor, Variable
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.variables import PSVariable


class PullShadow:
    """The workers' copy of a server's parameters, kept on the server; create it inside `variables_on` for that server.

    With every step the server encodes the difference of its parameters and the shadow, and adds the decoded difference
    to the shadow. All workers fetch these bytes and apply the same move, so they hold the shadow, bit for bit. The
    codec's loss remains in the difference, and is sent with a later step.

    Args:
        segments: the server's segments.
        vectors: the server's parameters.
        codec: encodes the moves.
        optional: whether a step may be sent without the codec; workers then fetch and hold the parameters themselves.
    """

    def __init__(
        self, segments: Sequence[Segment], vectors: Sequence[Variable], codec: VectorCodec, *, optional: bool
    ) -> None:
        self._codec = codec
        self.numbers = [number for number, segment in enumerate(segments) if is_coded(segment)]
        """Numbers of the segments that are fetched through the codec."""
        self._sizes = {number: segments[number].size for number in self.numbers}
        self._vectors = vectors
        self.values = {
            number: tf.Variable(vectors[number].read_value, dtype=tf.float32, shape=[self._sizes[number]])
            for number in self.numbers
        }
        """The local values of an up-to-date worker after an encoded step."""
        self.moves = {number: self._room(self._sizes[number]) for number in self.numbers}
        """The last step's encoded moves."""
        self._coded = tf.Variable(tf.zeros([], tf.int64)) if optional else None

    def _room(self, size: int) -> list[PSVariable]:
        room: list[PSVariable] = []
        for shape, dtype in self._codec.parts(size):
            empty = [length or 0 for length in shape]
            room.append(tf.Variable(_zeros(empty, dtype), dtype=dtype, shape=list(shape)))
        return room

    def variables(self, number: int) -> list[PSVariable]:
        """Return the variables that belong to a segment."""
        return [self.values[number], *self.moves[number]] if number in self.values else []

    def is_held(self) -> Tensor:
        """Emit whether workers hold the shadow, not the parameters themselves. bool[]."""
        return tf.constant(True) if self._coded is None else tf.equal(self._coded.read_value(), 1)

    def as_workers_hold(self, number: int) -> Tensor:
        """Emit a segment as up-to-date workers hold it."""
        own = self.values[number].read_value
        return own() if self._coded is None else tf.cond(self.is_held(), own, self._vectors[number].read_value)

    def begin(self, fmt: Tensor) -> list[Operation]:
        """Emit, in the critical section before a step of this format, setting the shadow to the workers' values."""
        if self._coded is None:
            return []

        def catch_up() -> Tensor:
            done = [self.values[n].assign(self._vectors[n].read_value(), read_value=False) for n in self.numbers]
            return with_dependencies(done, applied())

        return [tf.cond(tf.equal(fmt, CODED) & tf.logical_not(self.is_held()), catch_up, not_applied)]

    def follow(self, fmt: Tensor) -> list[Operation]:
        """Emit, in the critical section after a step of this format, the encoded move; return the operations."""
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
        """Emit on the worker a segment's decoded move."""
        return self._codec.decode(parts, self._sizes[number])


def _zeros(shape: list[int], dtype: DType) -> Callable[[], Tensor]:
    return lambda: tf.zeros(shape, dtype)
