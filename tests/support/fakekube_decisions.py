"""Decisions that stand in for `core` in tests of the controller: a job wants a ConfigMap and a Deployment of no
replicas.

Run as a program it is the operator with these decisions; its log shows what every pass observed.
"""

import asyncio
import logging
import os
import sys
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller import logs
from pstraining.controller.main import run
from pstraining.controller.reconciler import Decisions
from pstraining.controller.settings import Settings
from pstraining.core.actions import Create, Event, Kind, Outcomes, Plan, Verdict
from pstraining.core.facts import Facts, Unreadable, gather
from pstraining.core.policies.diagnosis import unexplained
from pstraining.core.reduced_status import reduced_status
from pstraining.core.snapshot import Snapshot
from pstraining.resources.launcher import LauncherFiles

LAUNCHER = LauncherFiles("v1", {"launch.py": "# the launcher"})
logger = logging.getLogger("decisions")


def wanted(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the children that a job wants."""
    labels = {names.LABEL_JOB: snapshot.name, names.LABEL_JOB_UID: snapshot.uid}
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": snapshot.name,
        "uid": snapshot.uid,
        "controller": True,
    }

    def metadata(name: str) -> dict[str, Any]:
        found = {"namespace": snapshot.namespace, "labels": labels, "ownerReferences": [owner]}
        return {"name": name, **found}

    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "tensorflow", "image": "img:1"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(f"{snapshot.name}-worker-0"),
            "spec": spec,
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(snapshot.name), "data": {"a": "1"}},
    ]


def plan(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
    """Plan the creation of missing objects."""
    snapshot = facts.snapshot
    logger.info("saw %s with %d children", snapshot.name, len(snapshot.children))
    missing = [
        body for body in wanted(snapshot) if snapshot.child(Kind(body["kind"]), body["metadata"]["name"]) is None
    ]
    return Plan(tuple(Create(Kind(b["kind"]), b["metadata"]["name"], b, Reason.DESIRED) for b in missing))


def next_status(facts: Facts | Unreadable, outcomes: Outcomes) -> dict[str, Any]:
    """Return the phase Running once no object is missing."""
    snapshot = facts.snapshot
    failed = any(o.verdict is not Verdict.DONE for o in outcomes.outcomes)
    complete = len(snapshot.children) == 2 and not failed
    return {"phase": "Running" if complete else "Pending", "observedGeneration": snapshot.generation}


def events(snapshot: Snapshot, status: dict[str, Any]) -> tuple[Event, ...]:
    """Return an event for each change of the phase."""
    if status.get("phase") == snapshot.status.get("phase"):
        return ()
    return (Event("Normal", str(status["phase"]), f"The job is {status['phase']}."),)


DECISIONS = Decisions(gather, plan, next_status, events, reduced_status, unexplained)

if __name__ == "__main__":
    settings = Settings.from_env(os.environ)
    logs.configure(settings.log_level, settings.log_format)
    sys.exit(asyncio.run(run(settings, DECISIONS, LAUNCHER)))
