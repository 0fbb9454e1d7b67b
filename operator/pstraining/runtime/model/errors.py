"""The error of a model that cannot be trained. Imports neither TensorFlow nor Keras."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from pstraining.runtime.errors import FinalError

OF_PROGRAM: Final = (AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
"""Errors of Keras, or of the program, in what no other task influences: another run has them as well."""
KERAS: Final = ("keras.src.",)
FILES: Final = (
    *("keras.src.saving.", "keras.src.legacy.saving.", "keras.src.applications.", "keras.src.datasets."),
    *("keras.src.legacy.preprocessing.", "keras.src.layers.preprocessing.index_lookup"),
    *("keras.src.utils.file_utils", "keras.src.utils.dataset_utils"),
    *(f"keras.src.utils.{kind}_dataset_utils" for kind in ("audio", "image", "text")),
)
"""Modules of Keras that read files, or download them: their errors may pass."""
_CONDITION: Final = "OperatorNotAllowedInGraphError"
CONDITION_ADVICE: Final = (
    "if, while, for and assert of Python cannot read a tensor, as in fit; use tf.cond or keras.ops.where, decorate "
    "that function with tf.function, or pass train_step=tf.autograph.to_graph(train_step)"
)
_SIGNATURE: Final = re.compile(r"\S+\(\) (missing|got|takes) ")
"""Python's messages for arguments that do not fit a function's parameters."""


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
        if type(error).__name__ == _CONDITION:
            raise ModelError(f"{what}: {CONDITION_ADVICE}: {error}") from error
        raise ModelError(f"{what}: {type(error).__name__}: {error}") from error


@contextmanager
def refusing_repeated_errors(what: str) -> Iterator[None]:
    """Refuse a program in which a block fails with an error that every further run would meet.

    These are errors of Keras about arguments and shapes, names that do not exist, and calls that do not fit a function.
    Other errors may pass, for the block may read files.

    Args:
        what: what has failed, at the beginning of the message.

    Raises:
        ModelError: has the message of Keras or of the program.
    """
    try:
        yield
    except FinalError:
        raise
    except OF_PROGRAM as error:
        if not (_is_misnamed(error) or is_refusal_of_keras(error)):
            raise
        raise ModelError(f"{what}: {type(error).__name__}: {error}") from error


def is_refusal_of_keras(error: BaseException, modules: tuple[str, ...] = KERAS) -> bool:
    """Whether Keras itself has raised an error about a setting or a shape.

    Args:
        error: the error with its traceback, of which Keras may have removed frames.
        modules: beginnings of the names of modules that may have raised it.
    """
    return isinstance(error, TypeError | ValueError) and is_raised_by(error, modules)


def is_raised_by(error: BaseException, modules: tuple[str, ...]) -> bool:
    """Whether one of these modules has raised an error, outside the modules of Keras that read files."""
    of_frames = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        bool(of_frames)
        and of_frames[-1].startswith(modules)
        and not any(module.startswith(FILES) for module in of_frames)
    )


def _is_misnamed(error: BaseException) -> bool:
    """Whether the program uses a name that does not exist, or calls a function with other parameters."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, ModuleType)
    if isinstance(error, UnboundLocalError):  # its value may depend on a file
        return False
    return isinstance(error, NameError) or (isinstance(error, TypeError) and bool(_SIGNATURE.match(str(error))))
