"""Arithmetic that gives the same bits every time, whatever the vectors look like that it is done on."""

import tensorflow as tf


def make_repeatable() -> None:
    """Turn off what makes equal runs differ; call it before any function is traced.

    Kernels that sum in the order in which threads finish are replaced by ordered ones (TensorFlow's op determinism; it
    refuses random operations that have no seed). TensorFlow's rewriting of arithmetic is switched off, too: it turns a
    division by a square root into a product with an approximate reciprocal, whose last bits depend on the element's
    place in its vector.
    """
    tf.config.experimental.enable_op_determinism()
    plain_arithmetic()


def plain_arithmetic() -> None:
    """Do arithmetic as the program has written it."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False, "remapping": False})
