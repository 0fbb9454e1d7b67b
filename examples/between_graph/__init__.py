"""Handwritten digits with TensorFlow 1's between-graph replication."""
