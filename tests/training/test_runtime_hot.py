"""Jobs whose shards have hot standbys lose no step when parameter servers are killed."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.usage import anonymous_megabytes
from pstraining.launcher import freed_memory
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob
from pstraining.runtime.replication import renewal
from tests.support import counting
from tests.support.hot_standby import is_prepared
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak
from tests.training.test_runtime_faults import finished, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(1100)]
unhurriedly = pytest.mark.usefixtures("undisturbed", "unhurried")
"""The undisturbed run comes first, at full speed."""
EPOCHS = 24
LONG = 500.0
"""Seconds within which a job ends on a busy machine."""


def job(
    folder: Path, *, standbys: int, seconds: int = 3600, ps: int = 2, workers: int = 2, epochs: int = EPOCHS
) -> LocalJob:
    return LocalJob(
        ["-m", "tests.support.deterministic_program"],
        ps=ps,
        standbys=standbys,
        workers=workers,
        restarts=10_000,
        training={"mode": "Sync", "orderedSums": True, "epochs": epochs, "minShardBytes": 0},
        checkpoint={"path": str(folder), "intervalSeconds": seconds},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the last state of an undisturbed run without standbys."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with job(folder, standbys=0) as run:
        assert finished(run, LONG) == 0, transcript(run)
    return last(folder)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training take more than half a minute on any machine."""
    monkeypatch.setenv("ORDERED_PAUSE", "0.2")


def last(folder: Path) -> Any:
    state = Checkpoints(folder, keep=3).newest()
    assert state is not None
    return state


def assert_same(found: Any, expected: Any) -> None:
    assert found.step == expected.step
    for path, value in expected.variables.items():
        np.testing.assert_array_equal(found.variables[path], value, err_msg=path)


def whole(run: LocalJob) -> bool:
    return all(len(own) == 2 for own in views(run)[-1])


def views(run: LocalJob) -> list[list[list[str]]]:
    return [event["members"] for event in views_of(run)]


def views_of(run: LocalJob) -> list[dict[str, Any]]:
    """Return the chief's events of its views."""
    return run.processes["chief"].events("view")


def transfers(run: LocalJob, phase: str) -> list[dict[str, Any]]:
    """Return the chief's events of state transfers in this phase."""
    return [event for event in run.processes["chief"].events("state_transfer") if event["phase"] == phase]


def step(run: LocalJob) -> int:
    return max((event["step"] for event in run.processes["worker-0"].events("worker")), default=0)


@in_all("tests/training/test_runtime_hot.py::test_processes_are_renewed_in_place")  # a primary is killed there as well
@unhurriedly
def test_killed_servers_cost_no_step_and_rejoin(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary of each shard in turn is killed, and no step is lost: the parameters are those of an undisturbed run.

    Workers compute on a device that stands in for an accelerator.
    """
    monkeypatch.setenv("PSTRAINING_TEST_DEVICES", "CPU:1")
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with job(tmp_path, standbys=1, ps=2 if THOROUGH else 1) as run:
        until(run, lambda: step(run) > 0, "training")
        for shard in (0, 1) if THOROUGH else (0,):
            members, before = views(run)[-1], len(views(run))
            run.kill(dice.choice(members[shard]) if shard else members[shard][0])
            until(run, lambda: len(views(run)) > before, "a view without it")  # noqa: B023 - it is waited for here
            assert len(views(run)[before][shard]) == 1
            until(run, lambda: whole(run), "all members in sync again")
            at = step(run)
            until(run, lambda: step(run) > at, "more steps")  # noqa: B023
        assert finished(run, LONG) == 0, transcript(run)
        chief = run.processes["chief"]
        assert not chief.events("restored")
        assert len(chief.events("initialized")) == 1
        devices = run.processes["worker-0"].events("devices")  # several if the process was renewed
        assert {tuple(event["compute"]) for event in devices} == {("CPU:1",)}
    assert_same(last(tmp_path), undisturbed)


def test_processes_are_renewed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are renewed after each connection. The standby has every step, and the processes keep their numbers."""
    monkeypatch.setenv("ORDERED_EACH", "1")
    monkeypatch.setenv("ORDERED_PAUSE", "0.2")
    if not ALL:
        monkeypatch.setenv("ORDERED_SUMS", "1")  # a model of one tensor, which each renewed process traces again
    with job(tmp_path, standbys=1, ps=1, workers=1, epochs=1000) as run:
        until(run, lambda: step(run) > 0 and whole(run), "training")
        chief, long_lived = run.processes["chief"], ("chief", "worker-0")
        before = [run.processes[name].popen.pid for name in long_lived]
        run.kill(views(run)[-1][0][0])
        for name in long_lived:
            until(run, lambda: run.processes[name].events("renewed"), f"{name} renewed")  # noqa: B023
        at = step(run)
        until(run, lambda: step(run) > at + 5, "more steps")
        assert [run.processes[name].popen.pid for name in long_lived] == before
        assert {event["term"] for event in chief.events("view")} == {1}
        assert not chief.events("restored")
        assert len(chief.events("initialized")) == 1


@in_soak
def test_processes_are_renewed_and_cost_no_step(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes are renewed at once after each connection, which is the worst case; no step is lost, and the
    processes stay the same.
    """
    monkeypatch.setenv("ORDERED_EACH", "1")
    with job(tmp_path, standbys=1, ps=1) as run:
        until(run, lambda: step(run) > 0, "training")
        long_lived = {name: run.processes[name].popen.pid for name in ("chief", "worker-0", "worker-1")}
        for times in range(1, 3 if THOROUGH else 2):
            run.kill(views(run)[-1][0][0])
            for name in long_lived:
                until(run, lambda: len(run.processes[name].events("renewed")) == times, f"{name} renewed")  # noqa: B023
                at = step(run)
            until(run, lambda: step(run) > at + 5, "more steps")  # noqa: B023
        assert {name: run.processes[name].popen.pid for name in long_lived} == long_lived
        chief = run.processes["chief"]
        reported = {(event["term"], event["epoch"], str(event["members"])) for event in chief.events("view")}
        assert len(reported) == len({(term, epoch) for term, epoch, _ in reported}), "no epoch has two views"
        assert {term for term, *_ in reported} == {1}
        assert finished(run, LONG) == 0, transcript(run)
        assert not chief.events("restored")
        assert len(chief.events("initialized")) == 1
    assert_same(last(tmp_path), undisturbed)


@in_soak
@unhurriedly
def test_a_large_state_is_transferred_while_training_continues(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large state is transferred while training continues. The learner is killed; its successor receives the state,
    and then its source is killed.
    """
    monkeypatch.setenv("ORDERED_PIECE", "500")
    with job(tmp_path, standbys=1) as run:
        chief = run.processes["chief"]
        until(run, lambda: step(run) > 0, "training")
        run.kill("ps-0")
        until(run, lambda: any("learners" in event for event in chief.events("view")), "it learns")
        learning = next(event for event in chief.events("view") if "learners" in event)
        assert (learning["members"][0], learning["learners"]) == (["ps-2"], ["ps-0"])
        run.kill("ps-0")
        until(run, lambda: transfers(run, "chunks") and whole(run), "all members in sync again")
        at = step(run)
        until(run, lambda: step(run) > at, "more steps")
        run.kill("ps-2")
        until(run, lambda: views(run)[-1][0] == ["ps-0"], "a view without it")
        assert finished(run, LONG) == 0, transcript(run)
        assert not transfers(run, "whole")
        assert not chief.events("restored")
        assert len(chief.events("initialized")) == 1
    assert_same(last(tmp_path), undisturbed)


@in_soak
@unhurriedly
def test_a_lost_chief_costs_no_step_and_a_lost_shard_those_since_the_checkpoint(
    tmp_path: Path, undisturbed: Any
) -> None:
    with job(tmp_path, standbys=1, seconds=1) as run:
        chief = run.processes["chief"]
        until(run, lambda: step(run) > 0, "training")
        run.kill("chief")
        until(run, lambda: {event["term"] for event in chief.events("view")} == {1, 2}, "the next chief's view")
        assert not chief.events("restored"), "the servers have it all"
        saved = len(chief.events("checkpoint"))
        until(run, lambda: len(chief.events("checkpoint")) > saved, "a checkpoint")
        for name in views(run)[-1][1]:
            run.kill(name)
        until(run, lambda: chief.events("restored"), "the checkpoint on the servers")
        assert finished(run, LONG) == 0, transcript(run)
    assert_same(last(tmp_path), undisturbed)


@in_soak
@unhurriedly
def test_a_majority_drops_an_unresponsive_primary_which_rejoins_later(tmp_path: Path, undisturbed: Any) -> None:
    """A majority drops an unresponsive primary, which rejoins later. The shard's standby is a majority only together
    with the workers.
    """
    with job(tmp_path, standbys=1, ps=1) as run:
        until(run, lambda: step(run) > 0, "training")
        stopped = run.processes["ps-0"].popen
        stopped.send_signal(signal.SIGSTOP)
        until(run, lambda: views(run)[-1] == [["ps-1"]], "a view without it")
        at = step(run)
        until(run, lambda: step(run) > at + 10, "steps without it")
        stopped.send_signal(signal.SIGCONT)
        until(run, lambda: views(run)[-1] == [["ps-0", "ps-1"]], "it follows again")
        assert finished(run, LONG) == 0, transcript(run)
        assert not run.processes["chief"].events("restored")
        assert run.processes["ps-0"].starts == 1
    assert_same(last(tmp_path), undisturbed)


@in_all(
    "tests/training/test_runtime_async_pairs.py::test_an_update_on_some_members_reaches_all_and_counts_once"
)  # jobs of six processes
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kills", [int(os.environ.get("PSTRAINING_ASYNC_KILLS", "20")) if THOROUGH else 1])
def test_an_acknowledged_asynchronous_update_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """An acknowledged asynchronous update is never lost or repeated: every sample is trained once, also when a server
    is killed.
    """
    samples, seed = 2000 + 4000 * kills, random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    monkeypatch.setenv("COUNTING_SAMPLES", str(samples))
    monkeypatch.setenv("COUNTING_PACE", "0.05")
    with LocalJob(
        ["-m", "tests.support.counting"],
        ps=2,
        standbys=1,
        workers=2,
        restarts=10_000,
        training={"mode": "Async", "minShardBytes": 0},
        checkpoint={"path": str(tmp_path), "intervalSeconds": 3600},
    ) as run:
        until(run, lambda: step(run) > 0, "training")
        for _ in range(kills):
            until(run, lambda: whole(run), "all members in sync")
            at = step(run)
            until(run, lambda: step(run) > at, "more steps")  # noqa: B023 - it is waited for here
            time.sleep(dice.random())  # a random moment
            before = len(views(run))
            run.kill(dice.choice(views(run)[-1][dice.randrange(2)]))
            until(run, lambda: len(views(run)) > before, "a view without it")  # noqa: B023
        assert step(run) < samples // counting.BATCH, "it was killed while they trained"
        assert finished(run, LONG * kills) == 0, transcript(run)
        assert not run.processes["chief"].events("restored")
    (accumulated,) = last(tmp_path).slots["accumulator"].values()
    times = counting.times_trained(accumulated[:samples], 2)
    assert times.count(1) == samples, f"lost {times.count(0)}, twice {times.count(2)} of {samples}"


@in_soak
@pytest.mark.timeout(4 * 3600)
def test_many_kills_cost_no_step_and_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PSTRAINING_HOT_KILLS kills, each at a random moment after all workers are prepared, cost no step; the standstills
    are printed.
    """
    kills, seed = int(os.environ.get("PSTRAINING_HOT_KILLS", "20")), random.randrange(10**6)
    dice, epochs = random.Random(seed), 16 * kills  # more than fit between the kills
    with job(tmp_path / "undisturbed", standbys=0, epochs=epochs) as run:
        assert finished(run, 40.0 * kills) == 0, transcript(run)
    monkeypatch.setenv("ORDERED_PAUSE", "0.5")
    sizes, costs = [], []
    with job(tmp_path / "killed", standbys=1, epochs=epochs) as run:
        for number in range(kills):
            until(run, lambda: ready(run), "all is ready for the next loss")
            sizes.append(resident(run))
            time.sleep(dice.random())  # a random moment
            run.kill(dice.choice(views(run)[-1][dice.randrange(2)]))
            until(run, lambda: min(map(len, standstills(run))) > number, "workers continue")  # noqa: B023
            costs.append(max(seconds[number] for seconds in standstills(run)))
            until(run, lambda: whole(run), "all members in sync again")
        monkeypatch.setenv("ORDERED_PAUSE", "0")
        for name in ("worker-0", "worker-1"):  # their successors do not wait
            run.kill(name)
        assert finished(run, 40.0 * kills) == 0, transcript(run)
        assert not run.processes["chief"].events("restored")
    assert_same(last(tmp_path / "killed"), last(tmp_path / "undisturbed"))
    said = f"first step after {np.median(costs):.2f} s (median), {max(costs):.2f} s (longest)"
    grown = {name: f"{first:.0f} to {sizes[-1][name]:.0f} MB" for name, first in sizes[0].items()}
    with capsys.disabled():
        print(f"\n{kills} kills, seed {seed}: {said}; resident from before the first to before the last: {grown}")


@in_soak
@pytest.mark.timeout(8 * 3600)
def test_many_failovers_leak_no_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After PSTRAINING_HOT_TAKEOVERS failovers and a quiet period, each surviving process has the memory that it had
    after the first one: 5 % more at most, or 20 % after more than 20 failovers.

    A server that survives is never renewed. It keeps the functions of a client's last connections, eight at most, and
    returns freed memory once a minute: 20 % more at most.
    """
    kills = int(os.environ.get("PSTRAINING_HOT_TAKEOVERS", "20"))
    monkeypatch.setenv("ORDERED_PAUSE", "0.5")
    sizes = list[dict[str, float]]()
    with job(tmp_path, standbys=1, ps=1, epochs=1000 * kills) as run:
        until(run, lambda: ready(run), "all is ready for the first loss")
        for _ in range(kills):
            sizes.append(resident(run, "ps-1"))
            before = len(views(run))
            run.kill("ps-0")
            until(run, lambda: len(views(run)) > before, "a view without it")  # noqa: B023 - it is waited for here
            until(run, lambda: whole(run), "all members in sync again")
            until(run, lambda: ready(run), "all is ready", 600)
        quiet = renewal.QUIET_SECONDS + 3 * renewal.TURN_SECONDS + 60.0
        times = {name: len(run.processes[name].events("renews")) for name in ("worker-0", "worker-1")}
        for name, before in times.items():
            until(run, lambda: len(run.processes[name].events("renewed")) > before, f"{name} is renewed", quiet)  # noqa: B023
        until(run, lambda: ready(run), "all is ready", 600)
        allowed = dict.fromkeys(sizes[0], 1.05 if kills <= 20 else 1.2) | {"ps-1": 1.2}
        end = time.monotonic() + 3 * freed_memory.EACH_SECONDS

        def is_back() -> bool:
            sizes.append(resident(run, "ps-1"))
            return all(size <= allowed[name] * sizes[1][name] for name, size in sizes[-1].items())

        until(run, lambda: is_back() or time.monotonic() > end, "the sizes at the end")
        assert not run.processes["chief"].events("restored")
        times = {name: len(run.processes[name].events("renewed")) for name in sizes[0]}
    grown = {name: (first, max(found[name] for found in sizes), sizes[-1][name]) for name, first in sizes[1].items()}
    reported = {name: f"{first:.0f}, at most {most:.0f}, {last:.0f} MB" for name, (first, most, last) in grown.items()}
    with capsys.disabled():
        print(f"\n{kills} take-overs, resident after the first, at most, and at the end: {reported}; renewed: {times}")
    assert all(last <= allowed[name] * first for name, (first, _, last) in grown.items()), reported


def ready(run: LocalJob) -> bool:
    """Return whether both workers are prepared for the loss of any member."""
    workers = [run.processes[name].events for name in ("worker-0", "worker-1")]
    reports = [[*events("failover_ready"), *events("renews")] for events in workers]
    return is_prepared(views_of(run), *(sorted(own, key=lambda event: event["time"]) for own in reports))


def standstills(run: LocalJob) -> list[list[float]]:
    """Return for each worker the seconds without a step after each loss."""
    return [
        [event["seconds"] for event in run.processes[name].events("resumed") if event["after"] == "lost"]
        for name in ("worker-0", "worker-1")
    ]


def resident(run: LocalJob, *others: str) -> dict[str, float]:
    """Return the resident anonymous megabytes of the processes that are never killed.

    The kernel counts the pages of TensorFlow's files only once a process reads them: a third of a gigabyte for a
    renewed program, which has imported them, and little for a fork of a test's warm process.
    """
    pids = {name: run.processes[name].popen.pid for name in ("chief", "worker-0", "worker-1", *others)}
    return {name: anonymous_megabytes(pid) for name, pid in pids.items()}
