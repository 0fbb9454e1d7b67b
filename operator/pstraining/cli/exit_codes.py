"""The exit statuses of all commands. Scripts depend on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of a command."""

    SUCCESS = 0
    ERROR = 1
    USAGE = 2
    INCOMPLETE = 3
    JOB_FAILED = 4
    TIMED_OUT = 5
    JOB_DELETED = 6
    UNREACHABLE = 7
    INTERRUPTED = 130
    UNREAD = 141

    @property
    def meaning(self) -> str:
        """A one-line description of the status, for help and docs."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.SUCCESS: "the command has succeeded",
    ExitCode.ERROR: "the command has failed or was refused, or a check has failed; the last line gives the reason",
    ExitCode.USAGE: "the arguments are wrong; nothing was done",
    ExitCode.INCOMPLETE: "a field of a TFJob has no counterpart",
    ExitCode.JOB_FAILED: "the job has failed, or cannot start without a change",
    ExitCode.TIMED_OUT: "the timeout has expired",
    ExitCode.JOB_DELETED: "the job was deleted while the command waited",
    ExitCode.UNREACHABLE: "the API server did not respond",
    ExitCode.INTERRUPTED: "Ctrl-C has ended the command",
    ExitCode.UNREAD: "the reader of the output ended before the command, as `head` does",
}
ALWAYS = (ExitCode.SUCCESS, ExitCode.USAGE, ExitCode.INTERRUPTED, ExitCode.UNREAD)
"""Exit statuses that every command can return."""
