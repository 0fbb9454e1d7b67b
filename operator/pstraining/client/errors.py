"""Errors of the client."""


class ClientError(Exception):
    """Something that was asked for cannot be done; the message says what to do."""


class JobFailedError(ClientError):
    """A job has failed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
        """The last lines of the log of the task that failed; empty if there is none any more."""
