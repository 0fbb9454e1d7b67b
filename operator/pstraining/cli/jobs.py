"""The job that a command is about: found, or missed in words that help; and what its status says."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.text import printable
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode

MANY: Final = 10
"""Names that are listed at most."""
_WRONG: Final = (
    Condition.FAILED,
    Condition.INVALID_TEMPLATE,
    Condition.NAME_CONFLICT,
    Condition.SUSPENDED,
    Condition.QUEUED,
    Condition.RESCALING,
    Condition.RESTARTING,
)
"""What keeps a job from running while it holds, the first first."""

_TYPES: Final = frozenset(
    f"{name}{suffix}".lower()
    for name in (names.KIND, names.PLURAL, names.SHORT_NAME)
    for suffix in ("", f".{names.GROUP}", f".{names.VERSION}.{names.GROUP}")
)
_From = TypeVar("_From")
_To = TypeVar("_To")


def name_of(text: str) -> str:
    """The name of a job that is written NAME or TYPE/NAME, as kubectl takes it.

    Raises:
        ValueError: the type is another one, or there is no name.
    """
    kind, slash, name = text.rpartition("/")
    if slash and (kind.lower() not in _TYPES or not name):
        raise ValueError(f"{text!r} is not a job: write NAME or {names.SHORT_NAME}/NAME")
    return name


def each(found: Iterable[_From], act: Callable[[_From], _To]) -> list[_To]:
    """Act on all of them, also after an error, as kubectl does; what came of it.

    Raises:
        CommandError: what was wrong; of several errors each in a line.
    """
    done: list[_To] = []
    errors: list[CommandError] = []
    for one in found:
        try:
            done.append(act(one))
        except CommandError as error:
            errors.append(error)
    if len(errors) > 1:
        codes = {error.code for error in errors}
        code = codes.pop() if len(codes) == 1 else ExitCode.ERROR
        raise CommandError("\nError: ".join(dict.fromkeys(str(error) for error in errors)), code)
    if errors:
        raise errors[0]
    return done


def job_named(cluster: ClusterClient, namespace: str, name: str) -> Object:
    """The job.

    Raises:
        CommandError: there is none; with the names that may have been meant.
    """
    if not name:
        raise CommandError("The job's name is empty.")
    job = cluster.job(namespace, name)
    if job is None:
        said = f"There is no PSTrainingJob {name} in namespace {namespace}."
        raise CommandError(f"{said} {_instead(cluster, namespace, name)}".rstrip())
    return job


def condition(job: Object, kind: str) -> dict[str, Any]:
    """A condition of the job, or an empty one."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def is_true(job: Object, kind: str) -> bool:
    """Whether a condition of the job holds."""
    return condition(job, kind).get("status") == "True"


def manager(job: Object) -> tuple[str, str]:
    """The manager of a job, and the field that names it."""
    spec = job["spec"]
    if spec.get("managedBy"):
        return str(spec["managedBy"]), "spec.managedBy"
    return str((spec.get("runPolicy") or {}).get("managedBy", names.MANAGED_BY)), "spec.runPolicy.managedBy"


def end_of(job: Object) -> Condition | None:
    """How the job has ended, if it has."""
    return next((kind for kind in (Condition.SUCCEEDED, Condition.FAILED) if is_true(job, kind)), None)


def phase(job: Object) -> str:
    """The job's phase; before the operator has processed it, Unknown."""
    return str((job.get("status") or {}).get("phase") or "Unknown")


def why(job: Object) -> str:
    """What is wrong with the job, or what it waits for, in one line; empty if all is well."""
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


def one_line(text: str) -> str:
    """Return the text in one line, printable."""
    return printable(" ".join(text.split()))


def listed(words: Iterable[str]) -> str:
    """The words with commas; of many only the first, and how many more there are."""
    found = list(words)
    more = f" and {len(found) - MANY} more" if len(found) > MANY else ""
    return ", ".join(found[:MANY]) + more


def _instead(cluster: ClusterClient, namespace: str, name: str) -> str:
    try:
        there = sorted(str(job["metadata"]["name"]) for job in cluster.jobs(namespace))
    except RequestError:
        return ""  # the answer is the missing job; a user without the right to list jobs gets no more
    if close := get_close_matches(name, there):
        return f"Did you mean {' or '.join(close)}?"
    return f"Jobs in this namespace: {listed(there)}." if there else "The namespace has no jobs."
