"""What a program may not have done before its process connects to the parameter servers."""

from tensorflow.python.eager import context

from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.model import overrides


def check() -> None:
    """Refuse settings that training would not follow, and tensors, which `PSClient.connect` would invalidate.

    Raises:
        ModelError: see `overrides.check_settings`.
        SettingsError: the program has created a tensor; the message names the way out.
    """
    overrides.check_settings()
    if has_tensors():
        raise SettingsError(
            "the program has created a tensor, a dataset or a variable before Trainer.run, and connecting to the "
            "parameter servers invalidates it: create it inside the functions that the Trainer is given (model, "
            "optimizer, data, validation, evaluate), or when the loss is called; NumPy arrays may exist"
        )


def has_tensors() -> bool:
    """Return whether this process has created a tensor."""
    return bool(context.context()._initialized)
