"""Records of the graphs of functions that TensorFlow instantiates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def recorded() -> Iterator[list[list[Any]]]:
    """Record the graphs of every function that the block runs for the first time, one for each device.

    The list has them after the block.
    """
    from tensorflow.python.eager import context

    functions: list[list[Any]] = []
    eager = context.context()
    eager.enable_run_metadata()
    eager.export_run_metadata()  # once a test has read its own graphs, those of earlier tests are recorded as well
    try:
        yield functions
        functions += [list(function.partition_graphs) for function in eager.export_run_metadata().function_graphs]
    finally:
        eager.disable_run_metadata()
