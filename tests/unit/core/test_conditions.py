"""Problems around a job in a simulated world, one scenario per test."""

import copy
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Action, Create, Resize, Verdict
from pstraining.core.observe import observe
from pstraining.resources.installation import Installation, ProgressEndpoint
from tests.support.builders import TEMPLATE, job
from tests.support.simulation import World, phase, running


def test_an_occupied_name_stops_the_job_and_is_reported() -> None:
    world = World(job(), foreign={("StatefulSet", "digits-ps")})
    world.reconcile()
    conflict = world.condition("NameConflict")
    assert conflict["status"] == "True"
    assert "StatefulSet digits-ps" in conflict["message"]
    assert set(world.children) == {("Deployment", "digits-worker-0")}, "nothing after the conflict"
    world.foreign.clear()
    world.settle()
    assert world.condition("NameConflict")["status"] == "False"
    assert phase(world) == "Running"


def test_a_conflict_ends_when_the_job_no_longer_needs_the_name() -> None:
    world = running(network={"isolation": "None"})
    before = world.condition("Created")
    world.foreign = {("NetworkPolicy", "digits")}
    world.edit({"network": {"isolation": "Training"}})
    world.reconcile()
    assert (world.condition("NameConflict")["status"], world.condition("Created")["status"]) == ("True", "False")
    world.edit({"network": {"isolation": "None"}})
    world.settle()
    assert world.condition("NameConflict")["status"] == "False"
    assert {**world.condition("Created"), "observedGeneration": 1, "lastTransitionTime": ""} == {
        **before,
        "lastTransitionTime": "",
    }


REPORTS = Installation(progress=ProgressEndpoint("https://operator", "authority"))


def test_a_job_without_steps_is_stalled_until_the_next_step() -> None:
    world = World(job(), installation=REPORTS)
    world.settle()
    with pytest.raises(StopIteration):
        world.condition("Stalled")
    why = "No step since step 5 for more than 10 times the usual 2 s; 1 of 2 workers is missing: worker-1."
    for stall, status, reason in ((why, "True", "NoStep"), (None, "True", "NoStep"), ("", "False", "Stepping")):
        world.stall = stall
        world.reconcile()
        condition = world.condition("Stalled")
        assert (condition["status"], condition["reason"]) == (status, reason)
        assert condition["message"] == (why if status == "True" else "")
    assert phase(world) == "Running"
    world.stall = why
    world.reconcile()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert (world.condition("Stalled")["status"], world.condition("Stalled")["reason"]) == ("False", "Suspended")


def test_a_job_is_not_stalled_once_its_operator_accepts_no_reports() -> None:
    world = World(job(), installation=REPORTS)
    world.settle()
    world.stall = "No step since step 5."
    world.reconcile()
    world.stall, world.installation = None, Installation()  # an operator that starts with progress.enabled=false
    world.reconcile()
    condition = world.condition("Stalled")
    assert (condition["status"], condition["reason"], condition["message"]) == ("False", "NoReports", "")


def test_a_rejected_template_waits_for_a_change_of_the_spec() -> None:
    world = World(job(), refuse=lambda c: "spec.containers[0].imge: unknown field" if c.kind == "Deployment" else "")
    world.reconcile()
    assert phase(world) == "Invalid"
    assert "imge" in world.condition("InvalidTemplate")["message"]
    assert not world.children
    assert world.plan().actions == ()
    world.refuse = None
    world.edit({"worker": {"template": {"spec": {"priorityClassName": "x"}}}})
    world.settle()
    assert phase(world) == "Running"
    assert world.condition("InvalidTemplate")["status"] == "False"


def test_no_job_runs_while_a_required_object_is_rejected() -> None:
    quota = 'services "digits-ps-0" is forbidden: exceeded quota: few'
    world = World(job(), refuse=lambda c: quota if c.name == "digits-ps-0" else "", verdict=Verdict.REFUSED)
    world.reconcile()
    world.controllers()
    for name, pod in world.pods.items():  # the server's name resolves only after the creation of its Service
        (container,) = pod["status"]["containerStatuses"]
        container["ready"] = "-ps-" in name
    world.reconcile()
    for kind in ("Created", "Running"):
        condition = world.condition(kind)
        assert (condition["status"], condition["reason"]) == ("False", "WriteRefused")
        assert quota in condition["message"]


def test_a_rejected_correction_or_deletion_leaves_the_job_running() -> None:
    world = running()
    message = "minAvailable and maxUnavailable cannot be both set"
    world.refuse, world.verdict = lambda action: message, Verdict.REFUSED
    world.children["Service", "digits-hs"]["spec"]["selector"] = {"x": "y"}
    world.reconcile()
    assert phase(world) == "Running"
    assert world.condition("Created")["message"] == f"Service digits-hs was refused: {message}"
    world.end("chief")
    world.reconcile()
    world.reconcile()
    assert phase(world) == "Succeeded"
    assert world.condition("Created")["message"].startswith("The deletion of StatefulSet digits-ps was refused: min")
    world.refuse = None
    world.settle()
    assert not world.names_of("StatefulSet")


def test_a_rejection_is_over_when_another_client_has_made_the_correction() -> None:
    world = running()
    world.refuse, world.verdict = lambda action: "no", Verdict.REFUSED
    selector = world.children["Service", "digits-hs"]["spec"]["selector"]
    world.children["Service", "digits-hs"]["spec"]["selector"] = {"x": "y"}
    world.reconcile()
    assert world.condition("Created")["reason"] == "WriteRefused"
    world.children["Service", "digits-hs"]["spec"]["selector"] = selector
    world.reconcile()
    assert (world.condition("Created")["status"], world.condition("Created")["reason"]) == ("True", "ChildrenCreated")


def test_a_template_rejected_during_creation_is_replaced_by_the_new_one() -> None:
    world = World(job(), refuse=lambda c: "bad" if c.kind == "StatefulSet" else "")
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0"]
    world.refuse = None
    world.edit({"worker": {"template": {"metadata": {"annotations": {"a": "new"}}}}})
    world.settle()
    template = world.children["Deployment", "digits-worker-0"]["spec"]["template"]
    assert template["metadata"]["annotations"]["a"] == "new"
    assert phase(world) == "Running"


@pytest.mark.parametrize("workers", [2, 3], ids=["withdrawn", "corrected"])
def test_a_job_that_trains_keeps_its_pods_when_a_wrong_change_is_corrected(workers: int) -> None:
    """Its hot standbys hold updates that no checkpoint has."""
    world = running(
        ps={"replicas": 1, "standby": {"mode": "Hot"}}, training={"mode": "Sync"}, worker={"minReplicas": 1}
    )
    pods = {found["metadata"]["uid"] for found in world.pods.values()}
    world.refuse = lambda action: "requests: must be less than limits" if isinstance(action, Create | Resize) else ""
    world.edit({"worker": {"replicas": 3, "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}}})
    world.settle()
    assert phase(world) == "Invalid"
    world.refuse = None
    world.edit({"worker": {"replicas": workers, "resources": None}})
    world.settle()
    assert phase(world) == "Running"
    assert world.condition("InvalidTemplate")["reason"] == "TemplateAccepted"
    assert pods <= {found["metadata"]["uid"] for found in world.pods.values()}
    assert len(world.names_of("Deployment")) == workers


def test_a_ps_in_back_off_is_replaced_after_it_was_counted() -> None:
    world = running()
    name = next(n for n, p in world.pods.items() if p["metadata"]["labels"]["pstraining.dev/role"] == "ps")
    world.end("ps", 0, code=1)
    world.pods[name]["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert world.plan().actions == (), "counted first"
    world.reconcile()
    assert [(a.kind, a.name) for a in world.plan().actions] == [("Pod", name)]


def test_a_lost_ps_is_reported_as_restarting() -> None:
    world = running()
    for found in world.pods.values():
        if found["metadata"]["labels"]["pstraining.dev/role"] == "ps":
            found["status"]["conditions"][0]["status"] = "False"
    world.reconcile()
    assert phase(world) == "Restarting"
    assert world.condition("Restarting")["reason"] == "PSLost"
    assert [e.type for e in world.reported if e.reason == "Restarting"] == ["Warning"]


def test_a_deleted_child_is_recreated_and_a_scaled_one_corrected() -> None:
    world = running()
    del world.children["Service", "digits-ps-0"]
    world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] = 0
    world.children["Service", "digits-hs"]["spec"]["selector"] = {"x": "y"}
    made = world.reconcile()
    assert {(type(a).__name__, a.name) for a in made.actions} == {
        ("Create", "digits-ps-0"),
        ("Apply", "digits-ps"),
        ("Apply", "digits-hs"),
    }
    assert world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] == 1


def test_a_deleting_job_is_left_to_the_garbage_collector() -> None:
    world = running()
    assert world.job is not None
    world.job["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"
    world.children.clear()
    assert world.plan().actions == ()


def test_an_unreadable_job_is_reported_and_left_alone() -> None:
    manifest = job()
    manifest["spec"]["ps"]["replicas"] = "many"
    world = World(manifest)
    world.reconcile()
    assert phase(world) == "Invalid"
    assert "spec.ps.replicas" in world.condition("InvalidTemplate")["message"]
    assert not world.writes


@pytest.mark.parametrize("lost", ["chief", "primary"])
def test_a_running_job_whose_change_is_refused_still_replaces_lost_pods(lost: str) -> None:
    """The refused object is a worker of a scale-up; the job trains on without it."""
    world = running(ps={"replicas": 1, "standby": {"mode": "Warm"}}, worker={"replicas": 1})
    world.refuse = lambda create: "imge: unknown field" if create.kind == "Deployment" else ""
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    assert phase(world) == "Invalid"
    if lost == "chief":
        world.end("chief", code=1)
        world.settle()
        assert world.names_of("Job") == ["digits-chief-2"]
    else:
        before = world.children["Service", "digits-ps-0"]["spec"]["selector"]
        world.delete_pod("ps")
        world.settle()
        assert world.children["Service", "digits-ps-0"]["spec"]["selector"] != before
    assert world.names_of("Deployment") == ["digits-worker-0"]
    refused = world.condition("InvalidTemplate")
    assert (refused["status"], "imge" in refused["message"]) == ("True", True)
    assert not world.plan().actions
    world.refuse = None
    world.edit({"worker": {"template": {"metadata": {"labels": {"corrected": "yes"}}}}})
    world.settle()
    assert phase(world) == "Running"
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]


def test_a_job_that_an_earlier_operator_could_not_read_continues() -> None:
    """As after a rollback of the operator that is taken back: the spec, and its generation, are the same."""
    world = running()
    assert world.job is not None
    readable = world.job["spec"]
    world.job["spec"] = {**readable, "training": {"mode": "ModeOfALaterVersion"}}
    world.reconcile()
    assert phase(world) == "Invalid"
    world.job["spec"] = readable
    world.end("chief", code=1)
    world.settle()
    assert phase(world) == "Running"
    assert world.condition("InvalidTemplate")["reason"] == "TemplateAccepted"
    assert world.names_of("Job") == ["digits-chief-2"]


def test_each_rejected_name_is_tried_once_per_pass() -> None:
    seen: list[str] = []

    def refuse(create: Action) -> str:
        seen.append(create.name)
        return "no"

    World(job(), refuse=refuse).reconcile()
    assert seen == ["digits-worker-0"]


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        (None, "spec.checkpoint is not set"),
        ({"volume": {"emptyDir": {}}}, "emptyDir"),
        ({"volume": {}}, "emptyDir"),
        ({"volume": {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}}, "its claim and the checkpoints are deleted"),
        ({"volume": {"hostPath": {"path": "/data"}}}, "another node"),
        ({"volume": {"persistentVolumeClaim": {"claimName": "c"}}}, ""),
    ],
)
def test_volatile_checkpoints_are_reported(checkpoint: dict[str, Any] | None, words: str) -> None:
    world = World(job(spec={"checkpoint": checkpoint} if checkpoint else {}))
    world.reconcile()
    assert world.job is not None
    reported = [c for c in world.job["status"]["conditions"] if c["type"] == "CheckpointNotDurable"]
    assert [c["status"] for c in reported] == (["True"] if words else [])
    assert all(words in c["message"] for c in reported)


def test_a_job_that_saves_no_model_is_reported_once() -> None:
    """A job that saves no model is reported once. The status decides, so neither a pass nor another operator repeats
    the event.
    """
    world = running()
    reported = [e for e in world.reported if e.reason == "CheckpointNotDurable"]
    assert [(e.type, e.message) for e in reported] == [("Warning", world.condition("CheckpointNotDurable")["message"])]
    assert "unless the program saves them itself. Set spec.checkpoint" in reported[0].message
    again = World(world.job, now=world.now, children=world.children, pods=world.pods)
    again.edit({"runPolicy": {"backoffLimit": 3}})
    again.settle()
    again.end("chief")
    again.settle()
    assert [e.reason for e in again.reported] == ["Succeeded"]
    assert again.condition("CheckpointNotDurable")["status"] == "True", "also once nothing can be done about it"


def test_an_old_attempt_is_kept_until_its_end_is_recorded() -> None:
    world = running()
    world.end("chief", code=1)
    world.reconcile(stop_after=1)  # the next term exists, and the operator crashes before it writes the status
    world.controllers()
    assert not any(type(a).__name__ == "Delete" for a in world.plan().actions)
    world.reconcile()
    assert [a.name for a in world.plan().actions] == ["digits-chief-1"], "recorded: now it may be deleted"
    assert world.job is not None
    assert world.job["status"]["replicaRecords"][0]["failures"] == 1


def test_foreign_lookalikes_are_ignored() -> None:
    world = running()
    theirs = copy.deepcopy(world.children["Service", "digits-hs"])
    theirs["metadata"] |= {"name": "theirs", "uid": "theirs", "ownerReferences": []}
    world.children["Service", "theirs"] = theirs
    stranger = copy.deepcopy(next(iter(world.pods.values())))
    stranger["metadata"] |= {"name": "theirs", "uid": "theirs"}
    stranger["metadata"]["labels"]["pstraining.dev/job-uid"] = "another job"
    seen = observe(world.job or {}, world.children.values(), [*world.pods.values(), stranger])
    assert all(c.uid != "theirs" for c in seen.children.values())
    assert all(p.uid != "theirs" for p in seen.pods)
    assert world.plan().actions == ()


def test_corrupted_labels_do_no_harm() -> None:
    world = running()
    for child in world.children.values():
        child["metadata"]["labels"] |= {"pstraining.dev/term": "x", "pstraining.dev/index": "y"}
    world.plan()


def test_an_attempt_that_could_not_be_created_uses_no_term() -> None:
    """An attempt whose creation fails uses no term. In a terminating namespace every new term would cause a status
    write, and that another pass.
    """
    world = running()
    world.foreign.add(("Job", "digits-chief-2"))
    world.end("chief", code=1)
    for _ in range(3):
        world.reconcile()
    writes = world.status_writes
    for _ in range(5):
        world.reconcile()
    assert world.status_writes == writes
    assert world.job is not None
    assert world.job["status"]["term"] == 1


def test_gpu_node_settings_in_other_roles_are_reported_once_until_set() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"] |= {"nodeSelector": {"pool": "gpu"}}
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    world = World(job(spec={"worker": {"template": template}, "runPolicy": {"suspend": True}}))
    world.settle()
    reported = [e for e in world.reported if e.reason == "GPUSettingsInherited"]
    assert [(e.type, e.message) for e in reported] == [("Warning", world.condition("GPUSettingsInherited")["message"])]
    assert "spec.ps.template is not set" in reported[0].message
    own = {"template": TEMPLATE}
    world.edit({"ps": own, "chief": own})
    world.settle()
    assert world.condition("GPUSettingsInherited")["status"] == "False"
    assert len([e for e in world.reported if e.reason == "GPUSettingsInherited"]) == 1


@pytest.mark.parametrize(("role", "reason"), [("ps", "PSLost"), ("chief", "ChiefReplaced"), ("worker", "WorkersLost")])
def test_a_restarting_job_names_the_part_that_restarts(role: str, reason: str) -> None:
    world = running(worker={"replicas": 2})
    for found in world.pods.values():
        if found["metadata"]["labels"][names.LABEL_ROLE] == role:
            found["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            found["status"]["containerStatuses"][0] |= {"ready": False, "state": {"waiting": {"reason": "Error"}}}
    world.reconcile()
    restarting = world.condition("Restarting")
    assert (restarting["status"], restarting["reason"]) == ("True", reason)
