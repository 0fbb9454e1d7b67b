"""Durable checkpoints by the spec, stops after an unseen change, and surplus claims."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Delete, Kind
from pstraining.core.policies import missed_change
from pstraining.core.policies.durability import NotDurable, not_durable, why_lost
from pstraining.core.policies.pvc_retention import left_over
from pstraining.core.snapshot import Child
from pstraining.resources import fixed_fields
from tests.support.builders import NOW, job, typed
from tests.support.snapshots import a_child, snapshot_of

FIELD = "spec.checkpoint.volume"
NONE = (
    "is not set: the operator keeps no checkpoint of this job. When its pods end, the parameters are lost unless the "
    "program saves them itself. Set spec.checkpoint to keep them on a volume."
)
NODE = "is a hostPath: a chief that is started on another node does not find its checkpoints."
EMPTY = "is an emptyDir: checkpoints are deleted with the chief's pod."
NO_SOURCE = "has no source, so it is an emptyDir: checkpoints are deleted with the chief's pod."
EPHEMERAL = "is an ephemeral volume: its claim and the checkpoints are deleted with the chief's pod."
LOST = "spec.checkpoint.volume does not outlive its pod"
DURABLE: list[tuple[dict[str, Any] | None, str | None, str]] = [
    (None, NONE, "spec.checkpoint is not set"),
    ({"volume": {"emptyDir": {}}}, EMPTY, LOST),
    ({"volume": {"ephemeral": {}}}, EPHEMERAL, LOST),
    ({"volume": {}}, NO_SOURCE, LOST),
    ({"volume": {"name": "checkpoints"}}, NO_SOURCE, LOST),
    ({"volume": {"hostPath": {"path": "/"}}}, NODE, ""),
    ({"volume": {"nfs": {"server": "s", "path": "/"}}}, None, ""),
    ({"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}}, None, ""),
]


@pytest.mark.parametrize(("checkpoint", "message", "lost"), DURABLE)
def test_a_volume_deleted_with_its_pod_keeps_no_checkpoint(
    checkpoint: dict[str, Any] | None, message: str | None, lost: str
) -> None:
    expected = None if message is None else NotDurable(Reason.CHECKPOINT_VOLUME_NOT_DURABLE, FIELD, message)
    if checkpoint is None:
        expected = NotDurable(Reason.NO_CHECKPOINT_VOLUME, "spec.checkpoint", NONE)
    found = typed(job(spec={} if checkpoint is None else {"checkpoint": checkpoint})).spec.checkpoint
    assert (not_durable(found), why_lost(found)) == (expected, lost)


OWN, OTHER = fixed_fields.digest(typed(job())), f"{fixed_fields.FORMAT}other"


def workload(kind: Kind, carried: str | None) -> Child:
    annotations = {} if carried is None else {names.ANNOTATION_FIXED: carried}
    return a_child(kind, f"{kind}-{carried}", annotations=annotations)


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        ((), False),
        ((workload(Kind.DEPLOYMENT, OWN), workload(Kind.JOB, None), workload(Kind.STATEFUL_SET, "0-other")), False),
        ((workload(Kind.DEPLOYMENT, OWN), workload(Kind.STATEFUL_SET, OTHER)), True),
        ((workload(Kind.SERVICE, OTHER),), False),
    ],
)
def test_pods_with_outdated_values_are_recreated(seen: tuple[Child, ...], due: bool) -> None:
    assert missed_change.is_due(typed(job()), snapshot_of(job(), *seen)) is due


def condition(kind: Condition, status: str, reason: Reason) -> StatusCondition:
    return StatusCondition(type=kind, status=status, reason=reason, message="", last_transition_time=NOW)


CHANGED = condition(Condition.RESTARTING, "True", Reason.SPEC_CHANGED)


@pytest.mark.parametrize(
    ("condition", "has_begun"),
    [
        (CHANGED, True),
        (condition(Condition.RESTARTING, "True", Reason.PS_LOST), False),
        (condition(Condition.RESTARTING, "False", Reason.SPEC_CHANGED), False),
        (condition(Condition.RUNNING, "True", Reason.SPEC_CHANGED), False),
    ],
)
def test_a_stop_for_changed_values_is_reported_by_its_condition(condition: StatusCondition, has_begun: bool) -> None:
    found = missed_change.began(PSTrainingJobStatus(conditions=[condition]))
    assert found == (condition if has_begun else None)
    assert missed_change.began(PSTrainingJobStatus(conditions=[condition, CHANGED])) == CHANGED
    assert missed_change.began(PSTrainingJobStatus()) is None


SPEC = {"accessModes": ["ReadWriteOnce"]}
SERVERS = a_child(Kind.STATEFUL_SET, "digits-ps")


def left(*seen: Child, when: str = "Delete") -> list[Delete]:
    templates = [{"metadata": {"name": "data"}, "spec": SPEC}]
    policy = {"persistentVolumeClaimRetentionPolicy": {"whenScaled": when}}
    manifest = job(ps=1, spec={"ps": {"volumeClaimTemplates": templates, **policy}})
    return list(left_over(typed(manifest), snapshot_of(manifest, *seen), typed(manifest).spec.ps.replicas))


def test_the_claims_of_removed_servers_are_deleted_if_the_policy_is_delete() -> None:
    kept, second, third = (a_child(Kind.CLAIM, f"data-digits-ps-{i}", uid=f"{i}") for i in range(3))
    others = a_child(Kind.CLAIM, "digits-checkpoint"), a_child(Kind.SERVICE, "data-digits-ps-3")
    going = a_child(Kind.CLAIM, "data-digits-ps-4", deleting=True)
    gone = [Delete(Kind.CLAIM, each.name, each.uid, Reason.NOT_DESIRED) for each in (second, third)]
    seen = SERVERS, kept, second, third, *others, going
    assert left(*seen) == gone
    assert left(*seen, when="Retain") == []
    assert left(*seen[1:]) == [], "the job does not run"
