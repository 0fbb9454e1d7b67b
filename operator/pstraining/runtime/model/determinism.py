"""Arithmetic with reproducible bits, independent of how tensors are packed into vectors."""

import tensorflow as tf


def make_repeatable() -> None:
    """Make equal runs give equal bits; call this before any function is traced.

    Kernels that sum in the order in which threads finish are replaced by ordered ones (TensorFlow's op determinism; it
    refuses random operations that have no seed). TensorFlow's rewriting of arithmetic is off as well: it turns a
    division by a square root into a product with an approximate reciprocal, whose last bits depend on the element's
    place in its vector.
    """
    tf.config.experimental.enable_op_determinism()
    plain_arithmetic()


def plain_arithmetic() -> None:
    """Keep TensorFlow from rewriting the program's arithmetic."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False, "remapping": False})
