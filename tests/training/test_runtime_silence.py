"""Servers that stop answering without crashing: no call waits for them longer than 5 seconds."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob, LocalProcess
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import http2_probe, watchdog
from tests.support import counting
from tests.support.netns import cut_off, own_network
from tests.support.servers import SPREAD, Rig, batches, small
from tests.support.soak_marks import THOROUGH, in_all, in_soak, some
from tests.training.test_runtime_faults import finished, steps_of, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.silence, pytest.mark.timeout(480)]
FAULT_SECONDS = 300.0
"""The longest time for which a server is stopped. A call that returns earlier was disconnected, and not answered."""
SILENCE = 12.0
"""The minimum number of seconds for which a server is unresponsive."""


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.1)


@contextmanager
def stopped(server: Any, seconds: float = FAULT_SECONDS) -> Iterator[None]:
    """Stop the process during the block, for a bounded time: its port still accepts connections, and its kernel
    acknowledges bytes.
    """
    server.send_signal(signal.SIGSTOP)
    go_on = threading.Timer(seconds, server.send_signal, [signal.SIGCONT])
    go_on.start()
    try:
        yield
    finally:
        go_on.cancel()
        go_on.join()
        server.send_signal(signal.SIGCONT)


def lost_by(call: Callable[[], Any]) -> Any:
    """Return the error by which a call reports a lost server."""
    from pstraining.runtime.transport.client import ShardLostError

    with pytest.raises(ShardLostError) as lost:
        call()
    return lost.value


@pytest.mark.parametrize(
    "traced",
    some(
        [True, False],
        lambda traced: traced,
        in_all(
            "tests/training/test_runtime_silence.py::test_a_call_to_an_unresponsive_server_fails_and_recovers"
        ),  # traced
    ),
)
def test_a_call_to_an_unresponsive_server_fails_and_recovers(
    client: Any, traced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(client, sgd, ps=2, build=small)
    rig.start()
    if traced:
        rig.train(batches(1))
    with stopped(client.servers[1]):
        lost = lost_by(lambda: rig.step(batches(1)[0]))
        again = lost_by(lambda: rig.step(batches(1)[0]))
    assert '"event": "silent"' in capsys.readouterr().out
    client.recover(lost)
    client.recover(again)
    rig.train(batches(2))


@pytest.mark.parametrize("number", [1, *([20] if THOROUGH else [])])
def test_connecting_waits_for_an_unresponsive_server_and_reports_it(
    client: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting waits for an unresponsive server and reports it, repeatedly: replies of its former context may still
    be unread.
    """
    from pstraining.runtime.transport import client as module

    rig = Rig(client, sgd, ps=2, build=small)
    rig.start()
    reported: list[str] = []

    def heard(name: str, **fields: Any) -> None:
        event(name, **fields)
        reported.append(name)
        if name == "waiting":
            client.servers[1].send_signal(signal.SIGCONT)

    monkeypatch.setattr(module, "event", heard)
    monkeypatch.setattr(watchdog, "event", heard)
    for _ in range(number):
        with stopped(client.servers[1]), client._exclusive():  # the server stopped answering after it had answered
            client._connect_all(first=False)
        assert reported.index("silent") < reported.index("waiting")
        reported.clear()
        rig.train(batches(2))


def test_a_slow_server_is_not_disconnected(
    client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tensorflow as tf

    asked: list[list[Any]] = []
    ask = http2_probe.unresponsive_peers

    def noted(peers: Any, patience: float) -> list[Any]:
        asked.append(ask(peers, patience))
        return asked[-1]

    monkeypatch.setattr(http2_probe, "unresponsive_peers", noted)

    def emit(seconds: Any) -> Any:
        with tf.device(client.shards[0]):
            until = tf.timestamp() + seconds
            matrix = tf.ones([500, 500])
            body = lambda value: [tf.matmul(value, matrix) / 500.0]  # noqa: E731
            (value,) = tf.while_loop(lambda _: tf.timestamp() < until, body, [matrix])
            return client.to_local(tf.reduce_mean(value))

    began = time.monotonic()
    held = tf.function(emit, autograph=False)
    assert client.call(held, tf.constant(6.0, tf.float64)) == pytest.approx(1.0, rel=1e-3)
    assert time.monotonic() - began >= 6
    assert len(asked) >= 2
    assert not any(asked)
    assert '"event": "silent"' not in capsys.readouterr().out


@in_all("tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds")  # stopped, not cut off
@pytest.mark.parametrize(("mode", "silent"), [pytest.param("Async", "stopped", marks=in_soak), ("Async", "cut off")])
def test_a_job_reports_an_unresponsive_server_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, silent: str
) -> None:
    workers = 2
    samples = 1500 * workers
    monkeypatch.setenv("COUNTING_SAMPLES", str(samples))
    monkeypatch.setenv("COUNTING_PACE", "0.05")
    checkpoint = {"path": str(tmp_path), "intervalSeconds": 3600}
    program = ["-m", "tests.support.counting"]
    with (
        own_network() if silent == "cut off" else nullcontext(),
        LocalJob(program, ps=2, workers=workers, training={"mode": mode, **SPREAD}, checkpoint=checkpoint) as run,
        ExitStack() as fault,
    ):
        names = [f"worker-{worker}" for worker in range(workers)]
        trainers = [run.processes[name] for name in ("chief", *names)]
        until(run, lambda: all(steps_of(run, name) for name in names), "all workers' steps")
        server = run.processes["ps-1"].popen
        if silent == "stopped":
            fault.enter_context(stopped(server))
        else:
            fault.enter_context(cut_off(int(run.cluster["ps"][1].rpartition(":")[2])))
        began = time.time()
        for process in trainers:
            until(
                run, partial(events_since, process, "silent", began), f"{process.task.label} probes", FAULT_SECONDS / 3
            )
            until(
                run, partial(events_since, process, "waiting", began), f"{process.task.label} waits", FAULT_SECONDS / 3
            )
        hangs = {process.task.label: events_since(process, "waiting", began)[0]["time"] - began for process in trainers}
        print(f"{mode}, {silent}: waited after {hangs}")
        remaining = SILENCE - (time.time() - began)
        time.sleep(max(0.0, remaining))  # the fault
        fault.close()
        over = time.time()
        for process in trainers:
            until(run, partial(events_since, process, "reconnected", over - 1), f"{process.task.label} reconnects")
        assert finished(run) == 0, transcript(run)
        assert all(process.starts == 1 for process in run.processes.values())
        assert not run.processes["chief"].events("restored"), "the server kept its state"
        state = Checkpoints(tmp_path, keep=3).newest()
    assert state is not None
    (accumulated,) = state.slots["accumulator"].values()
    times = counting.times_trained(accumulated[:samples], workers)
    assert times.count(1) == samples, f"lost {times.count(0)}, twice {times.count(2)} of {samples}"


def events_since(process: LocalProcess, name: str, began: float) -> list[dict[str, Any]]:
    return [line for line in process.events(name) if line["time"] >= began]
