"""Errors of the client."""


class ClientError(Exception):
    """A request cannot be fulfilled. The message names the action to take."""


class JobFailedError(ClientError):
    """A job has failed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
        """The last lines of the failed task's log; empty if it is not available."""
