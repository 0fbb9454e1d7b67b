"""The launcher obeys its role's restartPolicy: after a final end, the program does not run again in this pod, which
idles.
"""

import json
import os
from collections.abc import Callable

import pytest

from tests.processes.pods import FakePs, Pod, eventually, write_whole

MakePod = Callable[..., Pod]


def chief_of(ps: FakePs) -> dict[str, list[str]]:
    return {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": [ps.address]}


def idles(pod: Pod) -> bool:
    """Demand that the restarted container runs nothing, and that its removal does not count as success."""
    before = len(pod.starts())
    pod.start(*pod.puppet)
    eventually(lambda: "which idles until it is removed" in pod.log())
    quiet = len(pod.starts()) == before
    pod.kill()
    return pod.wait() == 143 and quiet


@pytest.mark.parametrize(
    ("policy", "code", "final"),
    [
        ("Never", 1, True),
        ("Never", 143, True),
        ("ExitCode", 3, True),
        ("OnFailure", 78, True),
        ("OnFailure", 1, False),
        ("ExitCode", 137, False),
    ],
)
def test_only_a_final_failure_is_not_restarted(pod: MakePod, ps: FakePs, policy: str, code: int, final: bool) -> None:
    worker = pod("worker", chief_of(ps.up()), PSTRAINING_RESTART_POLICY=policy)
    worker.start(*worker.puppet)
    worker.order(code)
    assert worker.wait() == code, "the container reports the code once"
    assert os.path.exists(worker.run_dir / "failed") is final
    if final:
        assert (worker.run_dir / "failed").read_text() == str(code)
        assert idles(worker)
    else:
        worker.start(*worker.puppet)
        assert worker.started(2)


def test_always_restarts_after_exit_code_0(pod: MakePod, ps: FakePs) -> None:
    worker = pod("worker", chief_of(ps.up()), PSTRAINING_RESTART_POLICY="Always")
    worker.start(*worker.puppet)
    worker.order(0)
    assert worker.wait() == 0
    assert os.listdir(worker.run_dir) == ["layout"]
    worker.start(*worker.puppet)
    assert worker.started(2)


def test_a_pod_of_a_finished_job_idles(pod: MakePod, ps: FakePs) -> None:
    cluster = chief_of(ps.up())
    worker = pod("worker", cluster)
    worker.start(*worker.puppet)
    worker.order(1)
    assert worker.wait() == 1
    write_whole(worker.folder / "cluster.json", json.dumps({"job": "digits", "cluster": cluster, "ended": True}))
    assert idles(worker)


def test_an_invalid_policy_is_named(pod: MakePod, ps: FakePs) -> None:
    worker = pod("worker", chief_of(ps.up()), PSTRAINING_RESTART_POLICY="Sometimes")
    worker.start(*worker.puppet)
    assert worker.wait() == 72
    assert "PSTRAINING_RESTART_POLICY" in worker.log()
