"""`top`: its evaluation of two scrapes of the runtime's metrics, of tasks without metrics, and of other formats."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from pstraining.api import contract
from pstraining.cli.commands import top
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.metrics import samples
from pstraining.cli.metrics.measurement import measure
from pstraining.cli.metrics.rates import Scrape, TaskRates, stragglers, task_rates
from pstraining.cli.metrics.scraping import metrics_port
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.tasks import tasks_of
from pstraining.runtime.telemetry.counters import ChiefCounters, Traffic, WorkerCounters
from pstraining.runtime.telemetry.prometheus import TaskMetrics
from tests.support.builders import job, pod, terminated
from tests.support.cli_cluster import Object, WithJobs

PAGE = Path(__file__).parents[3] / "docs" / "users" / "watch-a-job.md"


def reported(
    *,
    worker: WorkerCounters | None = None,
    chief: ChiefCounters | None = None,
    links: dict[str, Traffic] | None = None,
    devices: dict[str, int] | None = None,
) -> str:
    """Return the metrics that the runtime serves."""
    registry = CollectorRegistry(auto_describe=False)
    counts: dict[str, Any] = {"links": lambda: links or {}, "reconnects": lambda: 0}
    made: Any = TaskMetrics(worker=worker, chief=chief, devices=devices, **counts)
    registry.register(made)
    return generate_latest(registry).decode()


def worker(steps: int, *, seconds: float, staleness: int = 0, dropped: int = 0) -> WorkerCounters:
    """Return a worker's metrics after a number of steps of 32 samples."""
    clock = iter(range(10**6))
    found = WorkerCounters(lambda: next(clock) * seconds)
    for step in range(steps):
        found.record_step(step, 0.5, samples=32, applied=True, staleness=staleness)
    found.dropped = dropped
    return found


def at(seconds: float, text: str) -> Scrape:
    return Scrape(seconds, samples.read(text))


class Scraped(WithJobs):
    """Pods whose scrapes return a test's texts in sequence."""

    def __init__(self, made: Object, pods: list[Object], answers: dict[str, list[str | RequestError]]) -> None:
        super().__init__(made, pods=pods)
        self.answers, self.now = answers, 0.0
        self.ports: set[int] = set()

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        self.ports.add(port)
        found = self.answers[pod].pop(0)
        if isinstance(found, RequestError):
            raise found
        return found

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def measure(self, name: str = "digits") -> dict[str, Any]:
        return measure(self, "default", name, 5, lambda: self.now, self.sleep)


def rendered(found: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=110, highlight=False)
    console.print(top.picture(found))
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def trained(made: Object | None = None) -> Scraped:
    """Return a job of a chief and three workers, of which the last is slow."""
    made = made or job(workers=3) | {"status": {"phase": "Running"}}
    pods = [pod("chief", term=1), *(pod("worker", n) for n in range(3)), pod("ps")]
    before, after = ChiefCounters(step=1000, epoch=2, loss=0.3, workers=3), ChiefCounters(step=1110, epoch=2, loss=0.25)
    after.workers, after.skew = 3, 1.2
    answers: dict[str, list[str | RequestError]] = {
        "digits-chief-1": [
            reported(chief=before, links={"ps-0": Traffic(0, 0)}),
            reported(chief=after, links={"ps-0": Traffic(500, 1000)}, devices={"CPU": 1}),
        ]
    }
    for index, steps in enumerate((50, 50, 10)):
        pace = 0.1 if index < 2 else 0.5
        first = reported(worker=worker(10, seconds=pace, staleness=2), links={"ps-0": Traffic(1000, 2000)})
        second = worker(10 + steps, seconds=pace, staleness=2, dropped=index)
        links = {"ps-0": Traffic(1000 + 40_000 * steps, 2000 + 80_000 * steps), "ps-1": Traffic(5000, 0)}
        answers[f"digits-worker-{index}"] = [first, reported(worker=second, links=links, devices={"GPU": 2})]
    return Scraped(made, pods, answers)


def test_rates_of_a_job_as_the_docs_show_them() -> None:
    cluster = trained()
    found = cluster.measure()
    assert cluster.ports == {contract.METRICS_PORT}
    assert found["job"] == {
        "step": 1110,
        "stepsPerSecond": 22.0,
        "epoch": 2,
        "loss": 0.25,
        "workersPresent": 3,
        "loadSkew": 1.2,
    }
    assert found["examplesPerSecond"] == 22.0 * 32
    assert [t["task"] for t in found["tasks"]] == ["chief-0", "worker-0", "worker-1", "worker-2"]
    first = found["tasks"][1]
    assert [t["devices"] for t in found["tasks"]] == [{"CPU": 1}, {"GPU": 2}, {"GPU": 2}, {"GPU": 2}]
    assert (first["stepsPerSecond"], first["examplesPerSecond"], first["dropped"]) == (10.0, 320.0, 0)
    assert first["stepSeconds"] == pytest.approx(0.1)
    assert first["staleness"] == 2.0
    assert (first["sentBytesPerSecond"], first["receivedBytesPerSecond"]) == (401_000.0, 800_000.0)
    assert [t["straggler"] for t in found["tasks"]] == [False, False, False, True]
    assert found["servers"] == [
        {"server": "ps-0", "receivedBytesPerSecond": 880_100.0, "sentBytesPerSecond": 1_760_200.0},
        {"server": "ps-1", "receivedBytesPerSecond": 3000.0, "sentBytesPerSecond": 0.0},
    ]
    json.dumps(found, allow_nan=False)
    shown = rendered(found)
    assert shown in PAGE.read_text(), shown


@pytest.mark.parametrize(
    ("servers", "standby", "listed"),
    [
        (1, {}, ["ps-0"]),
        (1, {"mode": "Warm"}, ["ps-0"]),
        (1, {"mode": "Hot"}, ["ps-0", "standby-0"]),
        (2, {"mode": "Hot"}, ["ps-0", "ps-1", "standby-0", "standby-1"]),
        (2, {"mode": "Hot", "replicasPerShard": 2}, ["ps-0", "ps-1", "standby-0", "standby-1"]),
    ],
)
def test_servers_that_were_removed_are_not_listed(servers: int, standby: dict[str, Any], listed: list[str]) -> None:
    """Programs that train on with fewer servers keep the counters of all."""
    cluster = trained()
    cluster.there[0]["spec"]["ps"] |= {"replicas": servers, "standby": standby}
    cluster.there[0]["status"]["ps"] = {"desired": servers}
    idle = dict.fromkeys(("ps-1", "standby-0", "standby-1"), Traffic(5000, 7000))
    for pod_name, (first, second) in dict(cluster.answers).items():
        assert isinstance(first, str)
        assert isinstance(second, str)
        if "chief" in pod_name:
            cluster.answers[pod_name] = [
                reported(chief=ChiefCounters(), links={"ps-0": Traffic(moved, moved), **idle}) for moved in (0, 500)
            ]
        else:
            cluster.answers[pod_name] = [reported(worker=worker(9, seconds=1), links=idle)] * 2
    assert [server["server"] for server in cluster.measure()["servers"]] == listed


def test_missing_numbers_are_null_in_machine_readable_output() -> None:
    cluster = trained()
    chief = ChiefCounters(step=5)
    assert math.isnan(chief.loss)
    cluster.answers["digits-chief-1"] = [reported(chief=chief)] * 2
    found = cluster.measure()
    assert (found["job"]["loss"], found["job"]["loadSkew"], found["job"]["stepsPerSecond"]) == (None, None, 0.0)
    json.dumps(found, allow_nan=False)


REFUSED = (
    "The API server rejected the request: error trying to reach service: dial tcp 10.0.0.7:2240: connect: "
    "connection refused"
)


@pytest.mark.parametrize(
    ("answer", "spec", "said"),
    [
        (
            RequestError(REFUSED, 503),
            {},
            "port 2240 refuses connections: the task is not training yet, or does not use",
        ),
        (RequestError("error: i/o timeout", 503), {}, "port 2240: error: i/o timeout"),
        (
            RequestError("No answer", 0),
            {"network": {"isolation": "Full"}},
            "with spec.network.isolation Full, only the",
        ),
        ("<html>", {}, "port 2240 does not serve metrics: invalid metric name:<html>"),
    ],
)
def test_a_task_without_metrics_is_shown_with_the_reason(
    answer: str | RequestError, spec: dict[str, Any], said: str
) -> None:
    cluster = trained(job(workers=3, spec=spec))
    cluster.answers["digits-worker-1"] = [answer]
    found = cluster.measure()
    second = found["tasks"][2]
    assert said in second["problem"]
    assert (second["stepsPerSecond"], second["devices"]) == (None, None)
    assert f"worker-1: {second['problem']}" in rendered(found).replace("\n", " ")
    assert found["tasks"][1]["stepsPerSecond"] == 10.0, "the others are"


def test_a_task_that_disappears_between_the_scrapes() -> None:
    cluster = trained()
    cluster.answers["digits-worker-1"][1] = RequestError('pods "digits-worker-1" not found', 404)
    assert cluster.measure()["tasks"][2]["problem"] == 'port 2240: pods "digits-worker-1" not found'


def test_top_does_not_wait_if_no_task_serves_metrics() -> None:
    cluster = trained()
    cluster.answers = {name: [RequestError(REFUSED, 503)] for name in cluster.answers}
    found = cluster.measure()
    assert cluster.now == 0
    assert (found["job"], found["examplesPerSecond"], found["servers"]) == (None, None, [])
    head, reason = rendered(found).split("\n\n")
    assert head == "digits  Running"
    assert reason.startswith("chief-0, worker-0, worker-1, worker-2: port 2240 refuses connections")


def test_a_missing_right_to_read_metrics_is_reported() -> None:
    cluster = trained()
    cluster.answers["digits-worker-1"] = [DeniedError("You may not get pods/proxy", 403)]
    with pytest.raises(DeniedError, match="may not get pods/proxy"):
        cluster.measure()


def test_pods_that_are_not_running() -> None:
    waits = pod("worker", 1, state={"waiting": {"reason": "ImagePullBackOff"}}, ready=False)
    done = pod("chief", term=1, state=terminated(0), phase="Succeeded", ready=False)
    answers: dict[str, list[str | RequestError]] = {
        "digits-worker-0": [reported(worker=worker(n, seconds=1)) for n in (1, 2)]
    }
    found = Scraped(job(), [pod("worker", 0), waits, done], answers).measure()
    assert [(t["task"], t["problem"]) for t in found["tasks"]] == [
        ("worker-0", ""),
        ("worker-1", "is not running: ImagePullBackOff"),
    ]


def test_a_job_without_tasks_and_no_job() -> None:
    with pytest.raises(CommandError, match=r"digits currently has no chief and no workers, and its phase is Unknown\."):
        Scraped(job(), [pod("ps")], {}).measure()
    with pytest.raises(CommandError, match="Did you mean digits"):
        Scraped(job(), [], {}).measure("digit")


def with_port(*variables: Object) -> Object:
    made = pod("worker")
    made["spec"]["containers"] = [{"name": "sidecar"}, {"name": "tensorflow", "env": list(variables)}]
    return made


@pytest.mark.parametrize(
    ("variables", "port"),
    [
        ([], 2240),
        ([{"name": "OTHER", "value": "1"}], 2240),
        ([{"name": "PSTRAINING_METRICS_PORT", "value": "9100"}], 9100),
        ([{"name": "PSTRAINING_METRICS_PORT", "value": ""}], 2240),
        ([{"name": "PSTRAINING_METRICS_PORT", "value": "0"}], "its port is unknown: its template sets"),
        ([{"name": "PSTRAINING_METRICS_PORT", "value": "9" * 5000}], "its port is unknown: its template sets"),
        ([{"name": "PSTRAINING_METRICS_PORT", "valueFrom": {}}], "its port is unknown: its template sets"),
    ],
)
def test_the_port_is_the_contracts_or_the_templates(variables: list[Object], port: int | str) -> None:
    (task,) = tasks_of(job(), [with_port(*variables)])
    found = metrics_port(task)
    assert found == port if isinstance(port, int) else str(found).startswith(port)


def test_a_restarted_program_has_no_rate() -> None:
    before = at(0, reported(worker=worker(50, seconds=1)))
    assert "restarted" in task_rates(before, at(5, reported(worker=worker(3, seconds=1)))).problem


@pytest.mark.parametrize(
    ("steps", "slow"),
    [
        ([50, 50, 30], {"2"}),
        ([50, 50, 38], set()),
        ([50, 20], {"1"}),
        ([50, 0, 50], {"1"}),
        ([50], set()),
        ([4, 4, 1], set()),
        ([], set()),
    ],
)
def test_stragglers_make_far_fewer_steps_than_the_median(steps: list[int], slow: set[str]) -> None:
    found = {str(n): TaskRates(steps=count, steps_per_second=count / 5) for n, count in enumerate(steps)}
    found["chief"] = replace(TaskRates(), problem="none")
    assert stragglers(found) == slow


def test_every_sample_that_the_runtime_serves_is_read() -> None:
    text = reported(
        worker=worker(7, seconds=0.3, staleness=3),
        chief=ChiefCounters(step=4, scalars={'of "quotes" \\ and\nbreaks': 1.5, "none": math.inf}),
        links={"ps-0": Traffic(1, 2)},
    )
    found = samples.read(text)
    assert len(found.values) == sum(not line.startswith("#") for line in text.splitlines())
    assert (found.value("pstraining_worker_steps_total"), found.value("pstraining_global_step")) == (7, 4)
    assert found.by("pstraining_sent_bytes_total", "peer") == {"ps-0": 1}
    assert found.by("pstraining_epoch_log", "log") == {'of "quotes" \\ and\nbreaks': 1.5, "none": math.inf}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("# HELP a b\n\na 1\n", {("a", ()): 1}),
        ('a{x="1",y="}"} 2 1700000000000', {("a", (("x", "1"), ("y", "}"))): 2}),
        ('a{y="2",x="1",} +Inf', {("a", (("x", "1"), ("y", "2"))): math.inf}),
        ("a{} 1e-3", {("a", ()): 0.001}),
    ],
)
def test_what_the_format_allows(text: str, values: dict[Any, float]) -> None:
    assert samples.read(text).values == values


@pytest.mark.parametrize(
    "text",
    ["a", "a b", "1a 2", "a{x=1} 2", 'a{x="1" 2', 'a{x="1"y="2"} 2', "<html> 1", "{}", '{,\t=\\1{"'],
)
def test_text_in_another_format_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        samples.read(f"ok 1\n{text}\n")


def test_a_programs_labels_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    server = {"server": "[/x] [bold]ps :ab:", "sentBytesPerSecond": 1.0, "receivedBytesPerSecond": None}
    found: dict[str, Any] = {"name": "digits", "phase": "Running", "job": None, "examplesPerSecond": None, "tasks": []}
    show(PrintedKind.RATES, found, Output.TEXT, lambda: top.picture({**found, "servers": [server]}))
    assert "[/x] [bold]ps :ab:" in capsys.readouterr().out
