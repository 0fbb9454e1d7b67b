"""A metric that is NaN costs no other metric."""

from typing import Any

import pytest

from tests.support.servers import Rig, batches
from tests.training.test_runtime_fit import binary, in_one_process, reports

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
