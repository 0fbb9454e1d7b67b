"""Codecs: lossy encodings of a vector in fewer bytes.

A codec turns a vector of floats into a few tensors on the sending device, and these into a vector on the receiving
device. The lost part is sent later (error feedback, see `compression.push`). Encoding is deterministic: a vector that
is encoded twice gives equal bytes.

Sources: Int8 by blocks is QSGD's linear quantisation without its randomness (Alistarh et al., 2017), which error
feedback replaces; OneBit is 1-bit SGD (Seide et al., 2014) with one scale per block as in EF-signSGD (Karimireddy et
al., 2019); TopK is Deep Gradient Compression's threshold from a sample (Lin et al., 2018).
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import tensorflow as tf

from pstraining.api.codec_sizes import INT8_BLOCK, ONE_BIT_BLOCK, SMALLEST, TOP_K_BLOCK
from pstraining.api.training import Codec
from pstraining.runtime.model.keras_model import STATE
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import DType, Tensor

Part = tuple[tuple[int | None, ...], DType]
"""Shape and dtype of one of the tensors that a vector becomes; None is a length that depends on the values."""


class VectorCodec(Protocol):
    """An encoding of a float32 vector."""

    def parts(self, size: int) -> tuple[Part, ...]:
        """Return shapes and dtypes of the encoded tensors of a vector with `size` elements."""

    def encode(self, vector: Tensor) -> list[Tensor]:
        """Emit the encoded tensors. Shape of the vector: [size], known when traced."""

    def decode(self, parts: Sequence[Tensor], size: int) -> Tensor:
        """Emit the decoded vector. float32[size]."""


class Bf16:
    """Sends the upper half of every float: 2 bytes per element."""

    def parts(self, size: int) -> tuple[Part, ...]:
        """Return the shape of one vector of the same length. bfloat16[size]."""
        return (((size,), tf.bfloat16),)

    def encode(self, vector: Tensor) -> list[Tensor]:
        """Emit each element, rounded to the nearest bfloat16."""
        return [tf.cast(vector, tf.bfloat16)]

    def decode(self, parts: Sequence[Tensor], size: int) -> Tensor:
        """Emit the elements as float32, without a further loss."""
        return tf.ensure_shape(tf.cast(parts[0], tf.float32), [size])


class Int8:
    """Sends each element as a multiple of 1/127 of its block's largest absolute value: 1.016 bytes per element."""

    BLOCK: Final = INT8_BLOCK

    def parts(self, size: int) -> tuple[Part, ...]:
        """Return the shapes of the steps and of the scales. int8[blocks, BLOCK], float32[blocks]."""
        blocks = _blocks(size, self.BLOCK)
        return (((blocks, self.BLOCK), tf.int8), ((blocks,), tf.float32))

    def encode(self, vector: Tensor) -> list[Tensor]:
        """Emit each element in units of its block's scale, rounded to the nearest step, and the scales."""
        rows = _rows(vector, self.BLOCK)
        scale = tf.reduce_max(tf.abs(rows), 1) / 127.0
        steps = tf.round(tf.math.divide_no_nan(rows, scale[:, tf.newaxis]))
        return [tf.cast(steps, tf.int8), scale]

    def decode(self, parts: Sequence[Tensor], size: int) -> Tensor:
        """Emit each step times the scale of its block."""
        steps, scale = parts
        return _vector(tf.cast(steps, tf.float32) * scale[:, tf.newaxis], size)


class OneBit:
    """Sends the sign of every element, and the mean absolute value of each block: 0.126 bytes per element."""

    BLOCK: Final = ONE_BIT_BLOCK
    _POWERS: Final = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.float32)
    _SIGNS: Final = np.array(
        [[1.0 if byte >> bit & 1 else -1.0 for bit in range(8)] for byte in range(256)], np.float32
    )

    def parts(self, size: int) -> tuple[Part, ...]:
        """Return the shapes of signs, eight per byte, and scales. uint8[blocks * BLOCK / 8], float32[blocks]."""
        blocks = _blocks(size, self.BLOCK)
        return (((blocks * self.BLOCK // 8,), tf.uint8), ((blocks,), tf.float32))

    def encode(self, vector: Tensor) -> list[Tensor]:
        """Emit the signs, zero as positive, and the mean absolute value of each block without its padding."""
        size = vector.shape[0]
        rows = _rows(vector, self.BLOCK)
        bits = tf.reshape(tf.cast(rows >= 0, tf.float32), [-1, 8])
        filled = np.full([rows.shape[0]], self.BLOCK, np.float32)
        filled[-1] = size - (rows.shape[0] - 1) * self.BLOCK
        return [tf.cast(tf.linalg.matvec(bits, self._POWERS), tf.uint8), tf.reduce_sum(tf.abs(rows), 1) / filled]

    def decode(self, parts: Sequence[Tensor], size: int) -> Tensor:
        """Emit each sign times the scale of its block."""
        signs, scale = parts
        rows = tf.reshape(tf.gather(tf.constant(self._SIGNS), tf.cast(signs, tf.int32)), [-1, self.BLOCK])
        return _vector(rows * scale[:, tf.newaxis], size)


class TopK:
    """Sends only the largest elements: 4 bytes for each element that is kept.

    Args:
        permille: approximate number of kept elements per thousand. A sample of the vector gives the threshold.
    """

    BLOCK: Final = TOP_K_BLOCK
    _STRIDE: Final = 101

    def __init__(self, permille: int) -> None:
        self._share = permille / 1000

    def parts(self, size: int) -> tuple[Part, ...]:
        """Return the shapes of offsets, values and counts per block. uint16[n], bfloat16[n], int32[blocks]."""
        return (((None,), tf.uint16), ((None,), tf.bfloat16), ((_blocks(size, self.BLOCK),), tf.int32))

    def encode(self, vector: Tensor) -> list[Tensor]:
        """Emit the elements whose absolute value reaches the threshold, as offsets, values and counts."""
        size = vector.shape[0]
        sizes = tf.abs(vector)
        sample = sizes[:: self._STRIDE] if size >= 1000 * self._STRIDE else sizes
        kept = max(1, round(sample.shape[0] * self._share))
        threshold = tf.math.top_k(sample, kept).values[-1]
        places = tf.where((sizes >= threshold) & (sizes > 0))[:, 0]
        counts = tf.math.bincount(
            tf.cast(places // self.BLOCK, tf.int32), minlength=_blocks(size, self.BLOCK), dtype=tf.int32
        )
        offsets = tf.cast(tf.cast(places % self.BLOCK, tf.int32), tf.uint16)
        return [offsets, tf.cast(tf.gather(vector, places), tf.bfloat16), counts]

    def decode(self, parts: Sequence[Tensor], size: int) -> Tensor:
        """Emit the kept elements at their places, and zeros elsewhere."""
        offsets, values, counts = parts
        begins = tf.repeat(tf.range(_blocks(size, self.BLOCK), dtype=tf.int32) * self.BLOCK, counts)
        places = begins + tf.cast(offsets, tf.int32)
        return tf.scatter_nd(places[:, tf.newaxis], tf.cast(values, tf.float32), [size])


def find(name: Codec, *, permille: int) -> VectorCodec | None:
    """Return the codec of a name; None for no codec."""
    made: dict[Codec, VectorCodec | None] = {
        Codec.NONE: None,
        Codec.BF16: Bf16(),
        Codec.INT8: Int8(),
        Codec.ONE_BIT: OneBit(),
        Codec.TOP_K: TopK(permille),
    }
    return made[name]


def _blocks(size: int, block: int) -> int:
    return math.ceil(size / block)


def _rows(vector: Tensor, block: int) -> Tensor:
    """Emit the vector as rows of a block each, the last row padded with zeros."""
    size = vector.shape[0]
    missing = _blocks(size, block) * block - size
    return tf.reshape(tf.pad(vector, [[0, missing]]) if missing else vector, [-1, block])


def _vector(rows: Tensor, size: int) -> Tensor:
    vector = tf.reshape(rows, [-1])
    return tf.ensure_shape(vector if rows.shape.num_elements() == size else vector[:size], [size])


def is_codable(segment: Segment) -> bool:
    """Return whether a segment of this kind is encoded if it is large enough: state has no gradient."""
    return segment.group != STATE and segment.dtype == "float32"


def is_coded(segment: Segment) -> bool:
    """Return whether a segment is encoded: small segments do not pay."""
    return is_codable(segment) and segment.size >= SMALLEST
