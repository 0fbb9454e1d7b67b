"""Converts the runPolicy of a TFJob."""

from collections.abc import Mapping
from typing import Any

from pstraining.api import names
from pstraining.cli.tfjob.gang import converted_scheduling
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.roles import NEVER
from pstraining.cli.tfjob.source import Fields, shown

FIELDS = (
    *("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"),
    *("schedulingPolicy", "suspend", "managedBy"),
)
_CLEAN = ("All", "Running", "None")
_LONGEST = 2**31 - 1
_RETRIES = 10000
_OPERATORS = ("kubeflow.org/training-operator",)


def converted_run_policy(fields: Fields, roles: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Return our runPolicy.

    Args:
        fields: the TFJob's runPolicy.
        roles: our converted roles.
        notes: receives the notes on the fields.
    """
    found: dict[str, Any] = {}
    restarts = any(role.get("restartPolicy") not in (None, NEVER) for role in roles.values())
    if (suspend := fields.take("suspend", bool)) is not None:
        found["suspend"] = suspend
    for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        number = fields.number(name)
        if number is not None:
            found[name] = number
    _clean_pods(found, fields, notes)
    _deadline(found, fields, notes)
    _retries(found, fields, restarts, notes)
    _managed_by(found, fields, notes)
    if scheduling := converted_scheduling(fields.below("schedulingPolicy"), roles, notes):
        found["schedulingPolicy"] = scheduling
    fields.close()
    return found


def _clean_pods(found: dict[str, Any], fields: Fields, notes: Notes) -> None:
    policy = fields.take("cleanPodPolicy", str)
    if policy and policy not in _CLEAN:
        notes.refused(fields.at("cleanPodPolicy"), f"it must be one of {', '.join(_CLEAN)}, is {policy}.")
    elif policy:
        found["cleanPodPolicy"] = {"onSuccess": policy, "onFailure": policy}
    elif not fields.is_set("cleanPodPolicy"):
        notes.different(
            fields.at("cleanPodPolicy"),
            "it is not set: TFJob's operator keeps all pods, and parameter servers keep running; its releases before "
            "2023 delete running pods. Here running pods are deleted on success; on failure all except the failed "
            "replica, which is kept for a day.",
            "Set spec.runPolicy.cleanPodPolicy: {onSuccess: None, onFailure: None} to keep them.",
        )


def _deadline(found: dict[str, Any], fields: Fields, notes: Notes) -> None:
    path, seconds = fields.at("activeDeadlineSeconds"), found.get("activeDeadlineSeconds")
    if seconds == 0:
        del found["activeDeadlineSeconds"]
        notes.none(path, "with 0 TFJob ends the job at once; it is left out.", "Set the seconds that the job may run.")
    elif seconds is not None and seconds > _LONGEST:
        found["activeDeadlineSeconds"] = _LONGEST
        notes.changed(path, f"the maximum here is {_LONGEST}, 68 years.")


def _retries(found: dict[str, Any], fields: Fields, restarts: bool, notes: Notes) -> None:
    path, limit = fields.at("backoffLimit"), found.get("backoffLimit")
    if not fields.is_set("backoffLimit") and restarts:
        notes.different(
            path,
            "it is not set: TFJob restarts failed replicas forever. Here the job fails with the seventh failure of "
            "one replica.",
            f"Set spec.runPolicy.backoffLimit, up to {_RETRIES}, for more.",
        )
    elif limit is not None and restarts:
        found["backoffLimit"] = min(limit, _RETRIES)
        most = f" The maximum here is {_RETRIES}." if limit > _RETRIES else ""
        notes.different(
            path,
            "TFJob counts the restarts of all pods' containers together, and none under ExitCode. Here it limits "
            f"the failures of each replica, under any restartPolicy.{most}",
        )


def _managed_by(found: dict[str, Any], fields: Fields, notes: Notes) -> None:
    manager = fields.take("managedBy", str)
    if manager in _OPERATORS:
        notes.changed(
            fields.at("managedBy"), f"it names TFJob's own operator; ours, {names.MANAGED_BY}, is the default."
        )
    elif manager == names.MULTIKUEUE:
        found["managedBy"] = manager
        notes.changed(
            fields.at("managedBy"),
            "here it is spec.managedBy. Kueue sends the job to another cluster if its configuration names "
            "PSTrainingJobs in multiKueue.externalFrameworks.",
        )
    elif manager:
        found["managedBy"] = manager
        notes.different(
            fields.at("managedBy"),
            f"the operator leaves the job to {shown(manager)}, too, which may not support PSTrainingJobs.",
            "Remove it unless it does.",
        )
