"""Arithmetic with reproducible bits, independent of how tensors are packed into vectors."""

import tensorflow as tf


def make_repeatable() -> None:
    """Let equal runs give equal bits; call this before any function is traced.

    Kernels that sum in the order in which threads finish are replaced by ordered ones (TensorFlow's op determinism; it
    refuses random operations that have no seed). TensorFlow's rewriting of arithmetic is off as well: see
    `plain_arithmetic`.
    """
    tf.config.experimental.enable_op_determinism()
    plain_arithmetic()


def plain_arithmetic() -> None:
    """Keep TensorFlow from rewriting the program's arithmetic.

    Its arithmetic optimizer turns a division by a square root into a product with an approximate reciprocal, whose last
    bits depend on the element's place in its vector. Its constant folding adds a constant to another operand first
    where the rest of the graph lets it (Grappler, `ConstantPushDown`): (a - b) + c becomes a - (b - c), as in RMSprop
    with `centered=True`, whose parameters would then differ from Keras's by rounding.
    """
    rewrites = ("arithmetic_optimization", "remapping", "constant_folding")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(rewrites, False))
