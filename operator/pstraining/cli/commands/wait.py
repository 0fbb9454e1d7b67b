"""`wait JOB...`: wait until jobs have ended, run, or have a condition.

`kubectl wait --for=condition=Succeeded` does not return when a job fails. This command ends with the job, and its exit
status distinguishes success from failure.
"""

import math
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Final

import typer

from pstraining.api.conditions import ALWAYS_PRESENT, Condition
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import condition, each, end_of, job_named, raise_all
from pstraining.cli.options import Context, Jobs, Namespace, OptionalTimeout
from pstraining.cli.waiting import Patience, continues, ended, follow, follow_each, refuse_invalid, runs, unchanged

END: Final = "end"
RUNNING: Final = "running"
GOALS: Final = (END, RUNNING, *(f"condition={kind}" for kind in Condition))
"""Values of --for. A condition may be followed by =False or =Unknown."""
STATUSES: Final = ("True", "False", "Unknown")
_NEED_PODS: Final = (Condition.CREATED, Condition.RUNNING, Condition.SUCCEEDED)
"""Conditions that do not become true while the job is invalid. A job that trains may still run and succeed."""
_ABSENT: Final = dict.fromkeys(ALWAYS_PRESENT, "Unknown")
"""Default status of a missing condition. The default of all others is False: they appear once they become true."""


def wait(
    jobs: Jobs,
    goal: Annotated[
        str,
        typer.Option(
            "--for", help="Goal of the wait: end, running, or condition=NAME[=STATUS] with one of the job's conditions."
        ),
    ] = END,
    timeout: OptionalTimeout = math.inf,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Wait until jobs have ended. The exit status reports whether they have succeeded.

    With --for running, the command waits until a job runs; with --for condition=NAME, until the condition is true. A
    wait also ends when the job has ended or was deleted, because its state is then final. Changes of a job's state are
    printed. Requests to an API server that does not respond are repeated. --timeout applies to each job; by default,
    there is no limit.
    """
    reached = goal_of(goal)
    cluster = KubeconfigClient(context)
    found = each(jobs, partial(job_named, cluster, namespace or cluster.namespace))
    raise_all(follow_each(cluster, map(unchanged, found), partial(_awaited, reached), Patience(timeout)))


def _awaited(reached: Callable[[Object], str], cluster: ClusterClient, job: Object, patience: Patience) -> str:
    return follow(cluster, job, reached, patience)


def goal_of(text: str) -> Callable[[Object], str]:
    """Parse a goal into a function that returns a message once a job has reached it, and "" before.

    Args:
        text: the value of --for.

    Raises:
        typer.BadParameter: the text is not a goal.
    """
    if text in (END, RUNNING):
        return ended if text == END else runs
    word, _, rest = text.partition("=")
    wanted, _, status = rest.partition("=")
    # As in kubectl, the case is ignored.
    kind = next((k for k in Condition if k.lower() == wanted.lower()), None)
    held = next((s for s in STATUSES if s.lower() == (status or "True").lower()), None)
    if word != "condition" or kind is None or held is None:
        close = get_close_matches(text, GOALS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it takes end, running, or one of {', '.join(GOALS[2:])}."
        raise typer.BadParameter(f"--for {text}: {hint}")
    return lambda job: _holds(job, kind, held)


def _holds(job: Object, kind: Condition, status: str) -> str:
    """Return a message once the condition has the status, and "" before.

    Raises:
        CommandError: the job ended without reaching the status, or its template is invalid.
    """
    name, end = job["metadata"]["name"], end_of(job)
    if condition(job, kind).get("status", _ABSENT.get(kind, "False")) == status:
        return f"{name}: condition {kind} is {status}."
    if end is not None:
        code = ExitCode.JOB_FAILED if end is Condition.FAILED else ExitCode.ERROR
        raise CommandError(f"{name} has ended ({end}), and its condition {kind} is not {status}.", code)
    if kind in _NEED_PODS and status == "True" and (kind is Condition.CREATED or not continues(job)):
        refuse_invalid(job)
    return ""
