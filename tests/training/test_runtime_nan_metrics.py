"""Losses and metrics that the logs of an epoch have, or lack: those that are NaN, and those of steps trained again."""

import json
import math
import time
from typing import Any

import pytest

from tests.support.servers import Rig, batches, small
from tests.training.test_runtime_fit import binary, in_one_process, reports
from tests.training.test_runtime_logs import leading, still

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


def compiled(seldom: float) -> dict[str, Any]:
    """Return metrics of which two are NaN: one for each batch, one for batches whose first label exceeds a limit."""
    import keras

    def never(_: Any, predicted: Any) -> Any:
        return keras.ops.log(-1.0 - predicted)

    def sometimes(labels: Any, _: Any) -> Any:
        return keras.ops.where(labels[:1] > seldom, float("nan"), labels + 1.0)

    return {"metrics": [never, "mse", sometimes, keras.metrics.PearsonCorrelation(), keras.metrics.AUC()]}


def test_a_metric_that_is_nan_is_left_out_alone(client: Any) -> None:
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.0), ps=1, build=binary, loss="mse", compiled=compiled(0.5))
    rig.start()
    given = [(x, x[:, :1] * 0 + number % 2) for number, (x, _) in enumerate(batches(4))]
    rig.train(given)
    _, logs = in_one_process(rig, binary, given, lambda: keras.optimizers.SGD(0.0), loss="mse", **compiled(0.5))
    assert {name for name, value in logs.items() if value != value} == {"never", "sometimes", "pearson_correlation"}
    outputs = rig.model.step.compiled.outputs
    reported = rig.new_store().model.step.compiled.results(outputs, reports(rig).state())
    assert reported.pop("sometimes") == 1.0  # of the batches with the label 0
    assert set(reported) == {"mse", "auc"}
    for name, value in reported.items():
        assert value == pytest.approx(logs[name], rel=1e-5), name


@pytest.mark.parametrize(("taken", "logged"), [((math.nan, 3.0), True), ((0.0, 0.0), False)])
def test_a_loss_that_is_nan_is_in_the_logs_as_in_fit(client: Any, taken: Any, logged: bool) -> None:
    """Its gradients may be finite. With `fit`, EarlyStopping ends such training; it would wait for a missing loss."""
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    chief = leading(Model(small, still, Objective("mse")))
    chief.take_losses, counters = lambda: taken, ChiefCounters()
    reporter = TrainingReporter(lambda: chief, FitOptions(Epochs(10, 2)), counters, steps=20, total=20)
    reporter.begin(0)
    reporter._end_epoch(reporter._watch, 1, 10, lambda: None, following=1)  # type: ignore[arg-type, return-value]
    reporter._drain(lambda: time.sleep(0.01))
    assert ("loss" in counters.scalars) == logged
    assert math.isnan(counters.scalars.get("loss", math.nan))


def test_a_metric_may_have_several_results_by_name(client: Any) -> None:
    """`fit` logs each of them. The chief ended with a TypeError when the first worker had reported."""
    import keras

    class Both(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="both")
            self.error = keras.metrics.MeanAbsoluteError(name="error")

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            self.error.update_state(y, predicted, sample_weight)

        def result(self) -> Any:
            return {
                "error": self.error.result(),
                "twice": 2 * self.error.result(),
                "each": self.error.result() * [1, 2],
            }

        def reset_state(self) -> None:
            self.error.reset_state()

    options: Any = [{"metrics": [Both(), "mse"]} for _ in range(2)]
    rig = Rig(client, lambda: keras.optimizers.SGD(0.0), ps=1, build=binary, loss="mse", compiled=options[0])
    rig.start()
    given = [(x, x[:, :1]) for x, _ in batches(3)]
    rig.train(given)
    _, logs = in_one_process(rig, binary, given, lambda: keras.optimizers.SGD(0.0), loss="mse", **options[1])
    compiled = rig.new_store().model.step.compiled
    reported = compiled.results(rig.model.step.compiled.outputs, reports(rig).state())
    assert set(reported) == compiled.names(rig.model.step.compiled.outputs) == {"error", "twice", "mse"}
    for name, value in reported.items():
        assert value == pytest.approx(logs[name], rel=1e-5), name


@pytest.mark.parametrize(("step", "loss"), [(3, 4.0), (2, 5.0)])
def test_the_epoch_after_a_restore_has_the_losses_of_the_steps_that_count(
    client: Any, capsys: pytest.CaptureFixture[str], step: int, loss: float
) -> None:
    """Steps after the checkpoint are trained again. If the chief has not saved it, those before are missing."""
    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Ends, Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    taken = [(0.0, 0.0), (30.0, 10.0), (900.0, 10.0), (50.0, 10.0)]
    admin = leading(Model(small, still, Objective("sparse_categorical_crossentropy")))
    admin.take_losses = lambda: taken.pop(0)
    counters, fit = ChiefCounters(), FitOptions(Epochs(10, 4))
    reporter, ends = TrainingReporter(lambda: admin, fit, counters, steps=40, total=40), Ends(fit.epochs, 0)
    reporter.begin(0)
    reporter.saving(3)
    reporter._collect()
    reporter.restored(step)
    reporter._follow_restore(ends, 4)
    reporter._end_epoch(ends, 1, 10, lambda: pytest.fail("no callback needs the state"), None)
    reporter._drain(lambda: time.sleep(0.01))
    assert counters.scalars["loss"] == loss
    missing = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "logs_incomplete" in line]
    assert [(line["epoch"], line["step"]) for line in missing] == ([] if step == 3 else [(0, 2)])


def test_epochs_that_are_trained_again_have_their_rates_of_learning_rate_scheduler(client: Any) -> None:
    """Steps of an earlier epoch had the rate of the epoch that the restore has left, without a word."""
    import keras

    from pstraining.runtime.chief.reports.reporting import FitOptions, TrainingReporter
    from pstraining.runtime.data.epochs import Ends, Epochs
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.telemetry.counters import ChiefCounters

    model = Model(small, lambda: keras.optimizers.SGD(0.5), Objective("sparse_categorical_crossentropy"))
    halves = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
    fit = FitOptions(Epochs(10, 9), callbacks=[halves])
    reporter, ends = (
        TrainingReporter(lambda: leading(model), fit, ChiefCounters(), steps=90, total=90),
        Ends(fit.epochs, 0),
    )
    ends.report(4)
    model.optimizer.learning_rate = 0.03125  # that of the fifth epoch
    found = []
    for done, busy in ((41, False), (12, True), (13, False), (19, False), (25, False), (40, True), (41, False)):
        reporter._follow_restore(ends, done, busy=busy)
        found.append(float(model.optimizer.learning_rate))
    assert found == [0.03125, 0.03125, 0.25, 0.25, 0.125, 0.125, 0.03125]
