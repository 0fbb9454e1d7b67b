"""The log of a finished program is that of its container's previous run, because the current run only waits."""

from collections.abc import Iterator, Mapping

import pytest

from pstraining.api import contract
from pstraining.cli.logs.following import Follower
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import read
from tests.support.builders import job, pod
from tests.support.cli_cluster import Object, WithJobs

WAITS = f"launcher: the program has ended with 0; {contract.IDLES}"
ENDED = job() | {"status": {"phase": "Succeeded", "conditions": [{"type": "Succeeded", "status": "True"}]}}


class Idling(WithJobs):
    """Has a restarted container, which the pod's status may not show yet."""

    def __init__(self, made: Object, worker: Object) -> None:
        super().__init__(made, pods=[worker])
        self.requests = 0

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self.requests += 1
        moment = "2030-01-01T12:00:01.000000000Z " if "timestamps" in query else ""
        yield moment + ("step 7" if "previous" in query else WAITS)


def lines_of(cluster: Idling, selection: LogSelection | None = None) -> list[str]:
    found: list[str] = []
    read(cluster, "default", "digits", selection or LogSelection(), lambda task, text: found.append(text), found.append)
    return found


@pytest.mark.parametrize(
    ("made", "worker", "expected"),
    [
        (ENDED, pod("worker", 0), ["step 7", WAITS]),
        (job(), pod("worker", 0, restarts=1), ["step 7", WAITS]),
        (job(), pod("worker", 0), [WAITS]),
    ],
    ids=["ended", "restarted", "running"],
)
def test_the_run_before_is_read_first(made: Object, worker: Object, expected: list[str]) -> None:
    assert lines_of(Idling(made, worker)) == expected


def test_the_run_before_is_followed_first(capsys: pytest.CaptureFixture[str]) -> None:
    Follower(Idling(ENDED, pod("worker", 0)), "default", "digits", LogSelection(), LogWriter(coloured=False)).run()
    assert capsys.readouterr().out.splitlines() == ["worker-0: step 7", f"worker-0: {WAITS}"]


def test_the_previous_run_alone_is_read_on_request() -> None:
    cluster = Idling(ENDED, pod("worker", 0))
    assert lines_of(cluster, LogSelection(previous=True)) == ["step 7"]
    assert cluster.requests == 1
