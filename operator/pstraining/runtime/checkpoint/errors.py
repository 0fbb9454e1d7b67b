"""Errors of checkpoints."""


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""
