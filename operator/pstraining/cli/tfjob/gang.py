"""Converts a TFJob's schedulingPolicy, which schedules its pods as a gang.

The gang scheduler is an option of TFJob's operator, but a field of a PSTrainingJob. It is derived from the TFJob's
fields and from schedulerName in the templates.
"""

from collections.abc import Mapping
from typing import Any

from pstraining.api import names
from pstraining.api.run_policy import Gang
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import Fields
from pstraining.resources.gang import PROVIDERS

FIELDS = ("minAvailable", "queue", "minResources", "scheduleTimeoutSeconds")


def converted_scheduling(fields: Fields, roles: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Return our schedulingPolicy.

    Args:
        fields: the TFJob's schedulingPolicy.
        roles: our converted roles.
        notes: receives the notes on the fields.
    """
    asked = [name for name in FIELDS if fields.has(name)]
    least = fields.take("minAvailable", int)
    queue = fields.take("queue", str)
    resources = fields.take("minResources", dict)
    seconds = fields.take("scheduleTimeoutSeconds", int)
    found: dict[str, Any] = {}
    if priority := fields.take("priorityClass", str):
        found["priorityClass"] = priority
        _priority(fields.at("priorityClass"), roles, notes)
    fields.close()
    if not asked:
        return found
    named = _schedulers(roles)
    has_plugins, has_volcano = (PROVIDERS[gang].scheduler in named for gang in (Gang.SCHEDULER_PLUGINS, Gang.VOLCANO))
    volcano = has_volcano or (bool(queue) and not has_plugins)
    gang = Gang.VOLCANO if volcano else Gang.SCHEDULER_PLUGINS
    found["gang"] = str(gang)
    if not (has_volcano or has_plugins) and (named or (not queue and seconds is None)):
        _guessed(fields.at(asked[0]), gang, named, notes)
    if queue and volcano:
        found["queue"] = queue
    elif queue:
        notes.changed(
            fields.at("queue"),
            "the templates name scheduler-plugins, which has no queues: TFJob's operator ignores it. It is left out.",
        )
    if least is not None:
        found |= _least(least, fields.at("minAvailable"), roles, notes)
    if resources is not None:
        notes.different(
            fields.at("minResources"),
            "the operator gives the scheduler the sum of the pods' requests; the sum here is left out.",
        )
    if seconds is not None and volcano:
        notes.none(
            fields.at("scheduleTimeoutSeconds"),
            "Volcano's pod groups have no timeout. It is left out.",
            "Remove it, or set gang to SchedulerPlugins and timeoutSeconds.",
        )
    elif seconds is not None and seconds < 1:
        notes.changed(
            fields.at("scheduleTimeoutSeconds"), "it is not a valid waiting time; the scheduler's own setting applies."
        )
    elif seconds is not None:
        found["timeoutSeconds"] = seconds
    return found


def _priority(path: str, roles: Mapping[str, Any], notes: Notes) -> None:
    """Note a priority that pods have here, unless all of them have another one."""
    specs = [role["template"]["spec"] for role in roles.values() if "template" in role]
    if not all(spec.get("priorityClassName") for spec in specs):
        notes.different(
            path,
            "TFJob gives this priority to the PodGroup alone, if its operator places gangs. Here pods without a "
            "priorityClassName also have it, and may preempt other pods.",
            "Remove it if they must not, or set priorityClassName in the templates.",
        )


def _guessed(path: str, gang: Gang, named: set[str], notes: Notes) -> None:
    """Note that the job does not name the scheduler of its gang."""
    if named:
        message = (
            f"the templates name {', '.join(sorted(named))}, which may place no gangs. Their pods keep it, and the "
            f"gang is taken to be one of {PROVIDERS[gang].product}."
        )
        todo = "Remove schedulerName, unless it names a scheduler for these gangs."
    else:
        message = (
            "TFJob's operator has an option for the scheduler that places gangs; the job does not name one. It is "
            "taken to be scheduler-plugins."
        )
        todo = "Set spec.runPolicy.schedulingPolicy.gang to Volcano if that is what runs in the cluster."
    notes.different(path, message, todo)


def _least(asked: int, path: str, roles: Mapping[str, Any], notes: Notes) -> dict[str, int]:
    """Return minAvailable, if it differs from the gang's default."""
    always = roles[names.PS]["replicas"] + int(roles[names.CHIEF].get("enabled", True))
    worker = roles[names.WORKER]
    needed, most = always + worker.get("minReplicas", worker["replicas"]), always + worker["replicas"]
    if asked == needed:
        notes.changed(path, "the gang is as large without it; it is left out.")
        return {}
    if needed < asked <= most:
        return {"minAvailable": asked}
    if asked > most:
        extra = " The evaluator is not a member." if roles.get(names.EVALUATOR, {}).get("enabled") else ""
        notes.different(
            path,
            f"here a gang has parameter servers, the chief and workers, {most} at most.{extra} It is {most} now.",
        )
        return {"minAvailable": most}
    notes.different(
        path,
        f"TFJob starts with any {asked} of the pods. Here all parameter servers, the chief and the workers that the "
        f"job cannot do without start together, {needed} at least; it is left out.",
        "Set spec.worker.minReplicas to start, and to continue, with fewer workers.",
    )
    return {}


def _schedulers(roles: Mapping[str, Any]) -> set[str]:
    """Return the names of schedulers in the templates."""
    specs = ((role.get("template") or {}).get("spec") or {} for role in roles.values() if isinstance(role, dict))
    return {str(spec["schedulerName"]) for spec in specs if spec.get("schedulerName")}
