"""The PodGroup of a gang, and the fields by which a pod becomes a member."""

from typing import Any

import pytest

from pstraining.api.run_policy import Gang
from pstraining.resources import gang, pods
from pstraining.resources.gang import PROVIDERS, GangMembers
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.layout import with_shards
from pstraining.resources.pods import PodTask
from tests.support.builders import TEMPLATE, deep_merge, job, typed

TASKS = (
    PodTask("ps"),
    PodTask("ps", member=1),
    PodTask("worker", 3),
    PodTask("chief", term=1),
    PodTask("evaluator", term=1),
)
MARKS = {
    Gang.SCHEDULER_PLUGINS: ("labels", "scheduling.x-k8s.io/pod-group", "scheduler-plugins-scheduler"),
    Gang.VOLCANO: ("annotations", "scheduling.k8s.io/group-name", "volcano"),
}


def policy(gang: str | None, **fields: Any) -> dict[str, Any]:
    return {"runPolicy": {"schedulingPolicy": ({"gang": gang} if gang else {}) | fields}}


def group(spec: dict[str, Any], members: GangMembers | None = None, *, ps: int = 1, workers: int = 2) -> dict[str, Any]:
    made = typed(job(spec=spec, ps=ps, workers=workers))
    scheduler = gang.provider(made)
    assert scheduler is not None
    members = members or gang.members(made)
    return gang.build(made, scheduler, members, pods.gang_requests(made, members))


@pytest.mark.parametrize("gang", MARKS)
@pytest.mark.parametrize("task", TASKS)
def test_the_scheduler_is_in_every_template(gang: Gang, task: PodTask) -> None:
    field, mark, name = MARKS[gang]
    made = pods.build(typed(job(spec=policy(gang))), task, LauncherMap("l"))
    assert made["metadata"][field][mark] == "digits"
    assert made["spec"]["schedulerName"] == name
    assert group(policy(gang))["metadata"]["name"] == "digits"


@pytest.mark.parametrize("task", TASKS)
def test_without_a_gang_no_template_names_a_group(task: PodTask) -> None:
    made = pods.build(typed(job()), task, LauncherMap("l"))
    assert "schedulerName" not in made["spec"]
    marks = {mark for _, mark, _ in MARKS.values()}
    assert not marks & {*made["metadata"]["labels"], *made["metadata"]["annotations"]}
    assert gang.provider(typed(job())) is None


def test_a_template_that_names_a_scheduler_is_left_alone() -> None:
    template = deep_merge(TEMPLATE, {"spec": {"schedulerName": "mine"}, "metadata": {"labels": {"a": "b"}}})
    spec = policy("SchedulerPlugins") | {"worker": {"template": template}}
    made = pods.build(typed(job(spec=spec)), PodTask("worker", 0), LauncherMap("l"))
    assert made["spec"]["schedulerName"] == "mine"
    assert made["metadata"]["labels"].items() >= {"a": "b", "scheduling.x-k8s.io/pod-group": "digits"}.items()


@pytest.mark.parametrize(
    ("spec", "members"),
    [
        ({}, GangMembers(2, 1, 5)),
        ({"chief": {"enabled": False}}, GangMembers(2, 0, 5)),
        ({"worker": {"minReplicas": 2}}, GangMembers(2, 1, 2)),
        ({"worker": {"minReplicas": 2}, **policy("Volcano", minAvailable=7)}, GangMembers(2, 1, 4)),
        (
            {"worker": {"minReplicas": 2}, "chief": {"enabled": False}, **policy("Volcano", minAvailable=7)},
            GangMembers(2, 0, 5),
        ),
        # A job trains without these pods, so they are not waited for.
        (
            {"ps": {"standby": {"mode": "Warm", "replicasPerShard": 2}}, "evaluator": {"enabled": True}},
            GangMembers(2, 1, 5),
        ),
    ],
)
def test_members(spec: dict[str, Any], members: GangMembers) -> None:
    assert gang.members(typed(job(spec=spec, ps=2, workers=5))) == members
    assert group(deep_merge(policy("Volcano"), spec), ps=2, workers=5)["spec"]["minMember"] == members.count


@pytest.mark.parametrize(("servers", "workers"), [(1, 5), (3, 3), (4, 2), (9, 2)])
def test_servers_that_were_added_take_the_place_of_no_worker_that_the_job_needs(servers: int, workers: int) -> None:
    """The number of servers in the spec is 2, by which minAvailable was checked."""
    made = typed(job(spec={"worker": {"minReplicas": 2}, **policy("Volcano", minAvailable=7)}, ps=2, workers=5))
    assert gang.members(with_shards(made, servers)) == GangMembers(servers, 1, workers)


def test_the_members_requests_are_summed() -> None:
    def template(**resources: Any) -> dict[str, Any]:
        container = deep_merge(TEMPLATE["spec"]["containers"][0], {"resources": {"requests": resources}})
        return {"spec": {"containers": [container]}}

    spec = policy("Volcano") | {
        "worker": {"template": template(cpu="2", memory="1Gi", **{"nvidia.com/gpu": 1}), "minReplicas": 3},
        "ps": {"resources": {"requests": {"cpu": "500m"}}},
        "chief": {"resources": {"limits": {"memory": "3Gi"}}},
    }
    found = group(spec, ps=2, workers=5)["spec"]
    # 3 workers, 2 parameter servers, a chief.
    assert found["minResources"] == {"cpu": "7", "memory": str(6 * 2**30), "nvidia.com/gpu": "3"}
    assert found["minMember"] == 6
    some = group(spec, GangMembers(2, 0, 1), ps=2, workers=5)["spec"]
    assert (some["minMember"], some["minResources"]["cpu"]) == (3, "3")


def test_scheduler_plugins_get_no_resource_totals() -> None:
    """scheduler-plugins get no resource totals: with them a waiting gang notices free room only after minutes
    (tests/e2e/test_gang.py).
    """
    spec = policy("SchedulerPlugins") | {"ps": {"resources": {"requests": {"cpu": "1"}}}}
    assert group(spec)["spec"] == {"minMember": 4}


def test_pods_without_requests_have_a_group_without_requests() -> None:
    assert group(policy("Volcano"))["spec"] == {"minMember": 4}


def test_a_group_has_one_member_at_least() -> None:
    assert group(policy("SchedulerPlugins"), GangMembers(0, 0, 0))["spec"]["minMember"] == 1


def test_scheduler_plugins_get_the_timeout() -> None:
    found = group(policy("SchedulerPlugins", timeoutSeconds=90, priorityClass="high"))
    assert (found["apiVersion"], found["kind"]) == ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
    assert found["spec"] == {"minMember": 4, "scheduleTimeoutSeconds": 90}


def test_volcano_gets_queue_and_priority() -> None:
    found = group(policy("Volcano", queue="research", priorityClass="high"))
    assert (found["apiVersion"], found["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert found["spec"] == {"minMember": 4, "queue": "research", "priorityClassName": "high"}


def test_the_group_is_the_jobs_child() -> None:
    metadata = group(policy("Volcano"))["metadata"]
    assert metadata["ownerReferences"][0]["controller"] is True
    assert metadata["labels"]["pstraining.dev/job-uid"] == metadata["ownerReferences"][0]["uid"]


def test_every_gang_has_a_provider() -> None:
    assert {*PROVIDERS, Gang.NONE} == {*Gang}
