"""The devices that tasks report in their metrics, and tasks that report none."""

import pytest

from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.metrics import scraping
from pstraining.cli.tasks import tasks_of
from tests.support.builders import job, pod, terminated
from tests.support.cli_cluster import WithJobs

CPU = 'pstraining_compute_devices{type="CPU"} 1\n'


@pytest.mark.parametrize(
    ("answer", "devices"),
    [
        (f'pstraining_compute_devices{{type="GPU"}} 4\n{CPU}', {"GPU": 4, "CPU": 1}),
        ("pstraining_reconnects_total 0\n", None),
        ("<html>", None),
        (RequestError("dial tcp: connection refused", 503), None),
        (DeniedError("You may not get pods/proxy", 403), None),
    ],
)
def test_devices_of_tasks_that_report_them(answer: str | RequestError, devices: dict[str, int] | None) -> None:
    waits = pod("worker", 1, state={"waiting": {"reason": "ImagePullBackOff"}}, ready=False)
    done = pod("worker", 2, state=terminated(0), phase="Succeeded", ready=False)
    pods = [pod("chief", term=1), pod("ps"), pod("worker"), waits, done]
    cluster = WithJobs(pods=pods)
    cluster.there_metrics = {made["metadata"]["name"]: CPU for made in pods}
    cluster.there_metrics["digits-worker-0"] = answer
    tasks = tasks_of(job(), pods)
    found = scraping.devices_of(cluster, tasks)
    assert {t.name: found[t.pod.uid] for t in tasks if t.pod.uid in found} == {
        "chief-0": {"CPU": 1},
        **({"worker-0": devices} if devices else {}),
    }


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (RequestError("The API server did not respond: timed out", 0), 1),
        (DeniedError("You may not get pods/proxy", 403), 1),
        (RequestError('pods "digits-worker-0" not found', 404), 3),
    ],
)
def test_tasks_are_scraped_until_an_answer_is_denied_or_late(
    monkeypatch: pytest.MonkeyPatch, error: RequestError, number: int
) -> None:
    monkeypatch.setattr(scraping, "AT_ONCE", 1)
    pods, asked = [pod("worker", index) for index in range(3)], list[float]()
    cluster = WithJobs(pods=pods)

    def fail(namespace: str, pod: str, port: int, seconds: float = 60) -> str:
        asked.append(seconds)
        raise error

    monkeypatch.setattr(cluster, "metrics", fail)
    assert scraping.devices_of(cluster, tasks_of(job(), pods)) == {}
    assert asked == [scraping.PATIENCE_SECONDS] * number


def test_a_large_job_is_asked_for_its_devices_for_some_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "AT_ONCE", 1)
    pods, now = [pod("worker", index) for index in range(100)], [0.0]
    cluster = WithJobs(pods=pods)

    def slow(namespace: str, pod: str, port: int, seconds: float = 60) -> str:
        now[0] += 1.5
        return CPU

    monkeypatch.setattr(cluster, "metrics", slow)
    found = scraping.devices_of(cluster, tasks_of(job(), pods), lambda: now[0])
    assert len(found) == 4
    assert now == [6.0]
