"""Epochs, validation and callbacks on the chief of a job of real processes."""

import csv
import json
import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob
from tests.support import fit_program
from tests.support.hybrid_rig import HybridRig
from tests.support.servers import SPREAD, Rig, batches, small
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak, some
from tests.support.worker_threads import Crew
from tests.training.test_runtime_faults import finished, steps_of, transcript, until
from tests.training.test_runtime_logs import leading, still

pytestmark = [pytest.mark.training, pytest.mark.timeout(400)]
SMALL = {"workers": 1, "ps": 1}
"""Options of a job in which only the chief is tested."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FITTING_FOLDER", str(tmp_path))
    return tmp_path


def job(monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], folder: Path | None = None, **options: Any) -> LocalJob:
    monkeypatch.setenv("FITTING_PLAN", json.dumps(plan))
    checkpoint = {"path": str(folder / "checkpoints"), "keep": 3, "intervalSeconds": 1} if folder else None
    more: dict[str, Any] = {"workers": 2, "ps": 2, "training": SPREAD, **options}
    return LocalJob(["-m", "tests.support.fit_program"], checkpoint=checkpoint, **more)


def weights_of(weights: Iterable[Any]) -> Any:
    """Return the weights that `fit_program` has recorded."""
    return pytest.approx(float(sum(np.abs(weight).sum() for weight in weights)), rel=1e-6)


@pytest.mark.parametrize(
    "mode",
    some(
        ["Async", "Sync"],
        lambda mode: mode == "Sync",
        in_all(
            "tests/training/test_runtime_epochs.py::test_every_epoch_is_reported_once_with_its_snapshot"
        ),  # the same
    ),
)
def test_every_epoch_is_reported_once_with_its_snapshot(
    mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every epoch is reported once with its snapshot. In the last epochs callbacks have set the learning rate to 0."""
    trainer = {"epochs": 6, "steps_per_epoch": 30, "validation_every": 2}
    plan = {"trainer": trainer, "train_step": True, "evaluate": True, "no_rate_from": 3}
    plan["pace"] = 0.06  # so slow that each epoch is observed
    plan["batches_per_epoch"] = 15 if THOROUGH and mode == "Async" else 30  # of a worker
    with job(monkeypatch, plan, folder, training={"mode": mode}, **({} if THOROUGH else SMALL)) as run:
        assert finished(run) == 0, transcript(run)
        chief = run.processes["chief"]
        result, epochs, rates = chief.events("result")[0], chief.events("epoch"), chief.events("learning_rate")
    calls = [(line["call"], line.get("epoch")) for line in fit_program.notes(folder) if line["call"] != "test_begin"]
    expected = [(name, epoch) for epoch in range(6) for name in ("epoch_begin", "epoch_end")]
    assert calls == [("train_begin", None), *expected, ("train_end", None)]
    begin, ends = fit_program.notes(folder, "train_begin")[0], fit_program.notes(folder, "epoch_end")
    assert (begin["epochs"], begin["steps"]) == (6, 30)
    weights, logs = [line["weights"] for line in ends], [line["logs"] for line in ends]
    assert len({*weights[:3]}) == 3, "each sees its own snapshot"
    assert [line["value"] for line in rates] == [0.0]
    assert weights[4] == weights[5], "it does not move without a learning rate"
    assert logs[2]["loss"] < 0.8 * logs[0]["loss"]
    assert all(0 < line["hits"] <= 1 for line in logs)
    assert all(line["learning_rate"] == pytest.approx(0.01) for line in logs[:3])
    assert logs[2]["hits"] > logs[0]["hits"], "a custom training step reports metrics"
    assert ["val_loss" in line for line in logs] == [False, True] * 3, "every second epoch is validated"
    assert len(fit_program.notes(folder, "test_begin")) == 3
    for line in (ends[1], ends[3], ends[5]):
        assert line["accuracy"] == pytest.approx(line["logs"]["val_accuracy"]), "one snapshot for both"
    assert result["test_accuracy"] == pytest.approx(logs[5]["val_accuracy"]), "the last one is the result"
    assert [line["step"] >= 30 * (line["epoch"] + 1) for line in epochs] == [True] * 6
    if mode == "Sync":
        assert result["step"] == 180


def test_keras_callbacks_stop_the_job_for_good(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"keras": True, "trainer": {"epochs": 50, "steps_per_epoch": 50}, "pace": 0.02}
    # In `make test` worker 0 acts as the chief, so that one process fewer traces.
    with job(monkeypatch, plan, folder, restarts=1, chief=THOROUGH, **SMALL) as run:
        assert finished(run) == 0, transcript(run)
        chief = run.leader
        step = chief.events("result")[0]["step"]
        assert chief.events("ended_early")
        assert chief.events("best_restored")
        assert step < 50 * 50 / 2, "patience is 2 epochs, and a busy machine trains on while the chief reports them"
        assert run.processes["worker-0"].popen.wait(120) == 0
    ends = [line["epoch"] for line in fit_program.notes(folder, "epoch_end")]
    assert len(ends) == 3
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == ends
    assert all(float(row["val_loss"]) > 0 and float(row["loss"]) > 0 for row in rows)
    assert all(0 < float(row["accuracy"]) <= 1 for row in rows), "also the metrics of training"
    import keras

    # By its min_delta the first epoch was the best one: its weights are the result, also for a later chief.
    best = fit_program.notes(folder, "epoch_end")[0]["weights"]
    assert weights_of(keras.saving.load_model(folder / "checkpoints" / "final.keras").get_weights()) == best
    saved = Checkpoints(folder / "checkpoints", keep=3).load(step)
    assert weights_of(saved.variables.values()) == best

    assert keras.saving.load_model(folder / "best.keras").count_params() == 8 * 16 + 16 + 16 * 2 + 2
    if not THOROUGH:  # a second run is tests/training/test_example_digits.py's, too
        return
    # Run again on fresh servers, the job ends where it ended, without training and without callbacks.
    with job(monkeypatch, plan, folder, **SMALL) as again:
        assert finished(again) == 0, transcript(again)
        assert again.processes["chief"].events("result")[0]["step"] == step
        assert not again.processes["worker-0"].events("worker")
    assert len(fit_program.notes(folder, "epoch_end")) == 3
    assert Checkpoints(folder / "checkpoints", keep=3).steps()[-1] == step
    assert weights_of(keras.saving.load_model(folder / "checkpoints" / "final.keras").get_weights()) == best


@in_all("tests/training/test_runtime_epochs.py::test_keras_callbacks_stop_the_job_for_good")  # and the chief dies
def test_a_chief_killed_after_an_early_stop_does_not_train_further(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"trainer": {"epochs": 50, "steps_per_epoch": 50}, "pace": 0.02, "stop_after": 0}
    with job(monkeypatch, plan, None, restarts=1, **SMALL) as run:
        chief = run.processes["chief"]
        until(run, lambda: chief.events("ended_early"), "the early end")
        until(run, lambda: run.processes["worker-0"].events("worker_done"), "the workers' end")
        run.kill("chief")
        assert finished(run) == 0, transcript(run)
        assert chief.term == 2
        ended = chief.events("ended_early")[0]["step"]
        assert ended <= chief.events("result")[-1]["step"] < 50 * 50 / 2, "only updates in flight, and no further epoch"
    assert {line["term"] for line in fit_program.notes(folder)} == {1}


@in_all(
    "tests/training/test_runtime_stop.py::test_a_stopped_job_resumes_at_the_same_step"
)  # a lost chief in the middle of an epoch
def test_the_next_chief_continues_the_current_epoch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So slow that training lasts longer than the start of a chief.
    plan = {"trainer": {"epochs": 8, "steps_per_epoch": 60}, "pace": 0.08, "batches_per_epoch": 60}
    with job(monkeypatch, plan, folder, restarts=1, **SMALL) as run:
        until(run, lambda: len(fit_program.notes(folder, "epoch_end")) >= 2, "two epochs")
        run.kill("chief")
        assert finished(run) == 0, transcript(run)
    ends = [(line["term"], line["epoch"]) for line in fit_program.notes(folder, "epoch_end")]
    assert {term for term, _ in ends} == {1, 2}
    numbers = [epoch for _, epoch in ends]
    assert numbers == sorted(set(numbers)), "no epoch is reported twice"
    assert numbers[-1] == 7
    begins = [line["epoch"] for line in fit_program.notes(folder, "epoch_begin") if line["term"] == 2]
    assert begins[0] >= 2, "it does not start again"


@pytest.mark.parametrize("restored", [False, True])
def test_the_first_epoch_of_the_next_chief_has_its_own_losses(client: Any, *, restored: bool) -> None:
    """Workers may have trained whole epochs without a chief, whose losses nobody has taken from the servers."""
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Ends, Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    kept = [(900.0, 100.0), (20.0, 10.0)]
    admin = leading(Model(small, still, Objective("sparse_categorical_crossentropy")))
    admin.take_losses = lambda: kept.pop(0)
    counters, fit = ChiefCounters(), FitOptions(Epochs(10, 4))
    reporter = TrainingReporter(lambda: admin, fit, counters, steps=40, total=40)
    if restored:  # a restore has the losses of this chief's time only
        reporter.restored(25)
    reporter.begin(25)
    reporter._end_epoch(Ends(fit.epochs, 25), 1, 30, lambda: pytest.fail("no callback needs the state"), None)
    reporter._drain(lambda: time.sleep(0.01))
    assert counters.scalars["loss"] == (9.0 if restored else 2.0)


@in_soak
def test_finished_epochs_are_not_repeated_and_further_epochs_continue(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_again(epochs: int) -> tuple[int, list[int]]:
        plan = {"trainer": {"epochs": epochs, "steps_per_epoch": 40}, "pace": 0.05}
        with job(monkeypatch, plan, folder) as run:
            assert finished(run) == 0, transcript(run)
            step = run.processes["chief"].events("result")[0]["step"]
        return step, [line["epoch"] for line in fit_program.notes(folder, "epoch_end")]

    step, epochs = run_again(2)
    assert epochs == [0, 1]
    assert run_again(2) == (step, epochs)
    assert run_again(4)[1] == [0, 1, 2, 3]
    weights = [line["weights"] for line in fit_program.notes(folder, "epoch_end")]
    assert len(set(weights)) == 4, "it resumes from the first run's state"


@in_soak
def test_validation_delays_neither_training_nor_the_recovery_of_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"validation_batches": 60, "validation_pace": 0.1}  # six seconds
    plan = {"trainer": {"epochs": 400, "steps_per_epoch": 20}, "pace": 0.02, **slow}
    with job(monkeypatch, plan, folder, restarts=1) as run:
        chief = run.processes["chief"]
        until(run, lambda: fit_program.notes(folder, "test_begin"), "a validation")
        until(run, lambda: chief.events("checkpoint"), "something to restore")
        run.kill("ps-1")
        until(run, lambda: chief.events("restored"), "the state that is back")
        restored = chief.events("restored")[0]["step"]
        until(run, lambda: steps_of(run, "worker-0") > restored + 20, "steps after it")
        assert not fit_program.notes(folder, "epoch_end"), "the validation still continues"
        end = until(run, lambda: fit_program.notes(folder, "epoch_end"), "its end")[0]
        assert 0 < end["logs"]["val_accuracy"] <= 1
        assert end["accuracy"] == pytest.approx(end["logs"]["val_accuracy"]), "the snapshot is as it was taken"
        second = until(run, lambda: fit_program.notes(folder, "epoch_end")[1:], "the next one")[0]
        assert second["epoch"] > end["epoch"] + 1, "epochs that ended meanwhile are reported once"


@in_all("tests/training/test_runtime_fit.py::test_an_error_of_a_callback_keeps_its_message")  # and the job ends
def test_a_callback_that_raises_ends_the_job_with_its_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"trainer": {"epochs": 50, "steps_per_epoch": 30}, "fail_after": 1}
    with job(monkeypatch, plan, None, **SMALL) as run:
        assert finished(run) == 1, transcript(run)
        text = "\n".join(run.processes["chief"].lines)
    assert "CallbackError: a callback or the validation has failed: RuntimeError: this callback does not like" in text


@in_all("tests/training/test_runtime_epochs.py::test_every_epoch_is_reported_once_with_its_snapshot")  # its last epochs
def test_a_learning_rate_that_callbacks_set_is_the_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = {"epochs": 6, "steps_per_epoch": 60}
    plan = {"trainer": trainer, "pace": 0.03, "batches_per_epoch": 60, "no_rate_from": 2}
    with job(monkeypatch, plan, folder, restarts=2, workers=1) as run:
        assert finished(run) == 0, transcript(run)
        assert [line["value"] for line in run.processes["chief"].events("learning_rate")] == [0.0]
    weights = [line["weights"] for line in fit_program.notes(folder, "epoch_end")]
    assert weights[0] != weights[1], "it trains at first"
    assert weights[3] == weights[4] == weights[5], "and does not move without a learning rate"


def test_servers_accept_a_learning_rate_only_from_the_current_chief(client: Any) -> None:
    import keras

    from pstraining.runtime.chief.errors import FencedError

    rig = Rig(client, lambda: keras.optimizers.Adam(0.125), ps=2, build=small)
    rig.start()
    assert rig.control.learning_rates() == [0.125]
    with pytest.raises(FencedError):
        rig.control.set_learning_rates(2, [0.0])
    rig.control.set_learning_rates(1, [0.0])
    rig.train(batches(2))
    before = rig.control.snapshot(fence=1).variables
    for path, value in rig.initial.items():
        np.testing.assert_array_equal(before[path], value)
    rig.control.set_learning_rates(1, [0.25])
    assert rig.control.learning_rates() == [0.25]
    rig.train(batches(1))
    after = rig.control.snapshot(fence=1).variables
    assert all((after[path] != value).any() for path, value in rig.initial.items())
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    client.container += ".scheduled"
    scheduled = Rig(client, lambda: keras.optimizers.SGD(schedule), ps=1, build=small)
    scheduled.start()
    assert scheduled.control.learning_rates() == [None]


def test_a_learning_rate_holds_for_the_dense_parameters_that_workers_train(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mode Hybrid workers train the dense parameters, all of them with the same rate in each step."""
    import keras

    from pstraining.runtime.updates.hybrid import ring_member

    monkeypatch.setattr(ring_member, "RATES_SECONDS", -1.0)
    rig = HybridRig(client, lambda: keras.optimizers.Adam(0.125), ps=2 if ALL else 1, build=small, workers=2)
    rig.start()
    found = []
    for rate in (0.125, 0.0, 0.25):
        rig.control.set_learning_rates(1, [rate])
        Crew(rig, [batches(2, seed=worker) for worker in range(2)]).join()
        found.append(rig.snapshot().variables)
        rig.assert_replicas_are_equal()
    for path, value in rig.initial.items():
        assert (found[0][path] != value).any(), path
        np.testing.assert_array_equal(found[1][path], found[0][path], path)
        assert (found[2][path] != found[1][path]).any(), path
    for updates in rig.workers:
        updates.close()


def test_reports_of_added_workers_are_read(client: Any) -> None:
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small)
    rig.start()
    assert rig.store.register(2, 1)
    rig.store.heartbeat(2, 1, "later")
    assert rig.control.reports() == ["", "", "later"]


@in_all("tests/training/test_runtime_epochs.py::test_every_epoch_is_reported_once_with_its_snapshot")  # 20 s
def test_an_epoch_of_assigned_data_is_one_pass_over_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"trainer": {"epochs": 3}, "pieces": True, "pace": 0.05}
    with job(monkeypatch, plan, folder, ps=1, training={"mode": "Sync"}) as run:
        assert finished(run) == 0, transcript(run)
        reported = run.processes["chief"].events("epoch")
    assert [line["epoch"] for line in reported] == [0, 1, 2]
    # Two workers of 10 splits of 4 batches per epoch: at least 20 synchronous steps each.
    assert [line["step"] >= 20 * (line["epoch"] + 1) - 4 for line in reported] == [True] * 3


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("BackupAndRestore", {"backup_dir": "b"}, "the chief saves and restores checkpoints"),
        ("ModelCheckpoint", {"filepath": "m.keras", "save_freq": 10}, "only at the end of epochs"),
        ("TensorBoard", {"log_dir": "t", "update_freq": 10}, "leave out update_freq"),
        ("TensorBoard", {"log_dir": "t", "write_steps_per_second": True}, "leave out write_steps_per_second"),
        ("TerminateOnNaN", {}, "nonFinite"),
        ("SwapEMAWeights", {}, "leave it out; with use_ema, the model has the averages"),
    ],
)
def test_an_unsupported_callback_is_rejected(name: str, arguments: dict[str, Any], words: str) -> None:
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check

    with pytest.raises(CallbackRefusedError, match=name) as found:
        check([getattr(keras.callbacks, name)(**arguments)])
    assert words in str(found.value)


def test_tensorboard_without_its_package_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard without its package is rejected. TensorFlow does not install it, and without the check the chief
    fails at the end of the first epoch.
    """
    import keras

    from pstraining.runtime.chief import refusals

    for found in (object(), None):
        monkeypatch.setattr(refusals, "find_spec", {"tensorboard": found}.get)
        with (
            pytest.raises(refusals.CallbackRefusedError, match="pip install tensorboard")
            if not found
            else nullcontext()
        ):
            refusals.check([keras.callbacks.TensorBoard("logs")])


def test_a_batch_callback_is_rejected_and_an_epoch_callback_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, check

    class Batches(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    class Tracker(Batches):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            pass

    check([Tracker()])
    (reported,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (reported["event"], reported["callback"]) == ("batch_hooks_not_called", "Tracker")
    assert reported["hooks"] == ["on_train_batch_end"]

    with pytest.raises(CallbackRefusedError, match=r"Batches\.on_train_batch_end would never be called"):
        check([Batches()])
    with pytest.raises(CallbackRefusedError, match="not a keras"):
        check([print])
    with pytest.raises(CallbackRefusedError, match="LambdaCallback"):
        check([keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)])
    check(
        [
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
            keras.callbacks.CSVLogger(os.devnull),
            keras.callbacks.ModelCheckpoint("m.keras"),
            keras.callbacks.EarlyStopping(),
        ]
    )
