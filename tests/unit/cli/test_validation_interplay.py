"""Warnings of fields that have no effect, or cannot work, together with other fields of the job."""

from typing import Any

import pytest

from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import with_defaults
from tests.support.builders import job

URI = {"checkpoint": {"uri": "s3://bucket/a"}}


def said(**spec: Any) -> list[str]:
    return [f"{finding.severity} {finding}" for finding in wrong_with(job(spec={**URI, **spec}))]


@pytest.mark.parametrize("standby", [{"replicasPerShard": 2}, {"replicasPerShard": 2, "mode": "None"}])
def test_a_number_of_standbys_needs_a_mode(standby: dict[str, Any]) -> None:
    assert said(ps={"standby": standby}) == [
        "warning spec.ps.standby.replicasPerShard: is 2, but mode None has no standbys: set spec.ps.standby.mode to "
        "Warm or Hot, or remove it"
    ]


def test_the_default_number_of_standbys_is_no_request() -> None:
    assert said(ps={"standby": {"mode": "Warm", "replicasPerShard": 2}}) == said(ps={"standby": None}) == []
    assert wrong_with(with_defaults(job(spec=URI))) == []


@pytest.mark.parametrize("mode", ["Warm", "Hot"])
def test_no_standby_replaces_a_server_whose_failure_is_final(mode: str) -> None:
    with_standbys = {"standby": {"mode": mode}, "restartPolicy": "Never"}
    training = {"training": {"mode": "Sync"}}
    assert said(ps=with_standbys, **training) == [
        "warning spec.ps.restartPolicy: is Never, so a server whose program fails ends the job without a failover to "
        "a standby; set OnFailure"
    ]
    assert said(ps={**with_standbys, "restartPolicy": "ExitCode"}, **training) == []
    assert said(ps={"restartPolicy": "Never"}, **training) == []
    rules = {"rules": [{"role": "ps", "action": "RestartReplica"}]}
    assert said(ps=with_standbys, failurePolicy=rules, **training) == []


@pytest.mark.parametrize(
    ("mode", "most", "message"),
    [
        ("Grow", 8, "only mode Full adds servers: set spec.autoscaling.mode to Full, or remove it"),
        ("Off", 1, "only mode Full adds servers: set spec.autoscaling.mode to Full, or remove it"),
        ("Full", 2, "is 2, and spec.ps.replicas is 2, so no server is added; raise it"),
        ("Full", 3, ""),
        ("Grow", None, ""),
    ],
)
def test_a_largest_number_of_servers_that_adds_none(mode: str, most: int | None, message: str) -> None:
    policy = {"role": "ps", "maxAllowed": {"memory": "8Gi"}, **({"maxReplicas": most} if most else {})}
    expected = [f"warning spec.autoscaling.rolePolicies[0].maxReplicas: {message}"] if message else []
    limits = {"resources": {"limits": {"memory": "4Gi"}}}
    assert said(ps={"replicas": 2, **limits}, autoscaling={"mode": mode, "rolePolicies": [policy]}) == expected


UNTIL_THE_END = "is ReadWriteOncePod, so the evaluator's pod waits until {} has ended; use another mode"
ON_ITS_NODE = (
    "is ReadWriteOnce, so the evaluator's pod starts only on the node of {}; use ReadWriteMany, or set "
    "spec.checkpoint.uri instead of the claim"
)


@pytest.mark.parametrize(("chief", "writer"), [(True, "the chief"), (False, "worker 0")])
@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (["ReadWriteOncePod"], UNTIL_THE_END),
        (["ReadWriteOnce"], ON_ITS_NODE),
        (["ReadWriteOnce", "ReadOnlyMany"], ON_ITS_NODE),
        (["ReadWriteOnce", "ReadWriteMany"], ""),
        (["ReadWriteMany"], ""),
    ],
)
def test_a_claim_of_one_pod_or_node_is_not_for_an_evaluator(
    modes: list[str], message: str, chief: bool, writer: str
) -> None:
    claim = {"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}}
    spec: dict[str, Any] = {"checkpoint": {"volumeClaimTemplate": claim}, "chief": {"enabled": chief}}
    field = "spec.checkpoint.volumeClaimTemplate.accessModes"
    expected = [f"warning {field}: {message.format(writer)}"] if message else []
    assert said(**spec, evaluator={"enabled": True}) == expected
    assert said(**spec, evaluator={"enabled": False}) == said(**spec) == []


@pytest.mark.parametrize(
    ("kind", "mount"),
    [
        ("volumeMounts", {"name": "shard", "mountPath": "/shard"}),
        ("volumeDevices", {"name": "shard", "devicePath": "/dev/shard"}),
    ],
)
def test_a_claim_that_no_server_mounts_stays_empty(kind: str, mount: dict[str, str]) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": name}, "spec": spec} for name in ("shard", "other")]
    container = {"name": "tensorflow", "image": "i", "command": ["c"], kind: [mount]}
    own = {"template": {"spec": {"containers": [container]}}, "volumeClaimTemplates": claims}
    unused = "no container of a parameter server mounts it, so it stays empty: mount it in spec.ps.template"
    assert said(ps=own) == [f"warning spec.ps.volumeClaimTemplates[1]: {unused}"]
    assert len(said(ps={"volumeClaimTemplates": claims})) == 2


def test_marks_of_kueue_belong_on_the_job() -> None:
    """Kueue holds each pod with the label of a queue by itself, so a job would wait although it was admitted."""
    marks = {"labels": {"kueue.x-k8s.io/queue-name": "a"}, "annotations": {"kueue.x-k8s.io/podset-x": "b"}}
    path = "spec.worker.template.metadata"
    assert said(worker={"template": {"metadata": marks}}) == [
        f"warning {path}.labels.kueue.x-k8s.io/queue-name: belongs on the job: in a template, Kueue ignores it, or "
        "holds the pods one by one; write it to metadata.labels",
        f"warning {path}.annotations.kueue.x-k8s.io/podset-x: has no effect: the operator does not pass it to Kueue; "
        "remove it",
    ]


def test_marks_of_claims_that_are_not_kept_are_named() -> None:
    marks = {"pstraining.dev/job-name": "a", "app.kubernetes.io/instance": "b", "app.kubernetes.io/name": "c"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "shard", "labels": marks, "annotations": marks}, "spec": spec}
    path = "warning spec.ps.volumeClaimTemplates[0].metadata"
    left_out = "is left out: Argo CD or Flux may delete a claim with it; remove it"
    assert said(ps={"volumeClaimTemplates": [claim]})[:3] == [
        f"{path}.labels.pstraining.dev/job-name: is the operator's, which sets another value",
        f"{path}.labels.app.kubernetes.io/instance: {left_out}",
        f"{path}.annotations.app.kubernetes.io/instance: {left_out}",
    ]


def test_resources_of_whole_pods_stay_beside_those_of_a_role() -> None:
    """By a pod's own resources (KEP-2837), Kubernetes schedules and limits it, whatever its containers request."""
    whole = {"spec": {"resources": {"requests": {"cpu": 16}}}}
    own = {"limits": {"memory": "1Gi"}}
    stay = "of the whole pod stay, and Kubernetes goes by them; remove those"
    assert said(worker={"template": whole}, ps={"resources": own}) == [
        "warning spec.ps.resources: is for the training container, but spec.worker.template.spec.resources " + stay
    ]
    assert said(worker={"template": whole}) == said(worker={"resources": own}, ps={"resources": own}) == []


OFF = "enabled is not true, so no evaluator runs: set it, or remove the others"


@pytest.mark.parametrize(
    ("role", "own", "message"),
    [
        ("evaluator", {"template": {"spec": {"containers": [{"name": "a", "image": "i", "command": ["c"]}]}}}, OFF),
        ("evaluator", {"enabled": False, "restartPolicy": "Never", "inCluster": True}, OFF),
        (
            "chief",
            {"enabled": False, "resources": {"limits": {"cpu": 1}}, "backoff": {"limit": 1}},
            "enabled is false, so no chief runs: set those of spec.worker, or set enabled to true",
        ),
    ],
)
def test_a_role_that_does_not_run_needs_no_fields(role: str, own: dict[str, Any], message: str) -> None:
    [found] = said(**{role: own})
    assert found.startswith(f"warning spec.{role}: has ")
    assert all(name in found for name in own.keys() - {"enabled"})
    assert found.endswith(f", but {message}")
    assert said(**{role: {**own, "enabled": True}}) == []


def test_an_evaluator_does_not_run_for_ever() -> None:
    assert said(evaluator={"enabled": True, "restartPolicy": "Always"}) == [
        "warning spec.evaluator.restartPolicy: is Always, but an evaluator that ends with exit code 0 does not run "
        "again; let its program loop, and set OnFailure"
    ]
    assert said(worker={"restartPolicy": "Always"}) == []


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("ps.onChiefRestart", {"chief": {"enabled": False}, "ps": {"onChiefRestart": "Keep"}}),
        (
            "ps.persistentVolumeClaimRetentionPolicy",
            {"ps": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}},
        ),
        (
            "runPolicy.cleanPodPolicy.keepFailedSeconds",
            {"runPolicy": {"cleanPodPolicy": {"onFailure": "Running", "keepFailedSeconds": 60}}},
        ),
        ("runPolicy.maxRestarts", {"runPolicy": {"maxRestarts": 0}}),
        ("training.backupWorkers", {"training": {"mode": "Sync", "backupWorkers": 2}}),
    ],
)
def test_fields_that_other_fields_make_useless(field: str, spec: dict[str, Any]) -> None:
    [found] = said(**spec)
    assert found.startswith(f"warning spec.{field}: is ")


NEVER = {role: {"restartPolicy": "Never"} for role in ("ps", "worker", "chief")}
RETRY = {"failurePolicy": {"rules": [{"reasons": ["Error"], "action": "RestartReplica"}]}}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({**NEVER, "runPolicy": {"backoffLimit": 3}}, ["runPolicy.backoffLimit"]),
        ({**NEVER, "runPolicy": {"backoffLimit": 0}}, []),
        ({**NEVER, "runPolicy": {"backoffLimit": 3}, **RETRY}, []),
        ({**NEVER, "runPolicy": {"backoffLimit": 3}, "chief": {}}, []),
        ({**NEVER, "runPolicy": {"backoffLimit": 3}, "chief": {"enabled": False}}, ["runPolicy.backoffLimit"]),
        ({**NEVER, "worker": {"restartPolicy": "Never", "backoff": {"limit": 3}}}, ["worker.backoff"]),
        ({"ps": {"restartPolicy": "Never", "backoff": {"windowSeconds": 60}}}, ["ps.backoff"]),
        ({"ps": {"restartPolicy": "ExitCode", "backoff": {"limit": 3, "windowSeconds": 60}}}, []),
        ({"worker": {"restartPolicy": "Never", "backoff": {"limit": 0}}}, []),
    ],
)
def test_a_budget_of_failures_of_which_the_first_is_final(spec: dict[str, Any], fields: list[str]) -> None:
    found = said(**spec)
    assert [line.split(":")[0] for line in found] == [f"warning spec.{field}" for field in fields]
    assert all("the first " in line and "is final" in line for line in found)


@pytest.mark.parametrize(("labels", "number"), [(None, 1), ({"a": "b"}, 1), ({"kueue.x-k8s.io/queue-name": "q"}, 0)])
def test_a_job_for_another_cluster_needs_a_queue(labels: dict[str, str] | None, number: int) -> None:
    made = job(spec={**URI, "managedBy": "kueue.x-k8s.io/multikueue"})
    made["metadata"]["labels"] = labels
    found = wrong_with(made)
    assert len(found) == number
    assert all("set the label kueue.x-k8s.io/queue-name" in str(finding) for finding in found)


@pytest.mark.parametrize(
    "spec",
    [
        {"ps": {"onChiefRestart": "Keep"}, "training": {"mode": "Sync", "backupWorkers": 1}},
        {
            "ps": {"cleanPodPolicy": {"onFailure": "Failed"}},
            "runPolicy": {"cleanPodPolicy": {"onFailure": "All", "keepFailedSeconds": 60}},
        },
        {"runPolicy": {"maxRestarts": 9}, "failurePolicy": {"rules": [{"action": "RestartJob"}]}},
    ],
)
def test_fields_that_have_an_effect(spec: dict[str, Any]) -> None:
    assert said(**spec) == []


@pytest.mark.parametrize(
    ("mode", "role", "memory", "message"),
    [
        ("Grow", "ps", "8Gi", ""),
        (
            "Grow",
            "ps",
            "4096Mi",
            ".maxAllowed.memory: is 4096Mi, and the memory limit is 4Gi, so it does not grow; raise it",
        ),
        (
            "Recommend",
            "ps",
            "8Gi",
            ": only modes Grow and Full let memory grow: set spec.autoscaling.mode to Grow, or remove it",
        ),
        (
            "Grow",
            "chief",
            "8Gi",
            ": the training container has no memory limit to raise: set one in spec.chief.resources",
        ),
        ("Grow", "evaluator", "8Gi", ": has no effect: the job has no evaluator; remove it"),
    ],
)
def test_a_largest_memory_to_which_none_grows(mode: str, role: str, memory: str, message: str) -> None:
    autoscaling = {"mode": mode, "rolePolicies": [{"role": role, "maxAllowed": {"memory": memory}}]}
    expected = [f"warning spec.autoscaling.rolePolicies[0]{message}"] if message else []
    assert said(ps={"resources": {"limits": {"memory": "4Gi"}}}, autoscaling=autoscaling) == expected


NONE_OF_THEM = (
    "matches no failure: none of its reasons occurs with these exit codes (75 is StartTimeout, 78 is BadSettings, and "
    "pods that Kubernetes ends have none); change it"
)
TOO_LATE = "decides nothing: earlier rules match all of its failures; move it up, or remove it"
CODE_3 = {"exitCodes": {"values": [3]}, "action": "FailJob"}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"action": "Ignore"}, CODE_3], TOO_LATE),
        ([{"exitCodes": {"values": [4], "negate": True}, "action": "Ignore"}, {"role": "ps", **CODE_3}], TOO_LATE),
        ([{"role": "worker", "action": "Ignore"}, CODE_3], ""),
        ([CODE_3, {"action": "Ignore"}], ""),
        ([{"reasons": ["Evicted", "Deleted"], **CODE_3}], NONE_OF_THEM),
        ([{"reasons": ["Error"], "exitCodes": {"values": [75, 78]}, "action": "FailJob"}], NONE_OF_THEM),
        ([{"reasons": ["Error", "Evicted"], **CODE_3}], ""),
        ([{"reasons": ["OOMKilled", "InitFailed"], **CODE_3}], ""),
        ([{"role": "evaluator", "action": "Ignore"}], "matches no failure: the job has no evaluator; remove it"),
    ],
)
def test_rules_of_failures_that_decide_nothing(rules: list[dict[str, Any]], message: str) -> None:
    expected = [f"warning spec.failurePolicy.rules[{len(rules) - 1}]: {message}"] if message else []
    assert said(failurePolicy={"rules": rules}) == expected


@pytest.mark.parametrize(
    ("hook", "grace", "seconds"),
    [
        ({"exec": {"command": ["a"]}}, None, 30),
        ({"sleep": {"seconds": 5}}, None, 30),
        ({"sleep": {"seconds": 60}}, 60, 60),
        ({"sleep": {"seconds": 5}}, 60, 0),
        ({"exec": {"command": ["a"]}}, 60, 0),
        (None, None, 0),
    ],
)
def test_a_hook_takes_its_time_from_the_chiefs_last_save(hook: Any, grace: int | None, seconds: int) -> None:
    container = {"name": "tensorflow", "image": "i", "command": ["a"], "lifecycle": {"preStop": hook}}
    pod = {"containers": [container], "terminationGracePeriodSeconds": grace}
    template = {"template": {"spec": {name: value for name, value in pod.items() if value is not None}}}
    for role, spec in (
        ("chief", {"chief": template}),
        ("worker", {"worker": template}),  # which is also the chief's without a template of its own
        ("worker", {"worker": template, "chief": {"enabled": False}}),
    ):
        assert [line for line in said(**spec) if "preStop" in line] == [
            f"warning spec.{role}.template.spec.containers[0].lifecycle.preStop: takes its time from the "
            f"{seconds} s in which the chief can save its state: set terminationGracePeriodSeconds to the seconds of "
            "the hook and of a save"
        ] * bool(seconds)
    own = {"template": {"spec": {"containers": [container | {"lifecycle": None}]}}}
    assert not [line for line in said(worker=template, chief=own) if "preStop" in line]
