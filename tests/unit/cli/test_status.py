"""`status`: its findings and their display, for jobs in a simulated world and for pods in every kind of trouble."""

import copy
import json
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
import yaml
from rich.console import Console, RenderableType

from pstraining.cli import overview
from pstraining.cli.commands import status
from pstraining.cli.errors import CommandError, DeniedError
from pstraining.cli.jobs import listed, why
from pstraining.cli.output import Output
from pstraining.cli.status import pod_state
from pstraining.cli.status.picture import table, tree
from pstraining.cli.tasks import tasks_of
from tests.support.builders import NOW, job, pod, stamp, terminated
from tests.support.cli_cluster import Object, WithJobs
from tests.support.simulation import World, running


def rendered(found: RenderableType, width: int = 110) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(found)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def of(world: World) -> WithJobs:
    assert world.job is not None
    return WithJobs(world.job, pods=list(world.pods.values()))


def look(world: World) -> dict[str, Any]:
    return overview.look(of(world), "default", "digits")


def role(found: dict[str, Any], name: str) -> dict[str, Any]:
    (only,) = [r for r in found["roles"] if r["role"] == name]
    return dict(only)


def event(reason: str, message: str, *, seconds: int = 0, kind: str = "Normal", **fields: Any) -> Object:
    moment = stamp(NOW + timedelta(seconds=seconds))
    metadata = {"name": f"digits.{reason}", "creationTimestamp": moment}
    return {"metadata": metadata, "type": kind, "reason": reason, "message": message, "eventTime": moment, **fields}


def why_of(made: Object, **extra: Any) -> tuple[str, list[str]]:
    made["status"] |= extra
    (task,) = tasks_of(job(), [made])
    return pod_state.state(task), pod_state.why(task)


def test_a_running_job() -> None:
    found = look(running(ps={"replicas": 2, "standby": {"mode": "Warm"}}, evaluator={"enabled": True}))
    assert (found["phase"], found["ps"], found["workers"], found["why"]) == ("Running", "2/2", "2/2", "")
    assert [r["role"] for r in found["roles"]] == ["chief", "ps", "worker", "evaluator"]
    servers = role(found, "ps")["pods"]
    assert [(p["task"], p["pod"], p["state"], p["primary"]) for p in servers] == [
        ("ps-0", "digits-ps-0", "Ready", True),
        ("ps-1", "digits-ps-1", "Ready", True),
        ("standby-0", "digits-standby-0", "Ready", False),
        ("standby-1", "digits-standby-1", "Ready", False),
    ]
    assert [(s["primary"], s["readyStandbys"], s["standbys"]) for s in found["shards"]] == [
        ("digits-ps-0", 1, 1),
        ("digits-ps-1", 1, 1),
    ]
    assert found["notes"] == []
    assert all(not r["withoutPod"] and not r["givenUp"] for r in found["roles"])
    json.dumps(found, allow_nan=False)


def test_the_table_keeps_a_row_a_line_and_shows_namespaces_for_all() -> None:
    rows = [overview.summary(running().job or {}) for _ in range(2)]
    rows[0]["why"] = "Unschedulable: " + "a long story [with brackets] " * 20
    lines = rendered(table(rows, NOW, namespaces=True), 80).splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["NAMESPACE", "NAME", "STATE", "PS", "WORKERS", "RESTARTS", "AGE", "WHY"]
    assert lines[1].startswith("default    digits  Running  1/1  2/2")
    assert lines[1].endswith("…")


def test_markup_in_messages_is_shown_as_it_is() -> None:
    found = look(running())
    found["notes"] = ["[red]not a colour[/red]"]
    assert "[red]not a colour[/red]" in rendered(tree(found, NOW))


@pytest.mark.parametrize(
    ("made", "state", "words"),
    [
        (pod("worker"), "Ready", []),
        (pod("worker", deleting=True), "Terminating", []),
        (pod("chief", term=1, state=terminated(0), phase="Succeeded", ready=False), "Succeeded", []),
        (
            pod("chief", term=1, state=terminated(3, "a\nValueError: b\n"), phase="Failed", ready=False),
            "Error",
            ["container tensorflow ended with exit code 3: ValueError: b"],
        ),
        (
            pod("worker", last=terminated(137, reason="OOMKilled"), restarts=2),
            "Ready",
            ["container tensorflow was restarted 2 times; its last run ended with exit code 137 (OOMKilled)"],
        ),
        (
            pod("worker", state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}, ready=False),
            "ImagePullBackOff",
            ["container tensorflow is waiting: ImagePullBackOff: Back-off"],
        ),
        (
            pod("worker", state={"waiting": {"reason": "ContainerCreating"}}, ready=False, phase="Pending"),
            "ContainerCreating",
            [],
        ),
        (
            pod(
                "worker",
                state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                last=terminated(1, "no data"),
                restarts=1,
                ready=False,
            ),
            "CrashLoopBackOff",
            [
                "container tensorflow is waiting: CrashLoopBackOff: back-off 10s",
                "container tensorflow was restarted once; its last run ended with exit code 1: no data",
            ],
        ),
        (
            pod("ps", unschedulable="0/2 nodes", phase="Pending", state={}, ready=False),
            "Unschedulable",
            ["Unschedulable: 0/2 nodes"],
        ),
        (
            pod("ps", ready=False),
            "Running",
            ["running, but not ready: its server does not respond, or is not in sync"],
        ),
        (pod("worker", ready=False), "Running", ["running, but not ready: its launcher waits, or its probe fails"]),
    ],
)
def test_the_description_of_a_pod(made: Object, state: str, words: list[str]) -> None:
    assert why_of(made) == (state, words)


def test_a_pod_deadline_set_by_the_operator_does_not_hide_success() -> None:
    made = pod("chief", term=1, state=terminated(0), phase="Failed", ready=False)
    made["spec"]["activeDeadlineSeconds"] = 1
    made["status"] |= {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than ..."}
    assert why_of(made) == ("Succeeded", [])


def test_init_containers_and_evictions_are_reported() -> None:
    failing = {"name": "fetch", "restartCount": 0, "state": terminated(4, "no such bucket")}
    created = pod("worker", state={"waiting": {"reason": "PodInitializing"}}, ready=False, phase="Pending")
    assert why_of(created, initContainerStatuses=[failing]) == (
        "Error",
        ["init container fetch ended with exit code 4: no such bucket"],
    )
    evicted = pod("worker", phase="Failed", ready=False, state={})
    message = "The node was low on\nresource: memory."
    assert why_of(evicted, reason="Evicted", message=message) == (
        "Evicted",
        ["Evicted: The node was low on resource: memory."],
    )


def test_a_waiting_pod_without_a_message_is_explained_by_its_events() -> None:
    world = running()
    (silent,) = (p for p in world.pods.values() if p["metadata"]["labels"].get("pstraining.dev/index") == "1")
    silent["status"] = pod("worker", 1, state={"waiting": {"reason": "ContainerCreating"}}, ready=False)["status"]
    silent["status"]["phase"] = "Pending"
    cluster = of(world)
    cluster.there_events[silent["metadata"]["uid"]] = [
        event("FailedMount", 'secret "keys" not found', seconds=9, kind="Warning"),
        event("FailedMount", "an older one", seconds=3, kind="Warning"),
        event("Scheduled", "somewhere", seconds=10),
    ]
    workers = role(overview.look(cluster, "default", "digits"), "worker")["pods"]
    assert [p["why"] for p in workers] == [[], ['FailedMount: secret "keys" not found']]


def test_tasks_without_a_pod_are_named_unless_possibly_finished() -> None:
    world = running(worker={"replicas": 3})
    assert world.job is not None
    gone = [name for name, p in world.pods.items() if p["metadata"]["labels"].get("pstraining.dev/index") == "2"]
    for name in gone:
        del world.pods[name]
    assert role(look(world), "worker")["withoutPod"] == ["worker-2"]
    assert "no pod: worker-2" in rendered(tree(look(world), NOW))
    done = copy.deepcopy(world)
    assert done.job is not None
    done.job["status"]["worker"]["succeeded"] = 1
    assert role(look(done), "worker")["withoutPod"] == []
    world.job["status"]["replicaRecords"] = [{"role": "worker", "index": 2, "givenUp": True}]
    found = role(look(world), "worker")
    assert (found["withoutPod"], found["givenUp"]) == ([], ["worker-2"])
    world.job["status"]["replicaRecords"] = []
    world.job["status"]["packedRecords"] = [{"role": "worker", "indexes": "0-2", "givenUp": "2"}]
    assert role(look(world), "worker")["givenUp"] == ["worker-2"]


def test_the_last_failure_of_a_role_is_shown() -> None:
    world = running()
    world.end("chief", code=1, message="NameError: x")
    world.settle()
    found = look(world)
    assert role(found, "chief")["lastFailure"]["exitCode"] == 1
    assert "exit code 1" in rendered(tree(found, world.now))
    assert "NameError: x" in rendered(tree(found, world.now))


def test_only_the_jobs_own_pods_are_shown() -> None:
    world = running()
    world.pods["former"] = pod("worker", 0, job_uid="of a job of the same name")
    assert len(role(look(world), "worker")["pods"]) == 2


def test_the_newest_events_come_last() -> None:
    world = running()
    assert world.job is not None
    cluster = of(world)
    made = [event(f"E{n}", "m", seconds=n) for n in (8, 1, 2, 3, 4)]
    late = {"lastObservedTime": stamp(NOW + timedelta(seconds=30)), "count": 7}
    made += [event("Again", "m", series=late), event("Old", "m", eventTime=None, lastTimestamp=stamp(NOW), count=2)]
    cluster.there_events[world.job["metadata"]["uid"]] = made
    events = overview.look(cluster, "default", "digits")["events"]
    assert [(e["reason"], e["count"]) for e in events] == [("E2", 1), ("E3", 1), ("E4", 1), ("E8", 1), ("Again", 7)]
    assert "Again (x7): m" in rendered(tree(overview.look(cluster, "default", "digits"), NOW))


def notes(made: Object) -> list[str]:
    found: list[str] = overview.look(WithJobs(made), "default", "digits")["notes"]
    return found


def test_fields_that_the_status_does_not_have_yet_are_noted() -> None:
    assert notes(running().job or {}) == []
    new = job()
    assert "Check that it is running" in notes(new)[0]
    assert overview.summary(new)["phase"] == "Unknown"
    changed = running().job or {}
    changed["metadata"]["generation"] += 1
    assert "has not processed the last change" in notes(changed)[0]
    assert "is being deleted" in notes(job() | {"metadata": job()["metadata"] | {"deletionTimestamp": stamp(NOW)}})[0]
    assert "other.dev/operator manages" in notes(job(spec={"runPolicy": {"managedBy": "other.dev/operator"}}))[0]
    assert "to another cluster" in notes(job(spec={"managedBy": "kueue.x-k8s.io/multikueue"}))[0]


def conditions(**held: str) -> Object:
    reported = [{"type": t, "status": s, "reason": f"{t}Reason", "message": "why\nso"} for t, s in held.items()]
    return job() | {"status": {"conditions": reported}}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({}, ""),
        ({"Running": "True"}, ""),
        ({"Running": "False"}, "RunningReason: why so"),
        ({"Running": "False", "Succeeded": "True"}, ""),
        ({"Running": "False", "Failed": "True"}, "FailedReason: why so"),
        ({"Running": "False", "Suspended": "True"}, "SuspendedReason: why so"),
        ({"Running": "True", "Degraded": "True"}, "DegradedReason: why so"),
        ({"Running": "True", "Rescaling": "True"}, "RescalingReason: why so"),
        ({"Running": "True", "Updating": "True"}, "UpdatingReason: why so"),
        ({"Running": "True", "Updating": "True", "Degraded": "True"}, "DegradedReason: why so"),
        ({"Running": "True", "Updating": "False"}, ""),
    ],
)
def test_the_reason_is_one_line(held: dict[str, str], said: str) -> None:
    assert why(conditions(**held)) == said


def test_a_rejected_change_of_servers_is_reported_until_the_next_change() -> None:
    found = conditions(Running="True", Updating="False")
    found["status"]["conditions"][1]["reason"] = "UpdateRefused"
    assert why(found) == "UpdateRefused: why so"


@pytest.mark.parametrize(
    ("name", "namespace", "there", "said"),
    [
        ("digitz", "default", ["digits", "other"], "Did you mean digits?"),
        ("zzz", "default", ["digits", "other"], "Jobs in this namespace: digits, other."),
        ("digits", "team", ["digits"], "The namespace has no jobs."),
    ],
)
def test_a_missing_job(name: str, namespace: str, there: list[str], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        overview.look(WithJobs(*(job(n) for n in there)), namespace, name)
    assert str(caught.value) == f"There is no PSTrainingJob {name} in namespace {namespace}. {said}"


def test_without_the_right_to_list_jobs_a_missing_job_is_still_reported() -> None:
    class NoLists(WithJobs):
        def jobs(self, namespace: str | None) -> list[Object]:
            raise DeniedError("no", 403)

    with pytest.raises(CommandError) as caught:
        overview.look(NoLists(), "default", "digits")
    assert str(caught.value) == "There is no PSTrainingJob digits in namespace default."


def test_an_empty_name() -> None:
    with pytest.raises(CommandError, match="name is empty"):
        overview.look(WithJobs(job()), "default", "")


def test_the_first_of_many_names_are_listed() -> None:
    assert listed("abcdefghijkl") == "a, b, c, d, e, f, g, h, i, j and 2 more"


def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: WithJobs, **arguments: Any
) -> str:
    monkeypatch.setattr(status, "KubeconfigClient", lambda context: cluster)
    status.status(**arguments)
    return capsys.readouterr().out


def test_the_command_prints_tables_trees_and_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = running().job or {}, job("other")
    other["metadata"]["namespace"] = "team"
    show = partial(shown, monkeypatch, capsys, WithJobs(one, other))
    assert show().splitlines()[1].split()[:2] == ["digits", "Running"]
    assert len(show().splitlines()) == 2
    assert [row.split()[:3] for row in show(all_namespaces=True).splitlines()[1:]] == [
        ["default", "digits", "Running"],
        ["team", "other", "Unknown"],
    ]
    assert show(jobs=["digits"]).startswith("digits  Running  namespace default")
    assert json.loads(show(jobs=["digits"], output=Output.JSON))["name"] == "digits"
    assert [j["name"] for j in yaml.safe_load(show(namespace="team", output=Output.YAML))["items"]] == ["other"]
    assert show(namespace="nobody") == "No PSTrainingJobs in namespace nobody.\n"
    none = {"apiVersion": "cli.pstraining.dev/v1alpha1", "kind": "JobSummaryList", "items": []}
    assert json.loads(show(namespace="nobody", output=Output.JSON)) == none


def test_all_namespaces_and_one_job_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="remove the job's name and --namespace"):
        status.status(jobs=["digits"], all_namespaces=True)


def test_measured_usage_of_a_role_is_shown_beside_its_size() -> None:
    world = running(ps={"resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "2"}}})
    assert world.job is not None
    assert role(look(world), "ps")["sizing"] == ""
    sizing = {"peakMemory": "800Mi", "recommendedMemory": "960Mi", "recommendedCPU": "430m"}
    world.job["status"]["autoscaling"] = [{"role": "ps", **sizing}]
    expected = "memory: measured peak 800Mi, recommended limit 960Mi, now 1Gi; CPU: recommended request 430m, now 2"
    assert role(look(world), "ps")["sizing"] == expected
    assert expected in rendered(tree(look(world), world.now), 200)
    world.job["status"]["autoscaling"] = [{"role": "ps", "message": "no room.", "atMaximum": True}]
    assert role(look(world), "ps")["sizing"] == "no room; it needs more memory than its maximum"
