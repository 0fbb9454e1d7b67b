"""Reports of the pods' usage: which ones the endpoint accepts, and for how long they describe a job."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.core.usage import STALE_SECONDS, RoleUsage
from pstraining.launcher import contract, usage
from tests.support.builders import UID
from tests.support.progress_endpoint import CLAIMS, KEY, forged, serving, token

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ITEM = {"role": "ps", "pod": "digits-ps-0", "memoryBytes": 5, "peakBytes": 7}


def report(**changes: Any) -> dict[str, Any]:
    return {"usage": [{**ITEM, **changes}]}


class Bench:
    """A board with its own clocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.queued: list[tuple[str, str]] = []
        self.board = UsageBoard(self.queued.append, lambda: self.seconds, lambda: NOW + timedelta(seconds=self.seconds))


def test_a_report_causes_a_pass_and_is_forgotten_when_it_is_old() -> None:
    bench = Bench()
    assert bench.board.note(KEY, "u", report(growthBytesPerSecond=3, cpuMillicores=40, limitBytes=9)) == ""
    assert bench.queued == [KEY]
    assert bench.board.of(KEY, "u") == {"ps": RoleUsage("digits-ps-0", 5, 7, 3, 40)}
    assert bench.board.of(KEY, "another job of the name") == {}
    bench.seconds = STALE_SECONDS
    assert bench.board.of(KEY, "u") == {}
    bench.board.note(("default", "other"), "v", report())
    assert len(bench.board._reports) == 1, "old reports take no memory"


def test_only_the_oldest_reports_are_looked_at() -> None:
    """A job that reports again is behind the others, and old reports are dropped from the front."""
    bench = Bench()
    repeated, silent, other = (("default", name) for name in ("repeated", "silent", "other"))
    for bench.seconds, key in enumerate((repeated, silent, repeated)):
        bench.board.note(key, "u", report())
    bench.seconds = STALE_SECONDS + 1.5
    bench.board.note(other, "u", report())
    assert list(bench.board._reports) == [repeated, other]


def test_the_time_of_a_kill_is_stable() -> None:
    bench = Bench()
    bench.board.note(KEY, "u", report(oomPod="digits-ps-1", oomAgeSeconds=2.0))
    bench.seconds = 30.0
    bench.board.note(KEY, "u", report(oomPod="digits-ps-1", oomAgeSeconds=33.5))
    assert bench.board.of(KEY, "u")["ps"].oom_at == NOW - timedelta(seconds=2)
    bench.board.note(KEY, "u", report(oomPod="digits-ps-1", oomAgeSeconds=1.0))
    assert bench.board.of(KEY, "u")["ps"].oom_at == NOW + timedelta(seconds=29)


@pytest.mark.parametrize(
    "body",
    [None, {}, {"usage": 1}, report(role="boss"), report(memoryBytes=-1), {"usage": [ITEM] * 5}, report(pod="p" * 254)],
)
def test_an_invalid_report_is_rejected_with_a_message(body: Any) -> None:
    bench = Bench()
    assert bench.board.note(KEY, "u", body)
    assert not bench.queued


@pytest.mark.asyncio
async def test_the_endpoint_takes_reports_of_the_chiefs_pod_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoint:
        url = f"{endpoint.url}/usage"
        assert (await endpoint.post(token(CLAIMS), report(), url))[0] == 200
        assert endpoint.usage.of(KEY, UID)["ps"].memory == 5
        assert not endpoint.accepted, "it is no progress"
        assert (await endpoint.post(forged(k8s__namespace="x"), report(), url))[0] == 403
        assert (await endpoint.post(token(CLAIMS), {"usage": [{}]}, url))[0] == 422
        endpoint.reviewer.away, endpoint.now = True, 1e6
        assert (await endpoint.post(token(CLAIMS), report(), url))[0] == 503


@pytest.mark.asyncio
async def test_the_launcher_reports_to_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as endpoint:
        monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path))
        monkeypatch.setattr(contract, "MOUNT_DIR", str(tmp_path))
        monkeypatch.setattr(contract, "PROGRESS_AUTHORITY_FILE", endpoint.certificate.name)
        monkeypatch.setattr(contract, "PROGRESS_TOKEN_FILE", endpoint.token.name)
        reporter = usage.Reporter({contract.ENV_PROGRESS_URL: endpoint.url}, "")
        await asyncio.to_thread(reporter._send, [ITEM])
        assert endpoint.usage.of(KEY, UID)["ps"].peak == 7
