"""All commands with examples and exit statuses, in the order of the help. Help, docs and tests use this table."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

import typer

from pstraining.cli.commands.convert import convert
from pstraining.cli.commands.dashboard import dashboard
from pstraining.cli.commands.doctor import doctor
from pstraining.cli.commands.logs import logs
from pstraining.cli.commands.plan import plan
from pstraining.cli.commands.report import report
from pstraining.cli.commands.scale import scale
from pstraining.cli.commands.status import status
from pstraining.cli.commands.submit import submit
from pstraining.cli.commands.suspend import resume, suspend
from pstraining.cli.commands.takeover import takeover
from pstraining.cli.commands.top import top
from pstraining.cli.commands.validate import validate
from pstraining.cli.commands.version import version
from pstraining.cli.commands.wait import wait
from pstraining.cli.exit_codes import ALWAYS, ExitCode
from pstraining.cli.output import until_unread

PROGRAM: Final = "kubectl pstraining"
_OFFLINE: Final = (ExitCode.ERROR,)
_CLUSTER: Final = (ExitCode.ERROR, ExitCode.UNREACHABLE)
_WAITS: Final = (*_CLUSTER, ExitCode.JOB_FAILED, ExitCode.TIMED_OUT, ExitCode.JOB_DELETED)


@dataclass(frozen=True)
class Command:
    """A command with the texts of its help."""

    run: Callable[..., None]
    examples: tuple[tuple[str, str], ...]
    """Pairs of a description and the arguments after the command's name."""
    codes: tuple[ExitCode, ...]
    """Exit statuses beside those in ALWAYS."""

    @property
    def name(self) -> str:
        """The command's name on the command line."""
        return self.run.__name__

    @property
    def summary(self) -> str:
        """The first sentence of the help."""
        text = " ".join((self.run.__doc__ or "").split("\n\n")[0].split())
        return text[: text.find(". ") + 1] or text

    @property
    def exit_codes(self) -> list[ExitCode]:
        """All exit statuses, in ascending order."""
        return sorted({*ALWAYS, *self.codes})

    def epilog(self) -> str:
        """Return the examples and exit statuses for the end of the help."""
        shown = [line for text, given in self.examples for line in (f"  # {text}", f"  {self.example(given)}")]
        statuses = [f"  {code:<4} {code.meaning}" for code in self.exit_codes]
        return "\n\n".join(
            "\n".join(["\b", title, *lines]) for title, lines in (("Examples:", shown), ("Exit status:", statuses))
        )

    def example(self, given: str) -> str:
        """Return an example as a whole command line."""
        return f"{PROGRAM} {self.name} {given}".rstrip()


def interruptible(run: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that Ctrl-C ends it with INTERRUPTED, and the end of its output's reader with UNREAD."""

    @wraps(run)
    def runs(*arguments: Any, **options: Any) -> None:
        try:
            with until_unread():
                run(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return runs


COMMANDS: Final = (
    Command(
        validate,
        (
            ("Check one file", "-f job.yaml"),
            ("Check several files", "-f a.yaml -f b.yaml"),
        ),
        _OFFLINE,
    ),
    Command(
        plan,
        (
            ("Show what the operator would create", "-f job.yaml"),
            ("Compare with the job in the cluster", "-f job.yaml --live"),
            ("Estimate the traffic of a model with 25.6 million parameters", "-f job.yaml --parameters 25.6M"),
        ),
        _CLUSTER,
    ),
    Command(
        submit,
        (
            ("Create a job, or change it", "-f job.yaml"),
            ("Submit a job, and wait until it runs, for ten minutes at most", "-f job.yaml --wait --timeout 10m"),
            ("Let the API server check the job, and store nothing", "-f job.yaml --dry-run server"),
        ),
        _WAITS,
    ),
    Command(
        status,
        (
            ("List the jobs of the namespace", ""),
            ("List the jobs of all namespaces", "-A"),
            ("Show every pod of a job, and why it waits", "digits"),
            ("Print the same as JSON", "digits -o json"),
            ("Show a deleted job, from the history beside its checkpoints", "--from digits"),
        ),
        _CLUSTER,
    ),
    Command(
        logs,
        (
            ("Print the last 20 lines of every task", "digits --tail 20"),
            ("Follow all logs until the job ends", "digits -f"),
            ("Print the previous run of a worker", "digits --role worker --index 1 --previous"),
        ),
        (*_CLUSTER, ExitCode.JOB_FAILED, ExitCode.JOB_DELETED),
    ),
    Command(
        top,
        (
            ("Show the rates of the last five seconds", "digits"),
            ("Measure for a minute", "digits --interval 60"),
        ),
        _CLUSTER,
    ),
    Command(
        dashboard,
        (
            ("Show the jobs of the namespace on a page, until Ctrl-C", ""),
            ("Show one job, and open the page in a browser", "digits --open"),
            ("Show the jobs of all namespaces, at a port of your choice", "-A --port 8080"),
        ),
        _CLUSTER,
    ),
    Command(
        wait,
        (
            ("Wait until the job has ended, for eight hours at most", "digits --timeout 8h"),
            ("Wait until it runs", "digits --for running"),
            ("Wait until its redundancy is complete", "digits --for condition=Degraded=False"),
        ),
        _WAITS,
    ),
    Command(
        scale,
        (("Train with four workers, and wait until they are ready", "digits --workers 4 --wait"),),
        _WAITS,
    ),
    Command(
        suspend,
        (("Stop a job, and wait until no pod runs", "digits --wait"),),
        (*_CLUSTER, ExitCode.TIMED_OUT, ExitCode.JOB_DELETED),
    ),
    Command(
        resume,
        (("Continue from the newest checkpoint, and wait until the job runs", "digits --wait"),),
        _WAITS,
    ),
    Command(
        takeover,
        (("Switch shard 0 over to its standby", "digits --shard 0"),),
        (*_CLUSTER, ExitCode.TIMED_OUT),
    ),
    Command(
        convert,
        (
            ("Convert a TFJob, and read the notes", "-f tfjob.yaml > job.yaml"),
            ("Fail if a field has no counterpart", "-f tfjob.yaml --strict"),
        ),
        (ExitCode.ERROR, ExitCode.INCOMPLETE),
    ),
    Command(
        doctor,
        (
            ("Find out what is wrong with a job", "digits"),
            ("Check the cluster and the installation", ""),
            ("Check whether nodes have room for large parameter servers", "--cpu 4 --memory 16Gi"),
        ),
        _CLUSTER,
    ),
    Command(
        report,
        (
            ("Write default-digits.tar.gz", "digits"),
            ("List its contents without writing a file", "digits --file - | tar tz"),
        ),
        _CLUSTER,
    ),
    Command(
        version,
        (
            ("Compare plugin, operator and CRD", ""),
            ("Print only the plugin's version", "--client"),
        ),
        _CLUSTER,
    ),
)
