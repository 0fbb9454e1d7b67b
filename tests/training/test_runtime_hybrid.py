"""Hybrid updates on real parameter servers equal one process, and all workers hold the same bits."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.ps import worker_registry
from pstraining.runtime.ps.data_ledger import SplitPosition
from tests.support.hybrid_rig import HybridRig
from tests.support.placement import USUAL, assert_computes
from tests.support.servers import GENERATION, SESSION, batches, in_float64, large, small
from tests.support.soak_marks import ALL, in_all, some
from tests.support.worker_threads import Crew
from tests.training import test_runtime_embedding as embedding
from tests.training.test_runtime_sync import STEPS, convolutional, in_one_process, optimizer

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


@pytest.fixture
def rigs(client: Any) -> Iterator[Any]:
    """Create rigs, and close their workers' connections."""
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> HybridRig:
            rig = HybridRig(client, *arguments, **options)
            stack.callback(lambda: [updates.close() for updates in rig.workers])
            rig.start()
            return rig

        yield make


def shares_of(workers: int, make: Any, steps: int) -> list[list[Any]]:
    """Return batches for each worker; those of a third worker are twice as large.

    A step has a power of two of samples, by which Keras's division in float32 is exact.
    """
    import tensorflow as tf

    found = [make(steps, seed=worker) for worker in range(workers)]
    if workers == 3:
        more = make(steps, seed=3)
        pairs = zip(found[2], more, strict=True)
        found[2] = [tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), one, two) for one, two in pairs]
    return found


def sgd() -> Any:
    return optimizer("momentum")


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    ("name", "ps", "workers"),
    some(
        [("SGD", 1, 2), ("momentum", 2, 3), ("Adam", 2, 3), ("Adagrad", 3, 2), ("Adam", 1, 1)],
        lambda name, ps, workers: (name, workers) == ("Adam", 3),
        in_all("tests/training/test_runtime_updates.py::test_one_worker_equals_keras_in_one_process"),  # optimizers
    ),
)
def test_it_equals_one_process_on_all_batches_together(rigs: Any, name: str, ps: int, workers: int) -> None:
    build = in_float64(convolutional)
    rig = rigs(lambda: optimizer(name), ps=ps, build=build, workers=workers)
    shares = shares_of(workers, batches, STEPS)
    Crew(rig, shares).join()
    state = rig.snapshot()
    assert state.step == STEPS
    rig.assert_replicas_are_equal()
    expected = in_one_process(rig, build, name, list(zip(*shares, strict=True)), ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-9, atol=1e-12)


@in_all("tests/training/test_runtime_clipping.py::test_table_rows_count_towards_the_norm")  # in Hybrid, too
@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(("name", "ps", "workers"), [("SGD", 2, 2), ("Adagrad", 1, 3), ("clipped", 2, 2)])
def test_with_tables_it_equals_keras_in_one_process(rigs: Any, name: str, ps: int, workers: int) -> None:
    make = embedding.OPTIMIZERS[name]
    build = in_float64(embedding.ours())
    rig = rigs(make, ps=ps, build=build, workers=workers, loss="binary_crossentropy")
    shares = shares_of(workers, embedding.batches, 30)
    Crew(rig, shares).join()
    embedding.equal(rig.snapshot(), embedding.in_one_process(rig, make, list(zip(*shares, strict=True))))
    rig.assert_replicas_are_equal()


@in_all("tests/training/test_runtime_sync.py::test_accumulated_batches_equal_one_large_batch")  # around a ring
@pytest.mark.usefixtures("plain_arithmetic")
def test_accumulated_batches_equal_one_large_batch(rigs: Any) -> None:
    build = in_float64(convolutional)
    rig = rigs(lambda: optimizer("Adam"), ps=2, build=build, workers=2, accumulation_steps=4)
    shares = [batches(40, seed=worker) for worker in range(2)]
    Crew(rig, shares, accumulation=4).join()
    steps = [[*shares[0][k : k + 4], *shares[1][k : k + 4]] for k in range(0, 40, 4)]
    state, expected = rig.snapshot(), in_one_process(rig, build, "Adam", steps, ordered=False)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-9, atol=1e-12)


def test_gradients_with_nan_never_reach_the_parameters(rigs: Any) -> None:
    import tensorflow as tf

    rig = rigs(lambda: optimizer("Adam"), ps=1, build=small, workers=2)
    good = batches(1, seed=0)[0]
    bad = (tf.fill([16, 8], float("nan")), good[1])
    crew = Crew(rig, [[good, bad], [bad, bad]])
    crew.join()
    assert [reply.finite for reply in crew.replies[0]] == [True, False]
    state, expected = rig.snapshot(), in_one_process(rig, small, "Adam", [[good]], ordered=False)
    assert state.step == 2
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=1e-4, atol=1e-6)


def test_already_trained_batches_are_rejected(rigs: Any) -> None:
    rig = rigs(sgd, ps=1, build=small, with_ledger=True)
    assert rig.store.assign_split(SESSION, (0, 1), 3) == (1, 0, 0)
    one, two = batches(2)
    assert rig.workers[0].step([one], SplitPosition(0, 1, finished=False)).applied
    reply = rig.workers[0].step([one], SplitPosition(0, 1, finished=False))
    assert (reply.session_valid, reply.applied, reply.done) == (False, False, False)
    rig.workers[0].start_session(SESSION)
    assert rig.workers[0].step([two], SplitPosition(0, 2, finished=True)).applied
    assert [shard.step for shard in rig.store.read()] == [2]


@in_all("tests/training/test_runtime_hybrid.py::test_a_late_worker_gets_the_others_parameters")  # statistics, too
def test_statistics_are_averaged_and_equal_on_all_workers(rigs: Any) -> None:
    rig = rigs(sgd, ps=2, build=large, workers=2)
    Crew(rig, [batches(5, seed=worker) for worker in range(2)]).join()
    rig.assert_replicas_are_equal()
    values = rig.snapshot().variables
    assert any("moving_mean" in path and (value != rig.initial[path]).any() for path, value in values.items())


def test_a_late_worker_gets_the_others_parameters(rigs: Any) -> None:
    rig = rigs(lambda: optimizer("Adam"), ps=1, build=large, workers=2)
    Crew(rig, [batches(3, seed=0), batches(3, seed=1)]).join()
    rig.assert_replicas_are_equal()
    rig.replace(1)
    assert rig.workers[1]._dense.step is None
    Crew(rig, [batches(3, seed=2), batches(3, seed=3)]).join()
    rig.assert_replicas_are_equal()
    state = rig.snapshot()
    assert rig.workers[1]._dense.step == state.step
    assert any("moving_mean" in path and (value != rig.initial[path]).any() for path, value in state.variables.items())


@pytest.mark.parametrize(
    "device",
    some(
        [USUAL, "CPU:1"],
        lambda device: device == USUAL,
        in_all("tests/training/test_runtime_devices.py::test_another_device_gives_the_same_parameters"),  # a loss
    ),
    indirect=True,
)
def test_a_crashed_worker_is_excluded(device: str, rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 8.0)
    rig = rigs(sgd, ps=2 if ALL else 1, build=small, workers=3)
    assert_computes(rig.store, device)
    Crew(rig, [batches(2, seed=worker) for worker in range(3)]).join()
    rig.workers[1]._member.transport.close()
    crew = Crew(rig, [batches(5, seed=5), [], batches(5, seed=6)])
    crew.join()
    assert [reply.step for reply in crew.replies[0] if reply.applied] == [3, 4, 5, 6, 7]
    del rig.workers[1]
    rig.assert_replicas_are_equal()


def test_diverged_parameters_are_detected_and_replaced(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pstraining.runtime.updates.hybrid import ring_member

    monkeypatch.setattr(ring_member, "CHECK_STEPS", 1)
    rig = rigs(sgd, ps=2 if ALL else 1, build=small, workers=3)
    Crew(rig, [batches(2, seed=worker) for worker in range(3)]).join()
    (vector, *_) = rig.workers[1]._dense._parts[0].vectors
    vector.assign(vector.read_value() + 1e-3)
    Crew(rig, [batches(3, seed=worker) for worker in range(3)]).join()
    rig.assert_replicas_are_equal()
    assert '"event": "diverged"' in capfd.readouterr().out


@pytest.mark.usefixtures("plain_arithmetic")
@in_all(
    "tests/training/test_runtime_optimizers.py"
    "::test_an_optimizer_on_whole_tensors_is_restored_onto_another_number_of_servers"
)  # in Hybrid
def test_a_checkpoint_is_restored_equal_onto_another_number_of_servers(rigs: Any, client: Any, tmp_path: Path) -> None:
    rules = {"build": in_float64(embedding.ours()), "workers": 2, "loss": "binary_crossentropy"}
    first = rigs(lambda: optimizer("Adam"), ps=3, **rules)
    Crew(first, [embedding.batches(5, seed=worker) for worker in range(2)]).join()
    saved, checkpoints = first.snapshot(), Checkpoints(tmp_path, keep=1)
    checkpoints.save(saved, term=1, layout=first.store.layout)
    more = [embedding.batches(3, seed=seed) for seed in (7, 8)]
    Crew(first, more).join()
    expected = first.snapshot()
    client.container += ".after"
    second = rigs(lambda: optimizer("Adam"), ps=2, **rules)
    second.start(checkpoints.newest())
    for updates in second.workers:  # another generation than the rig's first one
        updates._dense.step = None
    Crew(second, more).join()
    state = second.snapshot()
    assert state.step == expected.step == saved.step + 3
    for path, value in expected.variables.items():
        np.testing.assert_allclose(state.variables[path], value, rtol=1e-9, atol=1e-12)


def test_the_set_is_abandoned_when_no_worker_has_the_newest_parameters(
    rigs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pstraining.runtime.updates.hybrid import updates as hybrid

    monkeypatch.setattr(hybrid, "LOST_SECONDS", 0.5)
    rig = rigs(sgd, ps=1, build=small, workers=2)
    Crew(rig, [batches(3, seed=worker) for worker in range(2)]).join()
    for worker in range(2):
        rig.replace(worker)
    assert {record.generation for record in rig.store.read()} == {GENERATION}
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda updates: updates.step(batches(1)), rig.workers, timeout=180))
    assert [reply.session_valid for reply in replies] == [False, False]
    assert rig.store.read()[0].generation == 0, "the chief sees by it that it has to restore"


def test_no_step_is_applied_during_a_save(rigs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.runtime.chief import store_admin

    monkeypatch.setattr(store_admin, "PAUSE_SECONDS", 60.0)
    rig = rigs(sgd, ps=1, build=small, workers=2)
    Crew(rig, [batches(2, seed=worker) for worker in range(2)]).join()
    assert rig.control._pause
    seen = []

    def wait() -> None:
        seen.append([record.step for record in rig.store.read()])
        for updates in rig.workers:
            updates.on_idle(rig.store.read())

    assert rig.control.flush_dense(wait) == 2
    crew = Crew(rig, [batches(1, seed=worker) for worker in range(2)])
    deadline = time.monotonic() + 60
    while not all(updates._member.held is not None for updates in rig.workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [record.step for record in rig.store.read()] == [2]
    rig.control.resume_steps()
    crew.join()
    assert [record.step for record in rig.store.read()] == [3]


def at_step_2(rigs: Any, monkeypatch: pytest.MonkeyPatch, *, claim_seconds: float, ps: int = 2) -> HybridRig:
    """Return a rig of two workers whose dense parameters are newer than those of the servers."""
    from pstraining.runtime.updates.hybrid import server as hybrid_server

    monkeypatch.setattr(hybrid_server, "CLAIM_SECONDS", claim_seconds)
    rig: HybridRig = rigs(sgd, ps=ps, build=small, workers=2)
    Crew(rig, [batches(2, seed=worker) for worker in range(2)]).join()
    return rig


def claims(rig: HybridRig, worker: int) -> int:
    """Whether a worker may push its dense parameters of step 2."""
    import tensorflow as tf

    updates = rig.workers[worker]
    arguments = updates._session, updates._shared.identity, tf.constant(2, tf.int64), updates._barred()
    return int(rig.control.client.call(updates._ops.claim, *arguments))


def bring_to_the_first(updates: Any) -> None:
    """Push the dense parameters of step 2 to the first server only."""
    import tensorflow as tf

    def first(session: Any, step: Any, values: Any) -> Any:
        return updates._client.to_local(updates._ops.servers[0].store(session, step, values))

    values = updates._dense.per_server(updates._dense.read())[0]
    arguments = updates._session, tf.constant(2, tf.int64), values
    assert int(updates._client.call(tf.function(first, autograph=False), *arguments)) == 1


def test_one_worker_pushes_the_parameters_and_another_one_replaces_it(
    rigs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = at_step_2(rigs, monkeypatch, claim_seconds=4.0, ps=1)  # less than a request of the chief lasts
    assert claims(rig, 0) == 0, "no chief has requested them"
    found: list[int] = []

    def wait() -> None:
        if not found:
            rig.store.heartbeat(0, 1)
            found.extend([claims(rig, 0), claims(rig, 1), claims(rig, 0)])
            deadline = time.monotonic() + 60
            while not claims(rig, 1):  # a rejected claim does not extend the deadline
                rig.store.heartbeat(0, 1)
                assert time.monotonic() < deadline
                time.sleep(0.05)
        rig.workers[1].on_idle(rig.store.read())

    assert rig.control.flush_dense(wait) == 2
    assert found == [1, 0, 1], "the worker with the claim may repeat it"
    rig.store.heartbeat(1, 1)
    assert claims(rig, 0) == 0, "the servers have them"
    rig.control.resume_steps()


@in_all(
    "tests/training/test_runtime_hybrid.py::test_a_worker_that_breaks_the_ring_during_its_push_delays_no_other"
)  # the ways in which its death is noticed
@pytest.mark.parametrize("known_by", ["silence", "its next process"])
def test_no_worker_waits_for_one_that_crashed_during_its_push(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """No worker waits for one that crashed during its push to the first server: the other worker pushes to both."""
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 3.0 if known_by == "silence" else 600.0)
    rig = at_step_2(rigs, monkeypatch, claim_seconds=1000.0)
    claimed: list[int] = []
    deadline = time.monotonic() + 60

    def wait() -> None:
        assert time.monotonic() < deadline
        if not claimed:
            rig.store.heartbeat(1, 1)
            claimed.append(claims(rig, 1))
            bring_to_the_first(rig.workers[1])
            assert claims(rig, 0) == 0
            if known_by == "its next process":
                rig.replace(1)
        if known_by == "its next process":
            rig.store.heartbeat(1, 2)
        rig.workers[0].on_idle(rig.store.read())

    assert rig.control.flush_dense(wait) == 2
    assert claimed == [1]
    rig.control.resume_steps()


def test_a_worker_that_breaks_the_ring_during_its_push_delays_no_other(
    rigs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that breaks the ring during its push delays no other worker: its neighbours know of the crash before any
    server does.
    """
    rig = at_step_2(rigs, monkeypatch, claim_seconds=1000.0)
    survivor, victim = rig.workers
    gone, end = threading.Event(), threading.Event()
    bring_home = survivor._push_dense

    def die(view: Any) -> None:
        assert claims(rig, 1) == 1
        bring_to_the_first(victim)
        victim._member.transport.close()  # sockets end as those of a killed process
        gone.set()
        end.wait(60)
        raise SystemExit

    monkeypatch.setattr(victim, "_push_dense", die)
    monkeypatch.setattr(survivor, "_push_dense", lambda view: bring_home(view) if gone.is_set() else None)
    crews: list[Crew] = []
    deadline = time.monotonic() + 60

    def wait() -> None:
        assert time.monotonic() < deadline
        if not crews:
            crews.append(Crew(rig, [batches(1, seed=worker) for worker in range(2)]))
        rig.store.heartbeat(1, 1)  # the servers consider it alive
        time.sleep(0.01)

    assert rig.control.flush_dense(wait) == 2
    assert gone.is_set()
    rig.control.resume_steps()
    crews[0].threads[0].join(60)
    assert [reply.step for reply in crews[0].replies[0] if reply.applied] == [3]
    end.set()
