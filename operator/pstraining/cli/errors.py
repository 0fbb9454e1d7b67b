"""What a command says when it cannot do what it was asked."""


class CommandError(Exception):
    """Ends a command with a message for people, without a traceback."""
