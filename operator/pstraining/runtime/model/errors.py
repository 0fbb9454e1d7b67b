"""The error of a model that cannot be trained. Imports neither TensorFlow nor Keras."""

from pstraining.runtime.errors import FinalError


class ModelError(FinalError, ValueError):
    """A model that cannot be trained on parameter servers; the message names the necessary change."""
