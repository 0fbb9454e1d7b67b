"""Overlap of communication and computation in mode Async: the updates that a gradient misses, and those that are never
lost.
"""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pstraining.runtime.local import LocalJob
from pstraining.runtime.transport.client import ShardLostError
from tests.support import fit_program
from tests.support.placement import computing_on
from tests.support.servers import SESSION, Rig, batches, small
from tests.support.soak_marks import THOROUGH, in_all, some
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
OVERLAP: dict[str, Any] = {"mode": "Async", "overlapCommunication": True}


def momentum() -> Any:
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def started(client: Any, **settings: Any) -> Rig:
    rig = Rig(client, momentum, ps=2, build=small, **{**OVERLAP, **settings})
    rig.start()
    return rig


@pytest.fixture
def rig(shared: Any) -> Rig:
    """Return a started rig, the first one of this file."""
    found: Rig = shared(momentum, ps=2, build=small, **OVERLAP)
    return found


def train(rig: Rig, made: Any) -> list[Any]:
    """Train one update per batch; each step is given the batch of the next one."""
    worker, results = rig.workers[0], []
    updates = [[batch] for batch in made]
    for batch, following in zip(updates, [*updates[1:], None], strict=True):
        worker.expect(following)
        results.append(worker.step(batch))
        assert results[-1].session_valid
    return results


def in_one_process(rig: Rig, made: Any, *, delayed: bool) -> dict[str, Any]:
    """Return Keras's parameters; with `delayed`, each gradient but the first is computed without the update before
    it.
    """
    import keras
    import tensorflow as tf

    model, optimizer = small(), momentum()
    for variable, (path, value) in zip(model.variables, rig.initial.items(), strict=True):
        assert path.endswith(variable.name), "in the model's order"
        variable.assign(value)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy()
    before: list[Any] = []
    for x, y in made:
        now = [variable.numpy() for variable in model.trainable_variables]
        for variable, value in zip(model.trainable_variables, before or now, strict=True):
            variable.assign(value)
        with tf.GradientTape() as tape:
            found = loss(y, model(x, training=True))
        gradients = tape.gradient(found, [variable.value for variable in model.trainable_variables])
        for variable, value in zip(model.trainable_variables, now, strict=True):
            variable.assign(value)
        optimizer.apply(gradients)
        before = now if delayed else []
    return {path: variable.numpy() for path, variable in zip(rig.initial, model.variables, strict=True)}


def test_each_gradient_misses_the_workers_own_last_update_and_no_other(rig: Rig) -> None:
    made = batches(8)
    results = train(rig, made)
    expected, found = in_one_process(rig, made, delayed=True), rig.snapshot().variables
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, atol=1e-6)
    assert [result.staleness for result in results] == [0, *[1] * 7]
    plain = in_one_process(rig, made, delayed=False)
    assert any(np.abs(plain[path] - value).max() > 1e-3 for path, value in expected.items()), "the delay shows"


def test_without_the_next_batches_a_step_is_that_of_keras(rig: Rig) -> None:
    """Without the next batches, a step is that of Keras, as before a new split of the data that is not assigned yet."""
    for batch in batches(3):
        rig.workers[0].expect(None)
        assert rig.workers[0].step([batch]).staleness == 0


def test_the_next_gradient_is_computed_while_an_update_travels(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next gradient is computed while an update travels: the reply waits for the computation, so a single thread
    would wait forever.
    """
    worker = rig.workers[0]
    train(rig, batches(2))
    computed, compute, exchange = threading.Event(), worker._compute, worker._exchange
    overlapped: list[bool] = []

    def computing(made: Any) -> Any:
        gradient = compute(made)
        computed.set()
        return gradient

    def exchanging(*arguments: Any) -> Any:
        overlapped.append(computed.wait(60))
        return exchange(*arguments)

    first, second, third = [[batch] for batch in batches(3, seed=1)]
    worker.expect(second)
    assert worker.step(first).applied  # the second gradient has been computed
    monkeypatch.setattr(worker, "_compute", computing)
    monkeypatch.setattr(worker, "_exchange", exchanging)
    worker.expect(third)
    assert worker.step(second).applied
    assert overlapped == [True]


@pytest.mark.parametrize("settings", [{}, {"compression": {"push": "Int8"}}], ids=["plain", "Int8"])
def test_an_update_is_on_the_cpu_before_the_next_gradient_is_computed(client: Any, settings: Any) -> None:
    """An update is on the CPU before the next gradient is computed: a later copy would wait for that gradient."""
    import tensorflow as tf

    with computing_on(client, "CPU:1"):
        worker = started(client, **settings).workers[0]
        sent = worker._encoded([batches(1)[0]], 0)
    found = tf.nest.flatten((sent.gradient.stats, sent.parts, sent.gradient.rows))
    assert {tensor.backing_device.rpartition("device:")[2] for tensor in found} == {"CPU:0"}


@pytest.mark.parametrize("reached", [True, False], ids=["its reply was lost", "it was lost"])
def test_an_update_with_a_lost_reply_counts_once(
    client: Any, rig: Rig, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    made = batches(4)
    worker = rig.workers[0]
    train(rig, made[:2])
    third, fourth = [made[2]], [made[3]]
    exchange = worker._exchange

    def lost(*arguments: Any) -> Any:
        if reached:
            exchange(*arguments)
        raise ShardLostError("UNAVAILABLE: the reply is lost", client.connection)

    monkeypatch.setattr(worker, "_exchange", lost)
    worker.expect(fourth)
    with pytest.raises(ShardLostError):
        worker.step(third)
    monkeypatch.setattr(worker, "_exchange", exchange)
    worker.start_session(SESSION)
    worker.expect(fourth)
    assert worker.step(third).applied
    worker.expect(None)
    assert worker.step(fourth).step == 4
    assert [record.step for record in rig.store.read()] == [4, 4]


def test_a_gradient_computed_on_other_parameters_is_discarded(rig: Rig) -> None:
    """A gradient that was computed on other parameters is discarded, and computed again after a restore."""
    from pstraining.runtime.ps.record import Session

    worker, (first, second) = rig.workers[0], [[batch] for batch in batches(2)]
    worker.expect(second)
    assert worker.step(first).applied
    rig.start(rig.snapshot(), generation=8)
    worker.start_session(Session(1, 8))
    worker.expect(None)
    result = worker.step(second)
    assert (result.applied, result.staleness) == (True, 0), "not 1: it was computed on the restored parameters"


@pytest.mark.parametrize(
    "settings",
    some(
        [{"compression": {"push": "Int8", "pull": "Bf16"}}, {"accumulationSteps": 2}, {"members": 2}],
        lambda settings: "compression" in settings,
        in_all("tests/training/test_runtime_overlap.py::test_overlap_trains_with_codecs_standbys_and_several_batches"),
    ),
    ids=["codecs", "accumulation", "standbys"],
)
def test_overlap_trains_with_codecs_standbys_and_several_batches(client: Any, settings: Any) -> None:
    rig = started(client, **settings)
    rig.workers[0].warm_up([batches(1)[0]])
    rig.workers[0].start_session(SESSION)
    rig.workers[0].trace([batches(1)[0]])
    rig.workers[0].dry_run([batches(1)[0]])
    assert {record.step for record in rig.store.read()} == {0}, "a rehearsal has no effect"
    losses = [result.loss for result in train(rig, batches(1) * 12)]
    assert losses[-1] < 0.7 * losses[0]
    assert {record.step for record in rig.store.read()} == {12}


def test_a_stateful_rnn_is_rejected(client: Any) -> None:
    import keras

    from pstraining.runtime.model.errors import ModelError

    def build() -> Any:
        return keras.Sequential(
            [keras.Input(batch_shape=(16, 8, 1)), keras.layers.GRU(4, stateful=True), keras.layers.Dense(3)]
        )

    with pytest.raises(ModelError, match=r"overlapCommunication: an RNN with stateful=True.*leave"):
        Rig(client, momentum, ps=1, build=build, **OVERLAP)


def test_prefetched_data_follows_the_number_of_workers() -> None:
    from pstraining.runtime.data.batches import UpdateBatches
    from pstraining.runtime.worker.loop import Worker

    drawn: list[str] = []

    class Data:
        def restart(self) -> None:
            drawn.append("restart")

        def draw_ahead(self, number: int) -> UpdateBatches:
            drawn.append("batch")
            return UpdateBatches([])

    class Ahead(Worker):
        def __init__(self, changes: list[bool]) -> None:
            settings, updates = SimpleNamespace(batches_per_update=1), SimpleNamespace(expect=lambda batches: None)
            self._divided = cast("Any", SimpleNamespace(has_changed=lambda: changes.pop(0)))
            self._batches, self._training, self._updates = cast("Any", (Data(), settings, updates))
            self._upcoming = None

    worker = Ahead([False, True])
    for _ in range(2):
        worker._look_ahead()
        worker._draw()
    assert drawn == ["batch", "restart", "batch"]


@in_all("tests/training/test_runtime_overlap.py::test_each_gradient_misses_the_workers_own_last_update_and_no_other")
def test_every_sample_counts_once_in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample counts once in a job of two workers with data that is assigned in splits."""
    epochs = 2 if THOROUGH else 1
    monkeypatch.setenv("FITTING_PLAN", json.dumps({"trainer": {"epochs": epochs}, "pieces": True, "validation": False}))
    monkeypatch.setenv("FITTING_FOLDER", str(tmp_path))
    with LocalJob(["-m", "tests.support.fit_program"], workers=2, chief=False, training=OVERLAP) as run:
        assert finished(run) == 0, transcript(run)
        (result,) = run.leader.events("result")
        staleness = [event["staleness_max"] for event in run.leader.events("worker_done")]
    assert result["step"] == epochs * fit_program.SAMPLES / fit_program.BATCH
    assert max(staleness) >= 1, "it did overlap"
