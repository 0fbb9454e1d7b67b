"""Looking up the job that a command names, and reading its status."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.text import printable
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.kube.events import CONTROLLER

MANY: Final = 10
"""Maximum number of names in a list."""
_WRONG: Final = (
    Condition.FAILED,
    Condition.INVALID_TEMPLATE,
    Condition.NAME_CONFLICT,
    Condition.SUSPENDED,
    Condition.QUEUED,
    Condition.RESCALING,
    Condition.RESTARTING,
)
"""Conditions that keep a job from running, the most important first."""

TYPES: Final = frozenset(
    f"{name}{suffix}".lower()
    for name in (names.KIND, names.PLURAL, names.SHORT_NAME)
    for suffix in ("", f".{names.GROUP}", f".{names.VERSION}.{names.GROUP}")
)
"""kubectl's words for the type PSTrainingJob, in lower case."""
_BRIEF: Final = 10
"""Seconds for which a job stays after its end, and in which a command may not look at it."""
_From = TypeVar("_From")
_To = TypeVar("_To")


def name_of(text: str) -> str:
    """Return the name in NAME or TYPE/NAME, kubectl's ways to name a job.

    Raises:
        ValueError: the type is not that of a PSTrainingJob, or the name is empty.
    """
    kind, slash, name = text.rpartition("/")
    if slash and (kind.lower() not in TYPES or not name):
        raise ValueError(f"{text!r} is not a job: write NAME or {names.SHORT_NAME}/NAME")
    return name


def each(items: Iterable[_From], act: Callable[[_From], _To]) -> list[_To]:
    """Apply a function to each item, even after an error, as kubectl does, and return the results.

    Raises:
        CommandError: some items failed; the message has a line for each error.
    """
    done, errors = attempted(items, act)
    raise_all(errors)
    return done


def attempted(items: Iterable[_From], act: Callable[[_From], _To]) -> tuple[list[_To], list[CommandError]]:
    """Apply a function to each item, even after an error, and return the results and the errors."""
    done: list[_To] = []
    errors: list[CommandError] = []
    for one in items:
        try:
            done.append(act(one))
        except CommandError as error:
            errors.append(error)
    return done, errors


def raise_all(errors: Sequence[CommandError]) -> None:
    """Raise the errors of several items as one; do nothing without any.

    Raises:
        CommandError: there are errors; the message has a line for each.
    """
    if len(errors) > 1:
        codes = {error.code for error in errors}
        code = codes.pop() if len(codes) == 1 else ExitCode.ERROR
        raise CommandError("\nError: ".join(dict.fromkeys(str(error) for error in errors)), code)
    if errors:
        raise errors[0]


def job_named(cluster: ClusterClient, namespace: str, name: str) -> Object:
    """Return the job of a name.

    Raises:
        CommandError: the job does not exist; the message suggests similar names.
    """
    if not name:
        raise CommandError("The job's name is empty.")
    job = cluster.job(namespace, name)
    if job is None:
        missing = f"There is no PSTrainingJob {name} in namespace {namespace}."
        raise CommandError(f"{missing} {_alternatives(cluster, namespace, name)}".rstrip())
    return job


def condition(job: Object, kind: str) -> dict[str, Any]:
    """Return a condition of the job, or an empty dict."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def is_true(job: Object, kind: str) -> bool:
    """Return whether a condition of the job is True."""
    return condition(job, kind).get("status") == "True"


def manager(job: Object) -> tuple[str, str]:
    """Return the manager of a job and the path of the field that names it."""
    spec = job["spec"]
    if spec.get("managedBy"):
        return str(spec["managedBy"]), "spec.managedBy"
    return str((spec.get("runPolicy") or {}).get("managedBy", names.MANAGED_BY)), "spec.runPolicy.managedBy"


def is_sent(job: Object) -> bool:
    """Return whether MultiKueue sends the job to another cluster; its status is then a copy."""
    return manager(job)[0] == names.MULTIKUEUE


def end_of(job: Object) -> Condition | None:
    """Return the condition that ended the job, Succeeded or Failed; None before its end."""
    return next((kind for kind in (Condition.SUCCEEDED, Condition.FAILED) if is_true(job, kind)), None)


def last_state(cluster: ClusterClient, job: Object) -> Object | str:
    """Return a deleted job with its end, by the operator's event about it.

    The operator posts the event before it deletes the job for `runPolicy.ttlSecondsAfterFinished`. Without the event,
    the result is a sentence that such a job may have ended; empty for other jobs.

    Args:
        cluster: the job's cluster.
        job: the job as it was last read.
    """
    messages, why_unknown = {}, "no event reports it."
    try:
        for event in cluster.events(job["metadata"]["namespace"], job["metadata"]["uid"]):
            if event.get("reportingComponent") == CONTROLLER:
                messages[str(event.get("reason"))] = str(event.get("message", ""))
    except CommandError as error:
        why_unknown = str(error)
    end = next((kind for kind in (Condition.SUCCEEDED, Condition.FAILED) if kind in messages), None)
    if end is None:
        seconds = (job["spec"].get("runPolicy") or {}).get("ttlSecondsAfterFinished")
        hint = f"With more than runPolicy.ttlSecondsAfterFinished: {seconds}, commands see the end."
        is_brief = seconds is not None and seconds <= _BRIEF
        return f"Whether it had ended before is not known: {why_unknown} {hint}" if is_brief else ""
    status = job.get("status") or {}
    others = [c for c in status.get("conditions") or () if c["type"] != end]
    ending = {"type": str(end), "status": "True", "message": messages[end]}
    return {**job, "status": {**status, "phase": str(end), "conditions": [*others, ending]}}


def phase(job: Object) -> str:
    """Return the job's phase; Unknown before the operator has processed the job."""
    return str((job.get("status") or {}).get("phase") or "Unknown")


def why(job: Object) -> str:
    """Return one line with the job's most important problem or pending condition; empty without any."""
    if is_true(job, Condition.SUCCEEDED):
        return ""
    shown = next((condition(job, kind) for kind in _WRONG if is_true(job, kind)), None)
    if shown is None and condition(job, Condition.RUNNING).get("status", "True") != "True":
        shown = condition(job, Condition.RUNNING)
    if shown is None and is_true(job, Condition.DEGRADED):
        shown = condition(job, Condition.DEGRADED)
    updating = condition(job, Condition.UPDATING)
    if shown is None and (updating.get("status") == "True" or updating.get("reason") == Reason.UPDATE_REFUSED):
        shown = updating
    return "" if shown is None else one_line(f"{shown['reason']}: {shown.get('message', '')}".removesuffix(": "))


def without(job: Object, what: str) -> str:
    """Return a message that the job has none of its pods here, with the reason.

    Args:
        job: the job.
        what: the missing pods, such as `no pods`.
    """
    name = job["metadata"]["name"]
    if is_sent(job):
        return f"{name} has {what} here: Kueue sends it to another cluster. Run this command there."
    return f"{name} currently has {what}, and its phase is {phase(job)}. {why(job)}".rstrip()


def one_line(text: str) -> str:
    """Return the text in one line, printable."""
    return printable(" ".join(text.split()))


def listed(words: Iterable[str]) -> str:
    """Join words with commas. Beyond MANY words, only the number of further ones is given."""
    found = list(words)
    more = f" and {len(found) - MANY} more" if len(found) > MANY else ""
    return ", ".join(found[:MANY]) + more


def _alternatives(cluster: ClusterClient, namespace: str, name: str) -> str:
    try:
        there = sorted(str(job["metadata"]["name"]) for job in cluster.jobs(namespace))
    except RequestError:
        return ""  # suggestions need the right to list jobs
    if close := get_close_matches(name, there):
        return f"Did you mean {' or '.join(close)}?"
    return f"Jobs in this namespace: {listed(there)}." if there else "The namespace has no jobs."
