"""A chief may read only its job and the logs of its own pods, for the job's history."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from pstraining.api.names import LABEL_JOB
from pstraining.api.summary import LogEnd
from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.controller.progress import history
from pstraining.controller.progress.history import HistoryAnswers
from pstraining.progress import OperatorServer
from pstraining.resources.installation import progress_audience
from pstraining.runtime.history.operator import OperatorClient
from tests.support.builders import job, pod
from tests.support.progress_endpoint import CHIEF, CLAIMS, KEY, Endpoint, forged, serving, token

pytestmark = pytest.mark.asyncio
WORKER = pod("worker", 0, restarts=1, uid="uid-of-worker-0")


def with_a_worker(endpoint: Endpoint) -> None:
    endpoint.cache.observed({**WORKER, "kind": "Pod"})
    endpoint.logs["digits-worker-0", False] = b"step 1\nstep 2\n"
    endpoint.logs["digits-worker-0", True] = b"Traceback\n"
    endpoint.logs["other-worker-0", False] = b"not yours\n"


def known(*keys: Key) -> InformerCache:
    """Return the cache's jobs, each with one worker."""
    cache = InformerCache()
    for namespace, name in keys:
        metadata = {"namespace": namespace, "name": name}
        worker = (
            WORKER["metadata"]
            | metadata
            | {"name": f"{name}-worker-0", "uid": f"uid-of-{name}-worker-0"}
            | {"generateName": f"{name}-worker-0"}
        )
        worker["labels"] = WORKER["metadata"]["labels"] | {LABEL_JOB: name}
        cache.observed({**job(), "metadata": job()["metadata"] | metadata})
        cache.observed({**WORKER, "kind": "Pod", "metadata": worker})
    return cache


class Logs:
    """An API server whose containers all have one log."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, limit: int) -> bytes:
        return b"".join(self._content.splitlines(keepends=True)[-lines:])[:limit]


async def test_a_chief_reads_its_job_and_the_logs_of_its_pods(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        with_a_worker(endpoint)
        status, body = await endpoint.get(token(CLAIMS))
        assert status == 200
        found = json.loads(body)
        assert found["job"]["spec"]["worker"]["replicas"] == job()["spec"]["worker"]["replicas"]
        assert sorted((log["task"], log["pod"], log["previous"]) for log in found["logs"]) == [
            ("chief-0", "digits-chief-1", False),
            ("worker-0", "digits-worker-0", False),
            ("worker-0", "digits-worker-0", True),
        ]
        assert await endpoint.get(token(CLAIMS), "/logs/digits-worker-0") == (200, b"step 1\nstep 2\n")
        assert await endpoint.get(token(CLAIMS), "/logs/digits-worker-0?previous=true") == (200, b"Traceback\n")
        assert (await endpoint.get(token(CLAIMS), "/logs/other-worker-0"))[0] == 404
        status, body = await endpoint.get(token(CLAIMS), "/logs/digits-chief-1")
        assert (status, json.loads(body)["message"]) == (
            502,
            'the API server does not return the log: pods "digits-chief-1" not found',
        )


@pytest.mark.parametrize(
    ("bearer", "status"),
    [
        ("", 401),
        (token(CLAIMS, "forged"), 401),
        (forged(aud=[progress_audience("another job")]), 403),
        (forged(k8s__pod={"name": "digits-worker-0", "uid": "uid-of-worker-0"}), 403),
    ],
    ids=["no token", "forged", "of another job", "of a worker"],
)
@pytest.mark.parametrize("rest", ["", "/logs/digits-worker-0"])
async def test_other_pods_are_rejected(bearer: str, status: int, rest: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        with_a_worker(endpoint)
        found, body = await endpoint.get(bearer, rest)
        assert (found, list(json.loads(body))) == (status, ["message"])


async def test_a_chief_that_is_being_deleted_reads_and_reports_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        metadata = CHIEF["metadata"] | {"deletionTimestamp": "2030-01-01T00:00:00Z", "resourceVersion": "999"}
        endpoint.cache.observed({**CHIEF, "metadata": metadata, "kind": "Pod"})
        assert (await endpoint.get(token(CLAIMS)))[0] == 200
        assert (await endpoint.post(token(CLAIMS), {"trainerStatus": {"step": 1}}))[0] == 403


async def test_the_end_of_a_long_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOG_BYTES", 1000)
    monkeypatch.setattr(history, "READ_MAX", 8000)
    async with serving(tmp_path) as endpoint:
        with_a_worker(endpoint)
        lines = [b"%04d" % number + b"x" * 200 + b"\n" for number in range(2000)]
        endpoint.logs["digits-worker-0", False] = b"".join(lines)
        client = OperatorClient(endpoint.environ)
        found = await asyncio.to_thread(client.log, "digits-worker-0", previous=False)
        assert (len(found.content), found.whole) == (1000, False)
        assert found.content.endswith(lines[-1])
        assert await asyncio.to_thread(client.log, "digits-worker-0", previous=True) == LogEnd(b"Traceback\n", True)


async def test_the_answer_for_a_large_job_is_small(tmp_path: Path) -> None:
    ended = {"exitCode": 1, "reason": "Error"}
    async with serving(tmp_path) as endpoint:
        for index in range(999):
            worker = pod("worker", index, state={"terminated": {**ended, "containerID": "containerd://0123"}})
            worker["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "digits-worker-0", "uid": "0123"}]
            endpoint.cache.observed({**worker, "kind": "Pod"})
        client = OperatorClient(endpoint.environ)
        chief, *workers = (await asyncio.to_thread(client.job)).pods
        assert (chief["metadata"]["name"], len(workers)) == (CHIEF["metadata"]["name"], 999)
        assert not any("ownerReferences" in worker["metadata"] for worker in workers)
        assert all(worker["status"]["containerStatuses"][0]["state"] == {"terminated": ended} for worker in workers)
        sent = [await asyncio.to_thread(sent_bytes, endpoint, encoding) for encoding in ("gzip", "identity")]
        assert sent[0] * 10 < sent[1]


def sent_bytes(endpoint: Endpoint, encoding: str) -> int:
    server = OperatorServer.of(endpoint.environ)
    with closing(server.connection(30)) as connection:
        headers = {**server.authorization(), "Accept-Encoding": encoding}
        connection.request("GET", server.url.path.replace("/progress", "/history"), headers=headers)
        return len(connection.getresponse().read())


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (b"".join(b"%089d\n" % number for number in range(11)), True),
        (b"".join(b"%089d\n" % number for number in range(12)), False),
        (b"".join(b"%0189d\n" % number for number in range(2000)), False),
        (b"x\n" * 50, True),
        (b"x\n" * 51, False),
        (b"x\n" * 49 + b"no end", True),
        (b"x\n" * 50 + b"no end", False),
        (b"", True),
    ],
    ids=["all bytes", "too many bytes", "read with fewer lines", "all lines", "too many lines", "open", "cut", "empty"],
)
async def test_an_answer_reports_whether_a_log_is_complete(
    content: bytes, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOG_BYTES": 1000, "READ_MAX": 8000, "LOG_LINES": 50}.items():
        monkeypatch.setattr(history, name, value)
    found = await HistoryAnswers(Logs(content), known(KEY)).log(KEY, "digits-worker-0", previous=False)
    assert isinstance(found, LogEnd)
    assert (found.whole, content.endswith(found.content), found.content == content) == (whole, True, whole)


class SilentNode(Logs):
    """An API server that answers requests for logs of the job `slow` only once `answers` is set."""

    def __init__(self) -> None:
        super().__init__(b"step 1\n")
        self.answers, self.asked = asyncio.Event(), asyncio.Event()
        self.at_once = self.most = 0

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, limit: int) -> bytes:
        if pod.startswith("slow"):
            self.asked.set()
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await self.answers.wait()
            self.at_once -= 1
        return await super().log(namespace, pod, container, previous=previous, lines=lines, limit=limit)


async def test_a_job_whose_logs_are_slow_delays_no_other_job() -> None:
    slow, fast = ("default", "slow"), ("default", "fast")
    node = SilentNode()
    answers = HistoryAnswers(node, known(slow, fast))
    waiting = [
        asyncio.create_task(answers.log(slow, "slow-worker-0", previous=False)) for _ in range(history.IN_FLIGHT)
    ]
    await node.asked.wait()
    async with asyncio.timeout(5):
        assert await answers.log(fast, "fast-worker-0", previous=False) == LogEnd(b"step 1\n", whole=True)
    node.answers.set()
    assert await asyncio.gather(*waiting) == [LogEnd(b"step 1\n", whole=True)] * history.IN_FLIGHT
    assert node.most == 1
