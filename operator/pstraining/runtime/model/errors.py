"""The error of a model that cannot be trained. Imports neither TensorFlow nor Keras."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pstraining.runtime.errors import FinalError

OF_TRACING: Final = (AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
"""Errors of Keras, and of the program, while a step is traced. Another run would trace the same step."""


class ModelError(FinalError, ValueError):
    """A model that cannot be trained on parameter servers; the message names the necessary change."""


@contextmanager
def refusing_errors() -> Iterator[None]:
    """Refuse a program if its forward pass cannot be traced, such as for an unknown loss or labels of another shape.

    Raises:
        ModelError: has the message of Keras, of TensorFlow or of the program.
    """
    try:
        yield
    except FinalError:
        raise
    except OF_TRACING as error:
        raise ModelError(f"the training step cannot be traced: {type(error).__name__}: {error}") from error
