"""`plan`: objects that would be created, changed and deleted, by the operator's own planner, and the network's load."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pstraining.cli.commands.plan import bandwidth_megabits, details, picture, report
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.main import app
from pstraining.cli.planning.planned import Change, Planned, changes, planned_for
from pstraining.core.actions import Apply, Create, Delete, Kind, Resize
from tests.support.builders import NOW, TEMPLATE, job
from tests.support.command_runner import CliRunner
from tests.support.job_cluster import JobCluster
from tests.support.simulation import running

REQUESTS = {"requests": {"cpu": "500m", "memory": "256Mi"}}


def manifest(**spec: Any) -> dict[str, Any]:
    """Return a job as a user writes it."""
    made = job(spec=spec)
    made["metadata"] = {"name": "digits", "namespace": "default"}
    return made


def run(tmp_path: Path, *arguments: str, **spec: Any) -> Any:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(**spec)))
    return CliRunner().invoke(app, ["plan", "-f", str(file), *arguments])


def of(planned: Planned) -> list[tuple[str, str, str]]:
    return [(type(a).__name__, str(a.kind), a.name) for a in planned.actions]


def as_there(cluster: JobCluster) -> dict[str, Any]:
    """Return the job as a user would send it, with its present values."""
    found = copy.deepcopy(cluster.world.job)
    assert found is not None
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": found["metadata"],
        "spec": found["spec"],
    }


def test_the_plan_of_a_new_job_lists_every_object_that_the_operator_creates() -> None:
    world = running()
    made = {(kind, name) for kind, name in world.children if kind != "Pod"}
    planned = planned_for(None, manifest(), NOW)
    created = {(str(a.kind), a.name) for a in planned.actions if isinstance(a, Create)}
    (carried,) = created - made
    assert carried[1].startswith("digits-launcher-"), "this CLI's own, as an operator of its version has it"
    assert {name for _, name in made - created} == {"digits-launcher-v1"}
    assert not planned.exists


def test_the_plan_describes_each_new_object(tmp_path: Path) -> None:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "fast",
    }
    spec = {
        "ps": {"replicas": 3, "resources": REQUESTS, "standby": {"mode": "Warm"}},
        "checkpoint": {"path": "/c", "volumeClaimTemplate": claim},
    }
    lines = [line.split(maxsplit=2) for line in run(tmp_path, **spec).output.splitlines() if line.startswith("create")]
    reported = {
        tuple(line[:2]) + tuple(line[2].split("  ", 1)[:1]): line[2].split("  ", 1)[-1].strip() for line in lines
    }
    assert reported["create", "StatefulSet", "digits-ps"] == "3 pods, 0.5 CPU and 256Mi each"
    assert reported["create", "PersistentVolumeClaim", "digits-checkpoint"] == "10Gi fast, kept when the job is deleted"
    assert reported["create", "PodDisruptionBudget", "digits-ps-0 ... digits-ps-2 (3)"] == "minAvailable 1"
    assert reported["create", "Service", "digits-hs"] == "ports 2222, 2223"


def test_the_plan_of_an_unchanged_job_is_empty() -> None:
    cluster = JobCluster(running())
    planned = planned_for(cluster, as_there(cluster), cluster.world.now)
    assert (planned.actions, planned.changes) == ((), ())
    assert report(planned, None)["exists"]
    assert cluster.asked == [("apply", {"dry_run": True, "force": False})], "nothing is stored"


@pytest.mark.parametrize(
    ("policy", "reported"), [("Retain", "kept when the job is deleted"), ("Delete", "deleted with the job")]
)
def test_the_plan_reports_the_fate_of_the_claim(policy: str, reported: str) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    other = {"Retain": "Delete", "Delete": "Retain"}[policy]
    made = planned_for(None, manifest(checkpoint={"volumeClaimTemplate": claim, "retainPolicy": policy}), NOW)
    (action,) = [a for a in made.actions if a.kind is Kind.CLAIM]
    assert details(made, action) == f"10Gi, {reported}"
    cluster = JobCluster(running(checkpoint={"volumeClaimTemplate": claim, "retainPolicy": other}))
    wanted = as_there(cluster)
    wanted["spec"]["checkpoint"]["retainPolicy"] = policy
    planned = planned_for(cluster, wanted, NOW)
    (found,) = report(planned, None)["actions"]
    assert (found["action"], found["kind"], found["details"]) == ("correct", "PersistentVolumeClaim", reported)
    assert picture(planned, None)


GANG = {"schedulingPolicy": {"gang": "SchedulerPlugins"}}


def test_a_missing_pod_group_is_planned_and_an_existing_one_is_not() -> None:
    cluster = JobCluster(running(runPolicy=GANG))
    assert of(planned_for(cluster, as_there(cluster), NOW)) == []
    first, *_ = planned_for(None, manifest(runPolicy=GANG), NOW).actions
    assert (first.kind, details(Planned({}, (first,)), first)) == (Kind.POD_GROUP, "minMember 4")


def test_a_gang_is_planned_without_its_kind() -> None:
    class Without(JobCluster):
        def listed(self, path: str, **query: str) -> list[dict[str, Any]]:
            if "podgroups" in path:
                raise RequestError("The cluster does not know it", 404)
            return super().listed(path, **query)

    cluster = Without(running(runPolicy=GANG))
    del cluster.world.children["PodGroup", "digits"]
    assert of(planned_for(cluster, as_there(cluster), NOW)) == [("Create", "PodGroup", "digits")]
    plain = Without(running())
    assert of(planned_for(plain, as_there(plain), NOW)) == []


def test_devices_and_limits_without_requests_are_added_up() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 2, "memory": "128Gi"},
        "requests": {"cpu": 16},
    }
    planned = planned_for(
        None, manifest(worker={"replicas": 2, "template": template}, ps={"replicas": 1, "resources": {}}), NOW
    )
    deployment = next(action for action in planned.actions if action.kind is Kind.DEPLOYMENT)
    assert details(planned, deployment) == "1 pod, 16 CPU, 128Gi and 2 nvidia.com/gpu each"
    chief = {"cpu": 16.0, "memoryBytes": 128 << 30}
    assert report(planned, None)["newPods"] == {
        "number": 4,
        "cpu": 2 * 16.0 + chief["cpu"],
        "memoryBytes": 2 * (128 << 30) + chief["memoryBytes"],
        "devices": {"nvidia.com/gpu": 4},
    }


def test_the_plan_reports_a_change_with_its_consequences() -> None:
    cluster = JobCluster(running())
    body = as_there(cluster)
    body["spec"]["worker"]["replicas"] = 3
    planned = planned_for(cluster, body, cluster.world.now)
    assert planned.changes == (Change("spec.worker.replicas", 2, 3),)
    said = report(planned, None)
    assert said["changes"] == [{"field": "spec.worker.replicas", "before": 2, "after": 3}]
    assert ("Create", "Deployment", "digits-worker-2") in of(planned)
    assert said["newPods"]["number"] == 1
    cluster.apply(body)
    before = set(cluster.world.children)
    cluster.world.settle()
    new = {(kind, name) for kind, name in set(cluster.world.children) - before if kind != "Pod"}
    assert new == {(str(a.kind), a.name) for a in planned.actions if isinstance(a, Create)}


def test_the_plan_reports_corrections_and_deletions() -> None:
    cluster = JobCluster(running())
    cluster.world.children["Service", "digits-hs"]["spec"]["selector"] = {"a": "b"}
    body = as_there(cluster)
    body["spec"]["worker"]["replicas"] = 1
    planned = planned_for(cluster, body, cluster.world.now)
    deleted = next(a for a in planned.actions if isinstance(a, Delete))
    assert (deleted.kind, deleted.name) == (Kind.DEPLOYMENT, "digits-worker-1")
    corrected = next(a for a in planned.actions if isinstance(a, Apply) and a.kind is Kind.SERVICE)
    assert details(planned, corrected).startswith("spec.selector")
    console = Console(width=200)
    with console.capture() as said:
        console.print(picture(planned, None))
    assert re.search(r"delete +Deployment +digits-worker-1\b", said.get())
    assert "These are the next actions" in said.get()


def test_the_plan_reports_resized_servers() -> None:
    cluster = JobCluster(running(ps={"standby": {"mode": "Hot"}}, training={"mode": "Sync"}))
    body = as_there(cluster)
    body["spec"]["ps"]["resources"] = {"requests": {"memory": "4Gi"}}
    planned = planned_for(cluster, body, cluster.world.now)
    assert of(planned) == [("Replace", "StatefulSet", "digits-ps"), ("Replace", "StatefulSet", "digits-standby")]
    assert {details(planned, action) for action in planned.actions} == {"/spec/template"}


@pytest.mark.parametrize("in_place", [True, False])
def test_the_plan_reports_how_running_pods_are_resized(*, in_place: bool) -> None:
    class Serving(JobCluster):
        def read(self, path: str) -> Any:
            if path != "/api/v1":
                return super().read(path)
            return {"resources": [{"name": "pods"}, *([{"name": "pods/resize"}] if in_place else [])]}

    cluster = Serving(running(chief={"resources": {"limits": {"memory": "1Gi"}}}))
    body = as_there(cluster)
    body["spec"]["chief"]["resources"] = {"limits": {"memory": "2Gi"}}
    planned = planned_for(cluster, body, cluster.world.now)
    (way,) = report(planned, None)["resizes"]
    console = Console(width=200)
    with console.capture() as said:
        console.print(picture(planned, None))
    assert way in said.get()
    if in_place:
        assert way.endswith("limits.memory 1Gi -> 2Gi: resized in place, without a restart.")
        resize = next(a for a in planned.actions if isinstance(a, Resize))
        assert details(planned, resize) == "requests.memory 1Gi -> 2Gi, limits.memory 1Gi -> 2Gi"
    else:
        assert way.endswith("(Kubernetes 1.33 or newer does).")
        assert not planned.actions


def test_measured_usage_is_shown_beside_the_present_size() -> None:
    world = running(ps={"resources": {"limits": {"memory": "1Gi"}}}, autoscaling={"mode": "Recommend"})
    assert world.job is not None
    sizing = {"role": "ps", "peakMemory": "800Mi", "recommendedMemory": "960Mi"}
    world.job["status"]["autoscaling"] = [sizing]
    cluster = JobCluster(world)
    planned = planned_for(cluster, as_there(cluster), world.now)
    (sizing,) = report(planned, None)["sizings"]
    assert sizing == "ps: memory: measured peak 800Mi, recommended limit 960Mi, now 1Gi."
    console = Console(width=200)
    with console.capture() as said:
        console.print(picture(planned, None))
    assert sizing in said.get()


def test_a_job_that_is_suspended_stops_in_order() -> None:
    cluster = JobCluster(running())
    body = as_there(cluster)
    body["spec"]["runPolicy"] = {**body["spec"].get("runPolicy", {}), "suspend": True}
    planned = planned_for(cluster, body, cluster.world.now)
    assert {a.kind for a in planned.actions} == {Kind.JOB}, "the chief first"


@pytest.mark.parametrize("spec", [{"runPolicy": {"suspend": True}}, {"managedBy": "kueue.x-k8s.io/multikueue"}])
def test_a_new_job_for_which_the_operator_creates_nothing(spec: dict[str, Any], tmp_path: Path) -> None:
    found = run(tmp_path, **spec).stdout
    assert found.endswith("would be created, without objects: see suspend, managedBy.\n")


def test_an_api_server_rejection_keeps_its_message() -> None:
    cluster = JobCluster(running())
    cluster.refusal = CommandError("spec.ps.server is immutable while the job runs")
    with pytest.raises(CommandError, match=r"digits in default was not submitted\. spec\.ps\.server is immutable"):
        planned_for(cluster, as_there(cluster), NOW)


def test_only_differences_are_reported() -> None:
    assert list(changes({"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [2]}, "d": 3}, "")) == [
        Change("a.c", [1], [2]),
        Change("d", None, 3),
    ]
    assert str(Change("x", None, "y" * 99)) == f"x: nothing -> {'y' * 57}..."


def test_the_jobs_bandwidth_is_used_unless_overridden() -> None:
    made = manifest(network={"bandwidthMegabits": 25_000})
    assert bandwidth_megabits(made, None) == 25_000
    assert bandwidth_megabits(made, 10.0) == 10.0
    assert bandwidth_megabits(manifest(), None) is None


def test_what_the_network_carries(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"ps": {"replicas": 10}, "worker": {"replicas": 100}}
    done = run(tmp_path, "--parameters", "25.6M", "--bandwidth", "10G", "-o", "json", **spec)
    network = json.loads(done.stdout)["network"]
    assert network["busiestLinkBytes"] == 1_024_000_000
    assert network["seconds"] == pytest.approx(0.8192)
    assert network["recommendedParameterServers"] == 100
    assert [row["number"] for row in network["parameterServers"]] == [1, 2, 4, 8, 10, 16, 32, 64, 100]
    unknown = json.loads(run(tmp_path, "--parameters", "25.6M", "-o", "json", **spec).stdout)["network"]
    assert unknown["seconds"] is None
    assert "network" not in json.loads(run(tmp_path, "-o", "json", **spec).stdout)


def test_servers_that_the_model_is_too_small_for(tmp_path: Path) -> None:
    """Further servers do not reduce the load, and the plan gives the reason."""
    spec: dict[str, Any] = {"ps": {"replicas": 100}, "worker": {"replicas": 100}}
    text = run(tmp_path, "--parameters", "1M", **spec).stdout
    assert re.search(r"each of 15 parameter servers +26.7 MB +26.7 MB +-   <- limits the update\n", text)
    assert (
        "\n85 of 100 parameter servers would hold less than spec.training.minShardBytes, and carry nothing.\n" in text
    )
    assert "Best with 15 parameter servers: with more, each would hold less than spec.training.minShardBytes" in text
    done = json.loads(run(tmp_path, "--parameters", "1M", "-o", "json", **spec).stdout)
    assert done["network"]["unusedParameterServers"] == 85
    assert done["network"]["busiestLinkBytes"] == done["network"]["parameterServers"][4]["busiestLinkBytes"]
    many = run(tmp_path, "--parameters", "7B", ps={"replicas": 1000}, worker={"replicas": 3000}).stdout
    assert "Best with 1000 parameter servers: a job cannot have more." in many
    assert "would hold less" not in many


def test_large_numbers_have_no_exponent(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "command": ["a"]}]}}
    worker = {"replicas": 1000, "template": template, "resources": {"requests": {"cpu": "1", "memory": "128Gi"}}}
    ps = {"replicas": 1, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    spec: dict[str, Any] = {"ps": ps, "worker": worker, "chief": {"enabled": False}}
    text = run(tmp_path, "--parameters", "70B", **spec, network={"bandwidthMegabits": 10_000_000}).stdout
    assert "request 1001 CPU and 128001Gi in total." in text
    assert " at 10000000 Mbit/s each way:" in text
    slow = run(tmp_path, "--parameters", "70B", "--bandwidth", "1G", **spec).stdout
    assert re.search(r"each of 1 parameter server +280 TB +280 TB +2240000   <- limits the update", slow)


@pytest.mark.parametrize(
    ("arguments", "spec", "message"),
    [
        (["--parameters", "many"], {}, "Error: --parameters: 'many' is not a number such as 138000000"),
        (["--parameters", "1M", "--bandwidth", "0"], {}, "Error: --bandwidth: '0' is not a number"),
        (["--bandwidth", "10G"], {}, "Error: --bandwidth: give the model's --parameters too"),
        ([], {"ps": {"replicas": 0}}, "spec.ps.replicas: must be at least 1, is 0"),
        ([], {"ps": {"replicas": 0}}, "Error: Nothing was planned: the input has 1 error."),
    ],
)
def test_jobs_that_cannot_be_planned(tmp_path: Path, arguments: list[str], spec: dict[str, Any], message: str) -> None:
    done = run(tmp_path, *arguments, **spec)
    assert done.exit_code == 1
    assert message in done.output + done.stderr + (f"Error: {done.exception}" if done.exception else "")


def test_a_job_with_a_queue_waits_before_it_gets_pods() -> None:
    made = manifest()
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    planned = planned_for(None, made, NOW)
    assert report(planned, None)["queue"] == "team-a"
    console = Console(width=200)
    with console.capture() as shown:
        console.print(picture(planned, None))
    assert "waits in the queue team-a" in shown.get()
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": None}
    assert "queue" not in report(planned_for(None, made, NOW), None), "null counts as absent"


def test_empty_or_non_string_labels_hide_no_object() -> None:
    expected = of(planned_for(None, manifest(), NOW))
    for labels in (None, {"team": 7, "tier": None}):
        made = manifest()
        made["metadata"]["labels"] = labels
        assert of(planned_for(None, made, NOW)) == expected


def test_jobs_with_generate_name_are_planned_with_an_example_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    jobs = [{**manifest(runPolicy={"maxRestarts": n}), "metadata": {"generateName": "digits-"}} for n in (1, 2)]
    file.write_text(yaml.safe_dump_all(jobs))
    result = CliRunner().invoke(app, ["plan", "-f", str(file), "-o", "json"])
    assert result.exit_code == 0, result.stderr
    assert [name in result.stdout for name in ("digits-00001-ps", "digits-00002-ps")] == [True, True]
