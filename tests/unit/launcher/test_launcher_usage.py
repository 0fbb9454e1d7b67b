"""A launcher's measurements of its container, and the times at which the chief's launcher reports the job's figures."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, Self

import pytest

from pstraining.launcher import contract, usage
from pstraining.launcher.cgroups import Cgroup, Reading
from pstraining.launcher.usage import Meter, RoleHistory, is_due
from tests.support.ports import free_port

MIB = 2**20
VERSION_1 = {
    "memory/memory.usage_in_bytes": f"{300 * MIB}\n",
    "memory/memory.limit_in_bytes": f"{1024 * MIB}\n",
    "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "cpuacct/cpuacct.usage": "1500000000\n",
}
VERSION_2 = {
    "memory.current": f"{300 * MIB}\n",
    "memory.max": f"{1024 * MIB}\n",
    "memory.stat": f"anon 7\ninactive_file {100 * MIB}\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
}


def mounted(folder: Path, files: dict[str, str], below: str = "") -> Cgroup:
    for name, text in files.items():
        controller, _, file = name.rpartition("/")
        place = folder / controller / below.lstrip("/") / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    own = folder / "own"
    own.write_text("4:cpu,cpuacct:/kubepods/x\n3:memory:/kubepods/x\n0::/kubepods/x\n")
    return Cgroup(str(folder), str(own))


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
@pytest.mark.parametrize("below", ["", "/kubepods/x"], ids=["the container's own root", "the node's root"])
def test_what_the_kernel_counts(tmp_path: Path, files: dict[str, str], below: str) -> None:
    assert mounted(tmp_path, files, below).read() == Reading(200 * MIB, 1024 * MIB, 1.5, 2)


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [(VERSION_1, "memory/memory.limit_in_bytes", "9223372036854771712\n"), (VERSION_2, "memory.max", "max\n")],
)
def test_a_container_without_a_limit(tmp_path: Path, files: dict[str, str], name: str, text: str) -> None:
    found = mounted(tmp_path, {**files, name: text}).read()
    assert found is not None
    assert found.limit is None


def test_a_kernel_without_these_figures(tmp_path: Path) -> None:
    assert mounted(tmp_path, {}).read() is None
    assert mounted(tmp_path, {**VERSION_2, "memory.stat": ""}).read() is None
    assert Meter("p", lambda: None).report() == {}


def test_a_meter_keeps_the_peak_and_the_time_of_a_kill() -> None:
    readings = [Reading(m * MIB, None, 1.0, kills) for m, kills in ((5, 1), (9, 1), (3, 2), (3, 2))]
    now = [100.0]
    meter = Meter("p", lambda: readings[0], lambda: now[0])
    for _ in range(3):
        meter.sample()
        readings.pop(0)
        now[0] += 10
    found = meter.report()
    assert (found["memoryBytes"], found["peakBytes"], found["oomAgeSeconds"]) == (3 * MIB, 9 * MIB, 10.0)


def figures(pod: str = "p-0", memory: int = 100, limit: int | None = 1000, **more: Any) -> dict[str, Any]:
    found = {"pod": pod, "at": 0.0, "memoryBytes": memory, "peakBytes": memory, "limitBytes": limit}
    return {**found, "cpuSeconds": None, "oomAgeSeconds": None, **more}


def test_a_role_has_the_figures_of_its_largest_pod() -> None:
    pods = [figures("p-0", 100, peakBytes=700), figures("p-1", 500), figures("p-2", 300, oomAgeSeconds=7.0)]
    found = RoleHistory().add("ps", pods, 0.0)
    assert (found["pod"], found["memoryBytes"], found["peakBytes"]) == ("p-1", 500, 700)
    assert (found["oomPod"], found["oomAgeSeconds"]) == ("p-2", 7.0)
    assert "cpuMillicores" not in found


def test_growth_is_measured_over_the_last_half_minute() -> None:
    history = RoleHistory()
    found = [history.add("ps", [figures(memory=m)], 5.0 * i) for i, m in enumerate((0, 900, 900, 910, 920, 930, 940))]
    assert "growthBytesPerSecond" not in found[0], "one measurement shows no growth"
    assert found[-1]["growthBytesPerSecond"] == 940 // 30
    assert history.add("ps", [figures(memory=950)], 35.0)["growthBytesPerSecond"] == 50 // 30
    assert history.add("ps", [figures(memory=10)], 40.0)["growthBytesPerSecond"] == 0, "a shrinking usage is no growth"


def test_growth_is_that_of_the_largest_pod_which_may_not_always_answer() -> None:
    history, small, large = RoleHistory(), figures("p-0", 100), figures("p-1", 900)
    rounds = [
        history.add("ps", answers, 5.0 * i) for i, answers in enumerate(([small], [small, large], [small, large]))
    ]
    assert "growthBytesPerSecond" not in rounds[1], "one measurement of this pod shows no growth"
    assert rounds[2]["growthBytesPerSecond"] == 0


def test_cpu_is_the_95th_percentile_and_a_restarted_container_begins_at_0() -> None:
    history = RoleHistory()
    seconds = 0.0
    for i in range(60):
        seconds = 0.0 if i == 30 else seconds + (4.0 if i == 20 else 2.0)
        found = history.add("ps", [figures(at=5.0 * i, cpuSeconds=seconds)], 5.0 * i)
    assert found["cpuMillicores"] == 400


def test_the_mean_of_cpu_needs_four_minutes_and_forgets_after_five() -> None:
    history = RoleHistory()
    # Half a core in the first five minutes, then two cores.
    rounds = [(5.0 * i, 2.5 * i if i <= 60 else 150 + 10.0 * (i - 60)) for i in range(130)]
    found = [history.add("ps", [figures(at=at, cpuSeconds=used)], at) for at, used in rounds]
    assert [i for i, each in enumerate(found) if "meanCpuMillicores" not in each] == [*range(49)]
    assert found[49]["meanCpuMillicores"] == found[60]["meanCpuMillicores"] == 500
    assert 500 < found[61]["meanCpuMillicores"] < found[119]["meanCpuMillicores"] < 2000
    assert found[121]["meanCpuMillicores"] == 2000


def item(**more: Any) -> dict[str, Any]:
    return RoleHistory().add("ps", [figures(**more)], 0.0)


def test_reports_are_rare_unless_there_is_news() -> None:
    before, high, killed = [item()], [item(memory=800)], [item(oomAgeSeconds=4.0)]
    assert is_due([], before, float("inf"))
    assert not is_due(before, before, 5.0)
    assert is_due(before, before, 30.0)
    assert not is_due(before, [item(memory=105)], 5.0)
    assert is_due(before, [item(memory=120)], 5.0), "a peak has risen"
    assert is_due(high, high, 5.0), "the limit is near"
    assert is_due(before, killed, 5.0)
    assert not is_due(killed, [item(oomAgeSeconds=9.0)], 5.0), "it was reported"
    assert is_due(before, [*before, {**item(), "role": "worker"}], 5.0), "a role has started"


def test_all_tasks_are_polled_while_the_map_requests_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(usage.Reporter, "_send", lambda self, report: sent.append(report))
    monkeypatch.setattr(usage, "ask", lambda address: {} if address == "w1:2222" else figures(address))
    cluster_map = tmp_path / "cluster.json"
    reporter = usage.Reporter({"PSTRAINING_PROGRESS_URL": "https://operator/progress"}, str(cluster_map))
    content: dict[str, Any] = {"cluster": {"worker": ["w0:2222", "w1:2222"], "ps": ["p0:2222"]}}
    cluster_map.write_text(json.dumps(content))
    reporter.round()
    assert not sent
    content["measured"] = {"evaluator": ["e0:2222"]}
    cluster_map.write_text(json.dumps(content))
    reporter.round()
    assert {item["role"]: item["pod"] for item in sent[0]} == {
        "worker": "w0:2222",
        "ps": "p0:2222",
        "evaluator": "e0:2222",
    }
    reporter.round()
    assert len(sent) == 1, "nothing is new"
    cluster_map.write_text(json.dumps({**content, "ended": True}))
    reporter.round()
    assert len(sent) == 1


class Refusing:
    """An operator that rejects every report."""

    status, reason = 403, "Forbidden"

    def __init__(self, *where: Any, **settings: Any) -> None:
        pass

    def request(self, *words: Any) -> None:
        pass

    def getresponse(self) -> Self:
        return self

    def read(self) -> bytes:
        return b"the token is that of another job"

    def close(self) -> None:
        pass


def test_a_lasting_refusal_is_logged_once_until_a_report_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "progress-token").write_text("t")
    monkeypatch.setattr(contract, "MOUNT_DIR", str(tmp_path))
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
    monkeypatch.setattr(http.client, "HTTPSConnection", Refusing)
    monkeypatch.setattr(usage, "ask", figures)
    cluster_map = tmp_path / "cluster.json"
    cluster_map.write_text(json.dumps({"cluster": {"ps": ["p0:2222"]}, "measured": {}}))
    reporter = usage.Reporter({"PSTRAINING_PROGRESS_URL": "https://operator/progress"}, str(cluster_map))
    for _ in range(5):
        reporter.attempt()
    refused = "OSError('403 Forbidden: the token is that of another job')"
    line = f"pstraining-launcher: the operator gets no reports of pods' usage, and memory does not grow: {refused}\n"
    assert capfd.readouterr().err == line
    monkeypatch.setattr(Refusing, "status", 200)
    reporter.attempt()
    monkeypatch.setattr(Refusing, "status", 403)
    monkeypatch.setattr(usage, "REPORT_SECONDS", 0.0)
    for _ in range(5):
        reporter.attempt()
    assert capfd.readouterr().err == line


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named '_ssl'"), RuntimeError("can't start new thread")]
)
def test_an_image_without_ssl_or_threads_left_is_logged_and_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    def failing(_: object) -> None:
        raise error

    reporter = usage.Reporter({"PSTRAINING_PROGRESS_URL": "https://operator/progress"}, str(tmp_path))
    monkeypatch.setattr(usage.Reporter, "round", failing)
    for _ in range(5):
        reporter.attempt()
    assert capfd.readouterr().err.count(f"gets no reports of pods' usage, and memory does not grow: {error!r}") == 1


@pytest.mark.parametrize(("tasks", "seconds"), [(0, 5.0), (2000, 5.0), (10_000, 25.0)])
def test_the_tasks_of_a_large_job_are_asked_less_often(tasks: int, seconds: float) -> None:
    assert usage.pause(tasks) == seconds


def test_a_task_is_asked_at_its_launchers_port() -> None:
    from pstraining.launcher.status_port import serve_status

    port = free_port()
    serve_status(port, dict, lambda status: True, lambda: figures("p-7"))
    assert usage.ask(f"127.0.0.1:{port - 1}")["pod"] == "p-7"
    assert usage.ask_all(["127.0.0.1:1", f"127.0.0.1:{port - 1}"])["127.0.0.1:1"] == {}
