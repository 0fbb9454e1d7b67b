"""The error of a model that cannot be trained. Imports neither TensorFlow nor Keras."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pstraining.runtime.errors import FinalError

OF_PROGRAM: Final = (AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
"""Errors of Keras, or of the program, in what no other task influences: another run has them as well."""


class ModelError(FinalError, ValueError):
    """A model that cannot be trained on parameter servers; the message names the necessary change."""


@contextmanager
def refusing_errors(what: str) -> Iterator[None]:
    """Refuse a program in which a block fails, such as for an unknown loss or labels of another shape.

    Args:
        what: what has failed, at the beginning of the message.

    Raises:
        ModelError: has the message of Keras, of TensorFlow or of the program.
    """
    try:
        yield
    except FinalError:
        raise
    except OF_PROGRAM as error:
        raise ModelError(f"{what}: {type(error).__name__}: {error}") from error
