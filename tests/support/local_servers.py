"""A model's parameter servers in one process, without sessions, rounds and calls, to test the arithmetic only."""

from typing import Any

import numpy as np


class LocalServers:
    """Every server's part of a model, in this process.

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

    def train_beside(self, optimizer: Any, model: Any, steps: int) -> None:
        """Train on random gradients, and a plain Keras model on the same; demand equal values (float32, 1e-6).

        Args:
            optimizer: the plain model's, which was built for it.
            model: with the same initial values.
            steps: the number of updates.
        """
        import tensorflow as tf

        variables, tensors = model.trainable_variables, self.layout.tensors
        apply = tf.function(lambda found: optimizer.apply(found, variables), jit_compile=False)
        random = np.random.default_rng(0)
        for _ in range(steps):
            found = [tf.constant(random.normal(0, 0.1, tensor.shape), tf.float32) for tensor in tensors]
            apply(found)
            self.apply(found)
        values = self.values()
        for variable, tensor in zip(variables, tensors, strict=True):
            np.testing.assert_allclose(values[tensor.path], variable.numpy(), rtol=0, atol=1e-6, err_msg=tensor.path)

    def values(self) -> Any:
        from pstraining.runtime.model import partition

        pairs = [
            (segment, np.asarray(vector.read_value()))
            for number, part in enumerate(self._parts)
            for segment, vector in zip(self.layout.on(number), part.vectors, strict=True)
        ]
        return partition.unpack(self.layout, pairs)
