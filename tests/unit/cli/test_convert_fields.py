"""The conversion of each field of a TFJob: its counterpart, or a note."""

import copy
from typing import Any

import pytest

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind
from tests.support.tfjobs import CONTAINER, replica, template, tfjob

NONE, DIFFERENT, CHANGED = NoteKind.NONE, NoteKind.DIFFERENT, NoteKind.CHANGED
QUIET = set(converted(tfjob()).notes)
"""The note on every such job."""


def notes(job: dict[str, Any]) -> list[tuple[str, NoteKind]]:
    return [(n.path, n.kind) for n in converted(job).notes if n not in QUIET]


def spec(job: dict[str, Any]) -> dict[str, Any]:
    manifest = converted(job).manifest
    assert manifest is not None
    found: dict[str, Any] = manifest["spec"]
    return found


def test_a_job() -> None:
    found = converted(tfjob(Chief=replica(command=["python", "-m", "chief"])))
    assert found.manifest == {
        "apiVersion": "pstraining.dev/v1alpha1",
        "kind": "PSTrainingJob",
        "metadata": {"name": "mnist"},
        "spec": {
            "ps": {"replicas": 1, "restartPolicy": "OnFailure", "resources": {}},
            "worker": {
                "replicas": 2,
                "restartPolicy": "OnFailure",
                "template": template({"resources": {"limits": {"cpu": 1}}}),
            },
            "chief": {"restartPolicy": "OnFailure", "template": template({"command": ["python", "-m", "chief"]})},
            "runPolicy": {"backoffLimit": 3, "cleanPodPolicy": {"onSuccess": "Running", "onFailure": "Running"}},
        },
    }
    assert [(n.path, n.kind) for n in found.notes] == [
        ("spec.tfReplicaSpecs.PS.template", CHANGED),
        ("spec.runPolicy.backoffLimit", DIFFERENT),
    ]


def test_a_conversion_is_repeatable_and_does_not_change_the_tfjob() -> None:
    job = tfjob(Worker=replica(2, ports=[{"name": "tfjob-port", "containerPort": 2222}]))
    before = copy.deepcopy(job)
    assert converted(job) == converted(copy.deepcopy(job))
    assert job == before


PLUGINS, VOLCANO = {"gang": "SchedulerPlugins"}, {"gang": "Volcano"}
LEAST, RESOURCES, TIMEOUT = "minAvailable", "minResources", "scheduleTimeoutSeconds"
GANGS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, NoteKind]]]] = [
    ({"queue": "q"}, {**VOLCANO, "queue": "q"}, []),
    # The job has a parameter server and two workers.
    ({"queue": "q", LEAST: 3}, {**VOLCANO, "queue": "q"}, [(LEAST, CHANGED)]),
    ({"queue": "q", LEAST: 2}, {**VOLCANO, "queue": "q"}, [(LEAST, DIFFERENT)]),
    ({"queue": "q", LEAST: 4}, {**VOLCANO, "queue": "q", LEAST: 3}, [(LEAST, DIFFERENT)]),
    ({"queue": "q", TIMEOUT: 3}, {**VOLCANO, "queue": "q"}, [(TIMEOUT, NONE)]),
    ({"queue": "q", RESOURCES: {"cpu": 1}}, {**VOLCANO, "queue": "q"}, [(RESOURCES, DIFFERENT)]),
    ({TIMEOUT: 3}, {**PLUGINS, "timeoutSeconds": 3}, []),
    ({TIMEOUT: 0}, PLUGINS, [(TIMEOUT, CHANGED)]),
    # No field names the scheduler.
    ({LEAST: 3}, PLUGINS, [(LEAST, DIFFERENT), (LEAST, CHANGED)]),
]


@pytest.mark.parametrize(
    ("run_policy", "made", "said"),
    [
        ({"cleanPodPolicy": "All"}, {"cleanPodPolicy": {"onSuccess": "All", "onFailure": "All"}}, []),
        ({"cleanPodPolicy": "None"}, {"cleanPodPolicy": {"onSuccess": "None", "onFailure": "None"}}, []),
        ({"cleanPodPolicy": None}, {}, [("cleanPodPolicy", DIFFERENT)]),
        ({"cleanPodPolicy": ""}, {}, [("cleanPodPolicy", DIFFERENT)]),
        ({"ttlSecondsAfterFinished": 0}, {"ttlSecondsAfterFinished": 0}, []),
        ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 60}, []),
        ({"activeDeadlineSeconds": 0}, {}, [("activeDeadlineSeconds", NONE)]),
        ({"activeDeadlineSeconds": 2**40}, {"activeDeadlineSeconds": 2**31 - 1}, [("activeDeadlineSeconds", CHANGED)]),
        ({"backoffLimit": 20000}, {"backoffLimit": 10000}, [("backoffLimit", DIFFERENT)]),
        ({"backoffLimit": None}, {}, [("backoffLimit", DIFFERENT)]),
        ({"suspend": True}, {"suspend": True}, []),
        ({"managedBy": "kubeflow.org/training-operator"}, {}, [("managedBy", CHANGED)]),
        (
            {"managedBy": "other.dev/operator"},
            {"managedBy": "other.dev/operator"},
            [("managedBy", DIFFERENT)],
        ),
        (
            {"schedulingPolicy": {"priorityClass": "high"}},
            {"schedulingPolicy": {"priorityClass": "high"}},
            [("schedulingPolicy.priorityClass", DIFFERENT)],
        ),
        *(
            (
                {"schedulingPolicy": old},
                {"schedulingPolicy": new},
                [(f"schedulingPolicy.{f}", what) for f, what in said],
            )
            for old, new, said in GANGS
        ),
        ({"schedulingPolicy": {"other": 3}}, {}, [("schedulingPolicy.other", NONE)]),
        ({"elastic": 3}, {}, [("elastic", NONE)]),
    ],
)
def test_run_policy(run_policy: dict[str, Any], made: dict[str, Any], said: list[tuple[str, NoteKind]]) -> None:
    job = tfjob({"runPolicy": run_policy})
    always = {"backoffLimit": 3, "cleanPodPolicy": {"onSuccess": "Running", "onFailure": "Running"}}
    wanted = {k: v for k, v in always.items() if k not in run_policy} | made
    assert spec(job).get("runPolicy", {}) == wanted
    assert notes(job) == [(f"spec.runPolicy.{path}", what) for path, what in said]


def test_multikueue_reads_its_field_below_spec() -> None:
    job = tfjob({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}})
    assert spec(job)["managedBy"] == "kueue.x-k8s.io/multikueue"
    assert "managedBy" not in spec(job)["runPolicy"]
    assert notes(job) == [("spec.runPolicy.managedBy", CHANGED), ("spec.runPolicy.managedBy", DIFFERENT)]


def test_run_policy_of_early_tfjobs() -> None:
    job = tfjob({"runPolicy": {"cleanPodPolicy": None}, "cleanPodPolicy": "All", "backoffLimit": 5})
    assert spec(job)["runPolicy"] == {"backoffLimit": 3, "cleanPodPolicy": {"onSuccess": "All", "onFailure": "All"}}
    assert notes(job) == [("spec.cleanPodPolicy", CHANGED), ("spec.backoffLimit", CHANGED)]


def test_a_default_is_not_said_to_be_moved() -> None:
    job = tfjob({"runPolicy": {"cleanPodPolicy": None}}) | {"apiVersion": "kubeflow.org/v1beta2"}
    assert notes(job) == [("apiVersion", CHANGED), ("spec.runPolicy.cleanPodPolicy", CHANGED)]


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never", "ExitCode"])
@pytest.mark.parametrize("role", ["PS", "Worker", "Chief", "Evaluator"])
def test_restart_policies(role: str, policy: str) -> None:
    roles = {"Chief": replica(), role: replica(policy=policy)}
    made = spec(tfjob(**roles))
    assert made[role.lower()]["restartPolicy"] == policy


def test_no_restart_policy_is_tfjobs_never() -> None:
    worker = {k: v for k, v in replica().items() if k != "restartPolicy"}
    assert spec(tfjob(Worker=worker))["worker"]["restartPolicy"] == "Never"
    assert ("spec.tfReplicaSpecs.Worker.restartPolicy", CHANGED) in notes(tfjob(Worker=worker))


def test_without_restarts_no_note_mentions_the_limit() -> None:
    job = tfjob(PS=replica(policy="Never"), Worker=replica(policy="Never"))
    assert [path for path, _ in notes(job) if "backoff" in path] == []


@pytest.mark.parametrize(
    ("chief", "success", "worker", "said"),
    [
        (None, "", "Always", ["worker 0 is the job's"]),
        (replica(policy="Always"), "", "Always", ["the chief is the job's"]),
        (replica(policy="Always"), "AllWorkers", "OnFailure", ["the chief is its"]),
        (replica(policy="Always"), "AllWorkers", "Always", ["the chief is the job's"]),
        (None, "AllWorkers", "Always", []),  # the workers are no longer under Always
    ],
)
def test_always_for_the_task_that_decides(
    chief: dict[str, Any] | None, success: str, worker: str, said: list[str]
) -> None:
    found = converted(tfjob({"successPolicy": success}, Chief=chief, Worker=replica(policy=worker))).notes
    told = [n.message for n in found if "exit code 0" in n.message]
    assert told == [f"exit code 0 of {who} success also under Always." for who in said]


def test_roles_by_other_names() -> None:
    job = tfjob(PS=None, Worker=None, ps=replica(), WORKER=replica(2), Master=replica())
    assert list(spec(job)) == ["ps", "worker", "chief", "runPolicy"]
    assert ("spec.tfReplicaSpecs.Master", DIFFERENT) in notes(job)


def test_replicas() -> None:
    without = {k: v for k, v in replica().items() if k != "replicas"}
    assert spec(tfjob(PS=without))["ps"]["replicas"] == 1
    job = tfjob(Chief=replica(0), Evaluator=replica(2))
    assert spec(job)["chief"] == {"enabled": False}
    assert spec(job)["evaluator"]["enabled"] is True
    assert {
        ("spec.tfReplicaSpecs.Chief", CHANGED),
        ("spec.tfReplicaSpecs.Evaluator.replicas", NONE),
        ("spec.tfReplicaSpecs.Evaluator", DIFFERENT),
    } <= set(notes(job))
    assert ("spec.tfReplicaSpecs.PS.replicas", NONE) in notes(tfjob(PS=replica(2000)))


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"PS": None, "Worker": replica(4)}, "all-reduce"),
        ({"PS": replica(0), "Worker": replica(4)}, "all-reduce"),
        ({"PS": None, "Worker": replica(1)}, "a single task"),
        ({"PS": None, "Worker": None, "Chief": replica(1)}, "a single task"),
        ({"PS": None, "Worker": replica(1), "Chief": replica(1)}, "all-reduce"),
        ({"Worker": None, "Chief": replica(1)}, "no Worker"),
        ({"Worker": replica(0), "Chief": replica(1)}, "no Worker (replicas: 0)"),
    ],
)
def test_a_job_needs_a_ps_and_a_worker(roles: dict[str, Any], said: str) -> None:
    found = converted(tfjob(**roles))
    assert found.manifest is None
    (note,) = found.notes
    assert (note.path, note.kind) == ("spec.tfReplicaSpecs", NONE)
    assert said in note.message
    assert note.todo


def test_success_policy() -> None:
    assert "successPolicy" not in spec(tfjob({"successPolicy": ""}))
    assert spec(tfjob({"successPolicy": "AllWorkers"}))["successPolicy"] == "AllWorkers"
    assert notes(tfjob({"successPolicy": "AllWorkers"})) == []
    with_chief = notes(tfjob({"successPolicy": "AllWorkers"}, Chief=replica()))
    assert ("spec.successPolicy", DIFFERENT) in with_chief
    job = tfjob({"successPolicy": "AllWorkers"}, Worker=replica(policy="Always"))
    assert spec(job)["worker"]["restartPolicy"] == "OnFailure"
    assert ("spec.tfReplicaSpecs.Worker.restartPolicy", NONE) in notes(job)


def test_dynamic_workers() -> None:
    assert spec(tfjob({"enableDynamicWorker": True}))["worker"]["minReplicas"] == 1
    assert notes(tfjob({"enableDynamicWorker": True})) == [("spec.enableDynamicWorker", DIFFERENT)]
    assert "minReplicas" not in spec(tfjob({"enableDynamicWorker": False}))["worker"]
    assert notes(tfjob({"enableDynamicWorker": False})) == [("spec.enableDynamicWorker", CHANGED)]


GPU = {"limits": {"nvidia.com/gpu": 1, "cpu": 4}}


@pytest.mark.parametrize(
    ("worker", "own", "made"),
    [
        ({}, {}, {}),
        ({"resources": {}}, {}, {}),
        ({"resources": GPU}, {"resources": {"limits": {"cpu": 4}}}, {}),
        ({"resources": GPU}, {"resources": {"limits": {"cpu": 2}}}, {"resources": {"limits": {"cpu": 2}}}),
        ({"resources": {"limits": {"cpu": 4}}}, {}, {"resources": {}}),
        ({"resources": GPU}, {"resources": {"limits": {"cpu": 1.5}}}, {"resources": {"limits": {"cpu": "1.5"}}}),
        ({"resources": GPU}, {"resources": GPU}, None),
        ({}, {"resources": GPU}, None),
        ({}, {"resources": {"claims": [{"name": "gpu"}]}}, None),
        ({"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, {}, {}),
        ({}, {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": ""}]}, {}),
        ({}, {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, None),
        ({}, {"env": [{"name": "EPOCHS", "value": "1"}]}, None),
        ({}, {"command": ["python", "-m", "server"]}, None),
        ({"livenessProbe": {"exec": {"command": ["a"]}}}, {}, {}),
        ({"livenessProbe": {"exec": {"command": ["a"]}}}, {"livenessProbe": {"exec": {"command": ["a"]}}}, None),
    ],
)
def test_a_template_shared_by_roles_is_written_once(
    worker: dict[str, Any], own: dict[str, Any], made: dict[str, Any] | None
) -> None:
    found = spec(tfjob(PS=replica(**own), Worker=replica(**worker)))["ps"]
    shared = {k: v for k, v in found.items() if k not in ("replicas", "restartPolicy")}
    assert shared == ({"template": template(own)} if made is None else made)


TEMPLATE = "spec.tfReplicaSpecs.Worker.template.spec"


@pytest.mark.parametrize(
    ("container", "pod", "kept", "path", "what"),
    [
        ({"ports": [{"name": "tfjob-port", "containerPort": 2222}]}, {}, "", "containers[0].ports[0]", CHANGED),
        ({"ports": [{"containerPort": 2222}]}, {}, "", "containers[0].ports[0]", CHANGED),
        ({"ports": [{"name": [], "containerPort": 2222}]}, {}, "", "containers[0].ports[0]", CHANGED),
        ({"ports": [{"name": "tfjob-port", "containerPort": []}]}, {}, "", "containers[0].ports[0]", DIFFERENT),
        ({"ports": [{"name": "tfjob-port", "containerPort": 3}]}, {}, "", "containers[0].ports[0]", DIFFERENT),
        ({"ports": [{"name": "t", "containerPort": 2222, "hostPort": 1}]}, {}, "", "containers[0].ports[0]", NONE),
        ({"ports": [{"name": "x", "containerPort": 2223}]}, {}, "", "containers[0].ports[0]", NONE),
        ({"ports": [{"name": "tf", "containerPort": 80}]}, {}, "", "containers[0].ports[0]", NONE),
        ({"ports": [{"name": [], "containerPort": 80}]}, {}, "ports", "containers[0].ports[0]", DIFFERENT),
        ({"ports": [{"name": "x", "containerPort": 80}]}, {}, "ports", "containers[0].ports[0]", DIFFERENT),
        ({"env": [{"name": "TF_CONFIG", "value": "{}"}]}, {}, "", "containers[0].env[0]", CHANGED),
        ({"env": [{"name": "PSTRAINING_JOB", "value": "x"}]}, {}, "", "containers[0].env[0]", NONE),
        ({"command": None}, {}, "", "containers[0].command", NONE),
        ({"args": ["mnist-worker-1.ns.svc:80"]}, {}, "args", "containers[0].args[0]", DIFFERENT),
        ({}, {"restartPolicy": "Always"}, "", "restartPolicy", CHANGED),
        ({}, {"hostNetwork": True}, "", "hostNetwork", NONE),
        ({}, {"hostname": "me"}, "", "hostname", NONE),
        ({}, {"subdomain": "me"}, "", "subdomain", NONE),
        ({}, {"serviceAccountName": "me"}, "serviceAccountName", "serviceAccountName", CHANGED),
        ({}, {"securityContext": None}, "", "securityContext", DIFFERENT),
        (
            {},
            {"affinity": {"training.kubeflow.org/job-name": "x"}},
            "affinity",
            'affinity["training.kubeflow.org/job-name"]',
            DIFFERENT,
        ),
    ],
)
def test_fields_that_the_operator_manages(
    container: dict[str, Any], pod: dict[str, Any], kept: str, path: str, what: NoteKind
) -> None:
    job = tfjob(PS=replica(command=["server"]), Worker={**replica(), "template": template(container, **pod)})
    assert (f"{TEMPLATE}.{path}", what) in notes(job)
    made = spec(job)["worker"]["template"]["spec"]
    for field in {**container, **pod}:
        assert (field in {**made, **made["containers"][0]}) is (field == kept), field


@pytest.mark.parametrize(
    ("container", "pod"),
    [
        ({"args": ["mnist-ps-0.ns.svc:2222"]}, {}),
        ({"ports": [{"containerPort": 80}]}, {}),
        ({"securityContext": {"runAsUser": 5, "runAsGroup": 5}}, {"securityContext": {"fsGroup": 5}}),
        ({}, {"hostNetwork": False}),
        ({}, {"serviceAccountName": "me", "automountServiceAccountToken": False}),
        ({}, {"nodeSelector": {"pool": "gpu"}, "tolerations": [], "volumes": [{"name": "v", "emptyDir": {}}]}),
    ],
)
def test_unchanged_fields(container: dict[str, Any], pod: dict[str, Any]) -> None:
    own = template(container, **pod)
    job = tfjob(PS=replica(command=["server"]), Worker={**replica(), "template": own})
    assert spec(job)["worker"]["template"] == own
    assert notes(job) == []


def test_other_containers_are_kept_except_reserved_names() -> None:
    sidecar = {"name": "proxy", "image": "p", "ports": [{"name": "tf", "containerPort": 2222}], "args": ["x"]}
    of_operator = {"env": [{"name": "TF_CONFIG", "value": "{}"}, {"name": "A", "value": "1"}]}
    job = tfjob(Worker={**replica(), "template": template(containers=[sidecar | of_operator, CONTAINER])})
    kept = sidecar | {"env": [{"name": "A", "value": "1"}]}
    assert spec(job)["worker"]["template"]["spec"]["containers"] == [kept, CONTAINER]
    assert (f"{TEMPLATE}.containers[0].env[0]", NONE) in notes(job)


def test_metadata() -> None:
    job = tfjob()
    job["metadata"] |= {
        "namespace": "team",
        "labels": {"a": "b", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"c": "d", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "generateName": "mnist-",
        "uid": "u",
        "finalizers": ["f"],
    }
    job["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    manifest = converted(job).manifest
    assert manifest is not None
    assert manifest["metadata"] == {
        "name": "mnist",
        "namespace": "team",
        "labels": {"a": "b", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"c": "d"},
    }
    assert set(notes(job)) == {
        ("metadata.generateName", CHANGED),
        ('metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]', CHANGED),
        ('metadata.labels["kueue.x-k8s.io/queue-name"]', DIFFERENT),
        ("metadata.uid", CHANGED),
        ("metadata.finalizers", NONE),
        ("status", CHANGED),
    }


def test_names_that_are_too_long() -> None:
    found = set()
    for name in (f"{'a' * 45}-x", f"{'a' * 45}-y"):
        job = tfjob()
        job["metadata"] = {"name": name}
        manifest = converted(job).manifest
        assert manifest is not None
        assert len(manifest["metadata"]["name"]) == 40
        assert notes(job) == [("metadata.name", CHANGED)]
        found.add(manifest["metadata"]["name"])
    assert len(found) == 2, "two jobs stay two"
    job["metadata"] = {"generateName": f"{'a' * 45}-"}
    manifest = converted(job).manifest
    assert manifest is not None
    assert manifest["metadata"] == {"generateName": "a" * 35}


def test_unknown_fields_are_named() -> None:
    worker = replica() | {"priority": 3}
    job = tfjob({"scheduler": {"a": 1}}, Worker=worker) | {"more": [1]}
    assert {("spec.tfReplicaSpecs.Worker.priority", NONE), ("spec.scheduler", NONE), ("more", NONE)} <= set(notes(job))


def test_objects_that_the_api_server_would_still_reject_are_reported() -> None:
    job = tfjob(PS=replica(command=["server"]), Worker=replica(args=["x"] * 300))
    (said,) = [n for n in converted(job).notes if n.kind is NONE]
    assert said.path == "spec.tfReplicaSpecs.Worker.template.spec.containers[0].args"
    assert "must have at most 256 items" in said.message


def test_a_missing_command_is_reported_once() -> None:
    job = tfjob(PS=None, Worker=None, ps=replica(command=["server"]), worker=replica(command=None))
    (said,) = [n for n in converted(job).notes if n.kind is NONE]
    assert said.path == "spec.tfReplicaSpecs.worker.template.spec.containers[0].command"
