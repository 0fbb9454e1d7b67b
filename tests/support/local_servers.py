"""A model's parameter servers in one process, without sessions, rounds and calls: the arithmetic alone."""

from typing import Any

import numpy as np


class LocalServers:
    """What every server would have of a model, in this process.

    Args:
        model: the program's.
        ps: number of servers.
        agrees_on_norms: whether a step knows the norms of tensors that are cut, as in Sync and Hybrid.
    """

    def __init__(self, model: Any, ps: int, *, agrees_on_norms: bool = False) -> None:
        import tensorflow as tf

        from pstraining.runtime.model import partition
        from pstraining.runtime.model.segment_optimizer import SegmentOptimizer

        self.layout = partition.partition(model.tensors, ps, agrees_on_norms=agrees_on_norms)
        self._parts = [SegmentOptimizer(model.optimizers, self.layout, number, fused=True) for number in range(ps)]
        for number, part in enumerate(self._parts):
            for segment, vector in zip(self.layout.on(number), part.vectors, strict=True):
                vector.assign(partition.pack(self.layout, segment, model.values()))
            for slot, of in part.copies:
                slot.assign(part.vectors[of])
        self.apply = tf.function(self._apply, jit_compile=False, autograph=False)

    def _apply(self, gradients: Any) -> None:
        import tensorflow as tf

        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        packed = [
            [
                tf.concat([flat[slice_.tensor][slice_.begin : slice_.end] for slice_ in segment.slices], 0)
                for segment in self.layout.on(number)
            ]
            for number in range(len(self._parts))
        ]
        trust = None
        if self._parts[0].trust.length:
            trust = tf.add_n([part.trust_squares(own) for part, own in zip(self._parts, packed, strict=True)])
        for part, own in zip(self._parts, packed, strict=True):
            part.train(own, trust)
            part.add(own)

    def values(self) -> Any:
        from pstraining.runtime.model import partition

        pairs = [
            (segment, np.asarray(vector.read_value()))
            for number, part in enumerate(self._parts)
            for segment, vector in zip(self.layout.on(number), part.vectors, strict=True)
        ]
        return partition.unpack(self.layout, pairs)
