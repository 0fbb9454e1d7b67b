"""Errors of checkpoints."""


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""


class NotSavedError(OSError):
    """The last state could not be saved."""
