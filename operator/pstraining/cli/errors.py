"""What a command says when it cannot do what it was asked."""


class CommandError(Exception):
    """Ends a command with a message for people, without a traceback."""


class RequestError(CommandError):
    """The API server did not do what it was asked."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 if there was no answer."""


class DeniedError(RequestError):
    """The API server does not let this user do it: 401 or 403 in its own words, not in those of a pod behind it."""


class AbsentError(RequestError):
    """There is no such object, in a cluster that knows its kind."""


class ConflictError(RequestError):
    """Others have changed what was to be changed."""

    def __init__(self, message: str, status: int, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message, status)
        self.fields = fields
        """What others have set, each with who it was."""
