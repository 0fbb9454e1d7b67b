"""`wait`: the conditions that it can wait for, and the events that do and do not end it."""

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import typer

from pstraining.api.conditions import Condition
from pstraining.cli.commands import wait
from pstraining.cli.commands.scale import scale_to
from pstraining.cli.commands.submit import apply, awaited
from pstraining.cli.commands.suspend import set_suspended
from pstraining.cli.commands.wait import GOALS, goal_of
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.waiting import SELDOM, Patience, follow, running_or_ended
from pstraining.core.actions import Create
from tests.support.builders import NOW, job, stamp
from tests.support.cli_cluster import WithJobs
from tests.support.job_cluster import JobCluster, Object
from tests.support.simulation import World, phase, running

USAGE: type[Exception] = typer.BadParameter


class Lived(JobCluster):
    """Applies an event at each of its moments."""

    def __init__(self, world: World, happens: dict[int, Callable[[], None]]) -> None:
        super().__init__(world)
        self.happens = happens
        self.error: RequestError | None = None
        self.looks = 0

    def job(self, namespace: str, name: str) -> Object | None:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return super().job(namespace, name)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for moment in [m for m in self.happens if m <= self.now]:
            self.happens.pop(moment)()
            if not self.away and self.world.job is not None:
                self.world.settle()

    def wait(self, goal: str = "end", seconds: float = 3600) -> str:
        job = super().job("default", "digits")
        assert job is not None
        return follow(self, job, goal_of(goal), Patience(seconds, lambda: self.now, self.sleep, self.reported.append))


def lived(world: World | None = None, **happens: Callable[[], None]) -> Lived:
    """Return a job with events: t5 happens after five seconds."""
    return Lived(world or running(), {int(moment[1:]): what for moment, what in happens.items()})


def ending(code: int) -> Lived:
    world = running()
    return lived(world, t60=lambda: world.end("chief", code=code, message="NameError: x"))


def code_of(wait: Callable[[], object], words: str) -> ExitCode:
    with pytest.raises(CommandError, match=words) as caught:
        wait()
    return caught.value.code


def test_wait_ends_with_the_job_and_distinguishes_success_from_failure() -> None:
    good, bad = ending(0), ending(78)
    assert good.wait() == "digits has succeeded."
    assert good.reported[0] == "digits: Running: Every parameter server is ready and the chief runs."
    assert code_of(bad.wait, "digits has failed: .*NameError: x") is ExitCode.JOB_FAILED
    assert bad.now < 60 + 2 * SELDOM
    assert bad.looks < 30, "the longer it waits, the less often it asks"


def test_a_deleted_or_recreated_job_ends_the_wait() -> None:
    gone, other = lived(), lived()
    gone.happens = {5: lambda: setattr(gone.world, "job", None)}
    assert code_of(gone.wait, "digits was deleted in the meantime") is ExitCode.JOB_DELETED
    assert other.world.job is not None
    metadata = other.world.job["metadata"]
    other.happens = {5: lambda: metadata.update(uid="another")}
    other.away = True
    assert code_of(lambda: other.wait("condition=Suspended"), "deleted") is ExitCode.JOB_DELETED


def test_a_job_that_is_deleted_right_after_its_end_has_ended() -> None:
    """With ttlSecondsAfterFinished 0 the operator deletes it in its next pass, before the command looks again."""
    for code, expected in ((0, None), (78, ExitCode.JOB_FAILED)):
        world = running(runPolicy={"ttlSecondsAfterFinished": 0})
        cluster = lived(world, t60=partial(world.end, "chief", code=code, message="NameError: x"))
        if expected is None:
            assert cluster.wait() == "digits has succeeded. It was deleted afterwards."
        else:
            assert code_of(cluster.wait, "digits has failed: .*NameError: x") is expected
        assert world.job is None


def test_a_deleted_job_without_a_known_end() -> None:
    world = running(runPolicy={"ttlSecondsAfterFinished": 0})
    cluster = lived(world, t5=lambda: setattr(world, "job", None))
    said = "Whether it had ended before is not known: no event reports it.*ttlSecondsAfterFinished: 0"
    assert code_of(cluster.wait, said) is ExitCode.JOB_DELETED


def test_a_deleted_job_whose_events_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(runPolicy={"ttlSecondsAfterFinished": 0})
    cluster = lived(world, t5=lambda: setattr(world, "job", None))
    denied = DeniedError("You may not list events.", 403)
    monkeypatch.setattr(cluster, "events", mock.Mock(side_effect=denied))
    assert code_of(cluster.wait, "is not known: You may not list events") is ExitCode.JOB_DELETED


def test_a_short_outage_of_the_api_server_does_not_end_the_wait() -> None:
    cluster = ending(0)
    cluster.happens[5] = lambda: setattr(cluster, "error", RequestError("No answer."))
    cluster.happens[20] = lambda: setattr(cluster, "error", RequestError("Busy.", 429))
    cluster.happens[40] = lambda: setattr(cluster, "error", None)
    assert cluster.wait() == "digits has succeeded."
    assert cluster.reported[1:4] == ["No answer. Retrying.", "Busy. Retrying.", cluster.reported[0]]
    away = lived(t5=lambda: setattr(away, "error", RequestError("No answer.")))
    assert code_of(lambda: away.wait(seconds=30), r"timed out after 30 s\. No answer") is ExitCode.TIMED_OUT
    assert away.now == 30
    denied = lived(t5=lambda: setattr(denied, "error", DeniedError("You may not", 403)))
    assert code_of(denied.wait, "You may not") is ExitCode.ERROR


@pytest.mark.parametrize(
    ("manager", "said"),
    [
        (
            "pstraining.dev/operator",
            "pstraining.dev/operator has not processed the job yet. Check that it is running, with "
            "`kubectl pstraining doctor -n default`.",
        ),
        (
            "kueue.x-k8s.io/multikueue",
            "Kueue has not reported the job's state in another cluster yet. Look at its Workload, with "
            "`kubectl get workloads -n default`.",
        ),
    ],
)
def test_a_wait_for_a_job_that_no_operator_processes_says_so_once(manager: str, said: str) -> None:
    cluster = Sent(managedBy=manager)
    del cluster.there[0]["status"]
    reported: list[str] = []
    moments: list[float] = [0.0]

    def sleep(seconds: float) -> None:
        moments.append(moments[-1] + seconds)

    patience = Patience(100, lambda: moments[-1], sleep, lambda line: reported.append(f"{moments[-1]:.0f}: {line}"))
    found = code_of(lambda: follow(cluster, cluster.there[0], goal_of("end"), patience), re.escape(said))
    assert found is ExitCode.TIMED_OUT
    (report,) = reported
    moment, _, line = report.partition(": ")
    assert 30 <= int(moment) < 30 + SELDOM
    assert line == said


def test_running_and_conditions() -> None:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    cluster = lived(world, t30=lambda: world.edit({"runPolicy": {"suspend": False}}))
    assert cluster.wait("condition=suspended") == "digits: condition Suspended is True."
    assert cluster.wait("running") == "digits is running.", "a suspended job does not run"
    assert cluster.wait("condition=Degraded=false") == "digits: condition Degraded is False."
    assert code_of(lambda: lived().wait("condition=Suspended", 9), "timed out after 9 s") is ExitCode.TIMED_OUT


@pytest.mark.parametrize(
    ("goal", "code", "expected"),
    [
        ("condition=Failed", 0, ExitCode.ERROR),
        ("condition=Running=Unknown", 0, ExitCode.ERROR),
        ("condition=Suspended", 78, ExitCode.JOB_FAILED),
    ],
)
def test_the_end_of_a_job_ends_every_wait(goal: str, code: int, expected: ExitCode) -> None:
    assert code_of(lambda: ending(code).wait(goal), r"digits has ended \(.*, and its condition") is expected


def test_the_end_of_a_job_may_be_the_goal() -> None:
    assert ending(78).wait("condition=Failed") == "digits: condition Failed is True."
    assert ending(0).wait("condition=Running=False") == "digits: condition Running is False."


@pytest.mark.parametrize("goal", ["end", "running", "condition=Created", "condition=Running", "condition=Succeeded"])
def test_an_invalid_job_ends_the_waits_that_it_cannot_reach(goal: str) -> None:
    made = job()
    held = {"InvalidTemplate": "True", "Running": "False", "Created": "False"}
    conditions = [{"type": kind, "status": status, "message": "imge is no field"} for kind, status in held.items()]
    made["status"] = {"observedGeneration": 1, "phase": "Invalid", "conditions": conditions}

    def waited(goal: str) -> str:
        return follow(WithJobs(made), made, goal_of(goal), Patience(0))

    assert code_of(lambda: waited(goal), "digits cannot start: imge is no field") is ExitCode.JOB_FAILED
    for other in ("condition=InvalidTemplate=False", "condition=Suspended", "condition=Failed"):
        assert code_of(partial(waited, other), "timed out") is ExitCode.TIMED_OUT


def with_refused_worker() -> World:
    """Return a job that trains, while the API server refuses a further worker."""
    world = running(failurePolicy={"rules": [{"role": "worker", "action": "RestartJob"}]})
    world.refuse = lambda action: "must be at least requests" if isinstance(action, Create) else ""
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    assert phase(world) == "Invalid"
    return world


@pytest.mark.parametrize("goal", ["end", "condition=Succeeded"])
def test_a_job_that_trains_without_its_refused_change_is_awaited(goal: str) -> None:
    """It ended such a wait with the status of a job that cannot start, and the job succeeded later."""
    world = with_refused_worker()
    cluster = lived(world, t30=lambda: world.delete_pod("ps"), t60=lambda: world.end("chief"))
    expected = "digits has succeeded." if goal == "end" else "digits: condition Succeeded is True."
    assert cluster.wait(goal) == expected
    assert cluster.reported[0].startswith("digits: Invalid: Deployment digits-worker-2 was refused: must be")
    assert lived(with_refused_worker()).wait("running") == "digits is running."


def test_a_job_that_restarts_as_a_whole_after_a_refused_change_ends_the_wait() -> None:
    """It stops, and waits for the correction."""
    world = with_refused_worker()
    found = code_of(lived(world, t30=lambda: world.end("worker", 1, 3)).wait, r"digits cannot start: .* was refused")
    assert found is ExitCode.JOB_FAILED
    assert not world.pods


def test_a_refused_change_is_the_result_of_its_command() -> None:
    world = with_refused_worker()
    submitted = JobCluster(world)
    stored = submitted.job("default", "digits")
    assert stored is not None
    patience = Patience(30, lambda: submitted.now, submitted.sleep)
    refused = "digits continues without its last change: Deployment digits-worker-2 was refused"
    assert code_of(lambda: awaited(submitted, stored, patience), refused) is ExitCode.JOB_FAILED
    assert code_of(lambda: scale_to(submitted, ["digits"], 3, patience=patience), refused) is ExitCode.JOB_FAILED


def test_a_changed_job_in_another_cluster_ends_the_wait() -> None:
    made = job(spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    made["metadata"]["generation"] = 3
    done = {"type": "Succeeded", "status": "True", "reason": "ChiefSucceeded", "message": ""}
    # The other cluster's copy of the job, whose status is copied back, was created anew: its generation is 1.
    made["status"] = {"observedGeneration": 1, "phase": "Succeeded", "conditions": [done]}
    assert follow(WithJobs(made), made, goal_of("end"), Patience(0)) == "digits has succeeded."
    made["spec"].pop("managedBy")
    assert code_of(lambda: follow(WithJobs(made), made, goal_of("end"), Patience(0)), "timed out") is ExitCode.TIMED_OUT
    days = Patience(1_209_600, iter([0.0, 2e6]).__next__)
    assert code_of(lambda: follow(WithJobs(made), made, goal_of("end"), days), "timed out after 1209600 s")


def test_a_changed_job_runs_in_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    made["metadata"]["generation"] = 3
    runs = {"type": "Running", "status": "True", "reason": "Training", "message": ""}
    made["status"] = {"observedGeneration": 1, "phase": "Running", "conditions": [runs]}
    monkeypatch.setattr(wait, "KubeconfigClient", lambda context: WithJobs(made))
    wait.wait(["digits"], "running", timeout=0)
    del made["status"]
    assert code_of(lambda: wait.wait(["digits"], "running", timeout=0), "timed out") is ExitCode.TIMED_OUT


class Sent(WithJobs):
    """Has a job in another cluster, whose status is copied back as that of a new copy once the command waits."""

    def __init__(self, **spec: Any) -> None:
        made = job(spec={"managedBy": "kueue.x-k8s.io/multikueue", **spec})
        made["status"] = copy_of(desired=2)
        super().__init__(made)
        self.asked = 0

    def change(self, *_: Any, **__: Any) -> Object:
        self.there[0] = copy.deepcopy(self.there[0])
        self.there[0]["metadata"]["generation"] += 1
        return self.there[0]

    patch = change

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        self.change()

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        found = self.change()
        found["spec"] = job["spec"]
        found["metadata"]["labels"] = job["metadata"].get("labels", {})
        return found

    def sleep(self, seconds: float) -> None:
        self.asked += 1
        later = copy_of(desired=3, startTime="2030-01-01T12:05:00Z") if self.asked > 1 else {}
        self.there[0] = {**self.there[0], "status": later}


def copy_of(desired: int, **status: Any) -> Object:
    """Return the status of a copy in another cluster, which was created there: its generation is 1."""
    runs = {"type": "Running", "status": "True", "reason": "Training", "message": ""}
    worker = {"desired": desired, "replicas": desired, "ready": desired}
    return {"observedGeneration": 1, "conditions": [runs], "startTime": stamp(NOW), "worker": worker} | status


def test_commands_wait_for_the_new_copy_of_a_job_that_they_have_changed() -> None:
    def patience(cluster: Sent) -> Patience:
        return Patience(9, lambda: float(cluster.asked), cluster.sleep)

    def submitted(cluster: Sent) -> None:
        changed = apply(
            cluster, job(spec=dict(cluster.there[0]["spec"], ps={"replicas": 3})), dry_run=False, force=False
        )
        assert follow(cluster, changed, running_or_ended, patience(cluster)) == "digits is running."

    def given_a_priority(cluster: Sent) -> None:
        made = job(spec=cluster.there[0]["spec"])
        made["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "high"}
        changed = apply(cluster, made, dry_run=False, force=False)
        assert awaited(cluster, changed, patience(cluster)) == "digits is running."

    def scaled(cluster: Sent) -> None:
        scale_to(cluster, ["digits"], 3, None, patience(cluster))

    def resumed(cluster: Sent) -> None:
        set_suspended(cluster, ["digits"], False, None, patience(cluster))

    commands: list[tuple[Sent, Callable[[Sent], None]]] = [
        (Sent(), scaled),
        (Sent(), submitted),
        (Sent(), given_a_priority),
        (Sent(runPolicy={"suspend": True}), resumed),
    ]
    for cluster, command in commands:
        command(cluster)
        assert cluster.asked == 2, "the status of the former copy does not count"


def test_a_suspended_job_of_another_cluster_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Sent(runPolicy={"suspend": True})
    scale_to(cluster, ["digits"], 3, None, Patience(0))
    assert "digits is suspended and will start its workers when it resumes." in capsys.readouterr().out
    changed = apply(cluster, job(spec=dict(cluster.there[0]["spec"], ps={"replicas": 3})), dry_run=False, force=False)
    assert awaited(cluster, changed, Patience(0)) == "digits is suspended."
    assert not cluster.asked


def test_a_default_that_is_written_out_does_not_send_a_job_again() -> None:
    cluster = Sent()
    written = dict(cluster.there[0]["spec"], chief={"enabled": True})
    changed = apply(cluster, job(spec=written), dry_run=False, force=False)
    assert awaited(cluster, changed, Patience(0)) == "digits is running."


def test_commands_that_change_nothing_take_the_status_of_a_copy_as_it_is() -> None:
    cluster = Sent()
    cluster.there[0]["metadata"]["generation"] = 4
    scale_to(cluster, ["digits"], 2, None, Patience(0))
    set_suspended(cluster, ["digits"], False, None, Patience(0))
    assert not cluster.asked


def test_the_pods_of_a_suspended_job_in_another_cluster_are_not_awaited() -> None:
    cluster = Sent()
    suspended = partial(
        set_suspended, cluster, ["digits"], True, None, Patience(9, lambda: float(cluster.asked), cluster.sleep)
    )
    assert code_of(suspended, "their end is not reported here") is ExitCode.ERROR


def test_goals() -> None:
    assert {f"condition={kind}" for kind in Condition} < {*GOALS}
    for goal, words in (
        ("condition=Done", "did you mean condition="),
        ("conditoin=Failed", "did you mean condition=Failed"),
        ("condition=Failed=Maybe", "did you mean condition=Failed"),
        ("delete", "it takes end, running, or one of condition=Created, "),
    ):
        with pytest.raises(USAGE, match=words):
            goal_of(goal)
