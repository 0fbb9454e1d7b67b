"""Encoded sizes of float32 vectors on the network, by codec. The runtime and `plan` share them."""

import math
from typing import Final

from pstraining.api.training import Codec

SMALLEST: Final = 1024
"""Minimum number of elements of an encoded vector. Smaller ones are sent unchanged."""
INT8_BLOCK: Final = 256
ONE_BIT_BLOCK: Final = 4096
TOP_K_BLOCK: Final = 65536
"""Number of elements that share a scale or a counter; the two constants above have the same meaning."""
MIN_SHARD_BYTES: Final = 256 * 1024
"""Default of minShardBytes, as in TensorFlow's `MinSizePartitioner`. A call costs a server as much time as 80 KB at
1 Gbit/s."""
SCALE: Final = 4
"""Bytes of a scale, a counter or a float32."""


def servers_used(servers: int, nbytes: int, least: int) -> int:
    """Return the number of servers for parameters, at least 1, so that each holds `least` bytes or more.

    The rule is that of TensorFlow's `MinSizePartitioner` with `min_shard_bytes`, applied to the sum of all tensors.

    Args:
        servers: number of the job's servers.
        nbytes: bytes of all parameters.
        least: minimum bytes of a server; 0 uses all servers.
    """
    return max(1, min(servers, nbytes // least)) if least else servers


def encoded(codec: Codec, size: int, *, permille: int = 10) -> int:
    """Return the encoded bytes of a vector.

    Args:
        codec: the codec; Auto counts as None.
        size: number of elements.
        permille: number of elements, of every thousand, that TopK sends.
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
