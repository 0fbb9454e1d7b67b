"""`plan --live` plans as the operator in the cluster does: with Kueue or without it, and beside other managers."""

from typing import Any

import pytest
from rich.console import Console

from pstraining.cli.commands.plan import picture, report
from pstraining.cli.errors import ConflictError, DeniedError, RequestError
from pstraining.cli.planning.planned import Planned, planned_for
from pstraining.core.actions import Kind
from pstraining.kube.paths import RESOURCES
from tests.support import simulation
from tests.support.builders import deep_merge, job
from tests.support.copying import copied
from tests.support.installation import deployment
from tests.support.job_cluster import JobCluster
from tests.support.queued_world import QUEUE, QueuedWorld, queued, running
from tests.support.simulation import World

KUEUE, QUEUE_OF_NAMESPACE = f"/{RESOURCES[Kind.WORKLOAD].api}", RESOURCES[Kind.LOCAL_QUEUE].path("default", "default")
LABEL = "kueue.x-k8s.io/queue-name"
ASSUMED = "Whether the operator has kueue.enabled is unknown: the plan assumes"
Denied = tuple[str, ...]


class LiveCluster(JobCluster):
    """A cluster with a job, in which Kueue and the operator's Deployment can be asked about."""

    def __init__(
        self,
        world: World,
        *,
        is_served: bool = True,
        enabled: bool | None = True,
        denied: Denied = (),
        default: bool = False,
    ) -> None:
        super().__init__(world)
        self.denied = denied
        operator = deployment()
        operator["spec"]["template"]["spec"]["containers"][0]["env"].append(
            {"name": "PSTRAINING_KUEUE", "value": "true" if enabled else ""}
        )
        self.operators = [] if enabled is None else [operator]
        workloads = {"name": "workloads", "verbs": ["get", "create"]}
        self.paths: dict[str, Any] = {KUEUE: {"resources": [workloads]}} if is_served else {}
        if default:
            self.paths[QUEUE_OF_NAMESPACE] = {"metadata": {"name": "default"}}
        self.foreign: tuple[str, ...] = ()

    def read(self, path: str) -> Any:
        self._check(path)
        if path == KUEUE and path not in self.paths:
            raise RequestError(f"There is nothing at {path}", 404)
        return self.paths.get(path)

    def listed(self, path: str, **query: str) -> list[dict[str, Any]]:
        self._check(path)
        return self.operators if path == "/apis/apps/v1/deployments" else super().listed(path, **query)

    def apply(self, job: dict[str, Any], *, dry_run: bool = False, force: bool = False) -> dict[str, Any]:
        if self.foreign and not force:
            raise ConflictError("Conflict", 409, self.foreign)
        return super().apply(job, dry_run=dry_run, force=force)

    def _check(self, path: str) -> None:
        if any(path.endswith(f"/{word}") for word in self.denied):
            raise DeniedError(f"You may not read {path}.")


def plan(cluster: LiveCluster, like: World, **metadata: Any) -> Planned:
    """Plan the job of a world, as its user would send it."""
    assert like.job is not None
    sent = {key: copied(like.job[key]) for key in ("apiVersion", "kind", "metadata", "spec")}
    sent["metadata"] = deep_merge({"name": "digits", "namespace": "default"}, metadata)
    labels = like.job["metadata"].get("labels")
    sent["metadata"].setdefault("labels", copied(labels) if labels else {})
    return planned_for(cluster, sent, like.now)


def done(planned: Planned) -> list[tuple[str, str, str]]:
    return [(a["action"], a["kind"], a["details"]) for a in report(planned, None)["actions"]]


def text(planned: Planned) -> str:
    console = Console(width=200)
    with console.capture() as said:
        console.print(picture(planned, None))
    return said.get()


def nowhere(world: QueuedWorld) -> QueuedWorld:
    """Return a world without its job."""
    return QueuedWorld(None, installation=world.installation)


def test_a_new_job_with_a_queue_first_gets_its_workload() -> None:
    world = queued(worker={"resources": {"requests": {"cpu": 2}}}, ps={"resources": {}}, chief={"resources": {}})
    planned = plan(LiveCluster(nowhere(world)), world)
    assert done(planned) == [("create", "Workload", "for 4 pods, 4 CPU in total")]
    assert (planned.queue, planned.notes) == (QUEUE, ())
    assert f"The job waits in the queue {QUEUE}: " in text(planned)


def test_a_gang_is_planned_without_the_right_to_read_its_group() -> None:
    """Kubernetes' role `edit` may not list PodGroups."""
    world = simulation.running(runPolicy={"schedulingPolicy": {"gang": "SchedulerPlugins"}})
    cluster = LiveCluster(world, is_served=False, denied=("podgroups",))
    planned = plan(cluster, world)
    path = RESOURCES[Kind.POD_GROUP].path("default")
    assert planned.actions == ()
    assert planned.notes == (f"You may not read {path}. The plan leaves out the PodGroup of the job's gang.",)
    assert planned.notes[0] in text(planned)


def test_a_job_that_waits_or_runs_in_its_queue_needs_nothing() -> None:
    waiting = queued(quota=0)
    waiting.run()
    planned = plan(LiveCluster(waiting), waiting)
    assert (planned.actions, planned.queue, planned.notes) == ((), QUEUE, ())
    admitted = running()
    planned = plan(LiveCluster(admitted), admitted)
    assert (planned.actions, planned.queue, planned.notes) == ((), "", ())


def test_a_change_for_which_an_admitted_job_queues_again() -> None:
    world = running()
    cluster = LiveCluster(world)
    assert world.job is not None
    changed = copied(world.job)
    changed["spec"]["worker"]["resources"] = {"requests": {"cpu": 2}}
    planned = plan(cluster, QueuedWorld(changed, now=world.now))
    assert {a.kind for a in planned.actions} == {Kind.JOB}, "the chief stops first"
    assert planned.queue == QUEUE
    cluster.apply(changed)
    world.reconcile()
    assert world.writes[-1][0] == "Delete", "as the operator decides"


def test_more_workers_of_an_admitted_job_wait_for_a_slice() -> None:
    world = running()
    assert world.job is not None
    changed = copied(world.job)
    changed["spec"]["worker"]["replicas"] += 1
    planned = plan(LiveCluster(world), QueuedWorld(changed, now=world.now))
    assert [(kind, what) for what, kind, _ in done(planned)] == [("Workload", "create")], "and no Deployment yet"


@pytest.mark.parametrize(
    ("labels", "cluster", "first", "queue", "note"),
    [
        ({LABEL: QUEUE}, {"enabled": False}, "Deployment", "", "the operator ignores queues: the job runs without"),
        ({LABEL: QUEUE}, {"is_served": False}, None, QUEUE, "does not serve Workloads of kueue.x-k8s.io/v1beta2: inst"),
        ({LABEL: QUEUE}, {"enabled": None}, "Workload", QUEUE, f"{ASSUMED} true."),
        ({LABEL: QUEUE}, {"enabled": None, "is_served": False}, "Deployment", "", f"{ASSUMED} false."),
        ({LABEL: QUEUE}, {"denied": ("deployments",)}, "Workload", QUEUE, f"{ASSUMED} true."),
        ({}, {}, "Deployment", "", ""),
        ({}, {"enabled": None}, "Deployment", "", ""),
        (
            {},
            {"denied": ("default",)},
            "Deployment",
            "",
            "localqueues/default. The plan assumes that it does not exist",
        ),
        ({}, {"default": True}, "PSTrainingJob", "default", ""),
        ({}, {"default": True, "enabled": False}, "Deployment", "", ""),
    ],
)
def test_a_new_job_is_planned_with_what_the_cluster_has(
    labels: dict[str, str], cluster: dict[str, Any], first: str | None, queue: str, note: str
) -> None:
    world = queued()
    assert world.job is not None
    world.job["metadata"]["labels"] = labels
    planned = plan(LiveCluster(nowhere(world), **cluster), world)
    assert next((str(action.kind) for action in planned.actions), None) == first
    assert (planned.queue, len(planned.notes)) == (queue, bool(note))
    assert note in "".join(report(planned, None).get("notes", ()))
    assert note in text(planned).replace("\n", " ")
    if first == "PSTrainingJob":
        assert done(planned) == [("correct", "PSTrainingJob", f"label {LABEL}: default")]


def test_priority_classes_that_a_user_may_not_read_are_taken_for_existing() -> None:
    world = queued(runPolicy={"schedulingPolicy": {"priorityClass": "high"}})
    cluster = LiveCluster(nowhere(world), denied=("high",))
    planned = plan(cluster, world)
    assert [kind for _, kind, _ in done(planned)] == ["Workload"]
    assert planned.notes == (
        "You may not read /apis/scheduling.k8s.io/v1/priorityclasses/high. The plan assumes that it exists.",
    )
    cluster.denied = ()
    assert plan(cluster, world).actions == (), "the operator waits for a class that does not exist"


@pytest.mark.parametrize(
    ("status", "reason", "waits"),
    [
        ("False", "Admitted", False),
        ("False", "QueueIgnored", False),
        ("False", "KueueNotInstalled", False),
        ("True", "KueueNotInstalled", True),
        ("False", "Stopping", True),
    ],
)
def test_a_user_without_rights_to_workloads_sees_the_operators_report(status: str, reason: str, waits: bool) -> None:
    world = running()
    assert world.job is not None
    world.job["status"]["conditions"] = [{"type": "Queued", "status": status, "reason": reason}]
    planned = plan(LiveCluster(world, enabled=None, denied=("workloads",)), world)
    assert bool(planned.queue) is waits
    if reason != "QueueIgnored":
        assert planned.notes == (
            f"You may not read {KUEUE}/namespaces/default/workloads. The plan leaves out the job's queue.",
        )


def test_fields_of_other_managers_are_named() -> None:
    world = running()
    cluster = LiveCluster(world)
    cluster.foreign = ("spec.worker.replicas (conflict with hpa)",)
    planned = plan(cluster, world)
    assert planned.exists
    assert planned.notes == (
        "`kubectl pstraining submit` needs --force: other field managers own spec.worker.replicas (conflict with hpa).",
    )


def test_changed_labels_are_changes_too() -> None:
    waiting = queued(quota=0)
    waiting.run()
    planned = plan(LiveCluster(waiting), waiting, labels={LABEL: "team-b"})
    assert [str(change) for change in planned.changes] == [f"metadata.labels.{LABEL}: {QUEUE} -> team-b"]
    assert planned.queue == "team-b"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runPolicy": {"managedBy": "example.com/other"}}, "managedBy leaves the job to example.com/other"),
        ({"successPolicy": "OfALaterVersion"}, "cannot read the job"),
    ],
)
def test_a_plan_without_actions_of_the_operator_says_why(change: dict[str, Any], words: str) -> None:
    world = World(job())
    world.settle()
    assert world.job is not None
    world.job["spec"] = deep_merge(world.job["spec"], change)
    planned = plan(LiveCluster(world), world)
    assert planned.actions == ()
    assert words in text(planned)
