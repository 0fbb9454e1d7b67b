"""Handwritten digits with TensorFlow's own parameter server strategy."""
