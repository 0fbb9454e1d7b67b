"""The one alias for TensorFlow's tensors, whose own types are not checked. Imports no TensorFlow."""

from typing import Any

Tensor = Any
"""A `tf.Tensor`."""
