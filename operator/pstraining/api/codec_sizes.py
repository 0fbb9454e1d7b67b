"""How many bytes a vector of float32 becomes on the network, by codec: what the runtime sends, and plans go by."""

import math
from typing import Final

from pstraining.api.training import Codec

SMALLEST: Final = 1024
"""Elements from which a vector is worth a codec."""
INT8_BLOCK: Final = 256
ONE_BIT_BLOCK: Final = 4096
TOP_K_BLOCK: Final = 65536
"""Elements that share a scale, or a counter."""
MIN_SHARD_BYTES: Final = 256 * 1024
"""What a parameter server is worth using for by default; TensorFlow's `MinSizePartitioner` takes as much. A call costs
a server as much time as 80 KB at 1 Gbit/s."""
SCALE: Final = 4
"""Bytes of one of those, and of a float32."""


def encoded(codec: Codec, size: int, *, permille: int = 10) -> int:
    """Bytes of a vector.

    Args:
        codec: how it is written; Auto counts as None.
        size: its elements.
        permille: TopK: how many of a thousand are kept.
    """

    def blocks(length: int) -> int:
        return math.ceil(size / length)

    if size < SMALLEST:
        return SCALE * size
    match codec:
        case Codec.BF16:
            return 2 * size
        case Codec.INT8:
            return blocks(INT8_BLOCK) * (INT8_BLOCK + SCALE)
        case Codec.ONE_BIT:
            return blocks(ONE_BIT_BLOCK) * (ONE_BIT_BLOCK // 8 + SCALE)
        case Codec.TOP_K:
            return round(size * permille / 1000) * 4 + blocks(TOP_K_BLOCK) * SCALE
        case Codec.NONE | Codec.AUTO:
            return SCALE * size
