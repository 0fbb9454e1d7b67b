"""A complete script with `fit`, and its conversion to a job, reach the same accuracy in every mode and precision."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from examples.convnet import plain
from examples.convnet.write import write
from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import in_all, in_soak, some
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
HALF_A_POINT = 0.005


@pytest.fixture(scope="module")
def data(cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the data files; they are read after the client has connected, before which no tensor may
    exist.
    """
    del cluster
    folder = tmp_path_factory.mktemp("digits")
    write(folder)
    return folder


@pytest.fixture
def former_policy() -> Iterator[None]:
    import keras

    former = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(former)


@in_all("tests/training/test_docs_guide.py::test_the_tutorial")  # a minute each; on kubelets, in half precision
@pytest.mark.parametrize(
    ("policy", "mode"),
    some(
        product(["float32", "mixed_bfloat16", "mixed_float16"], ["Sync", "Async"]),
        lambda policy, mode: (policy, mode) == ("float32", "Sync"),
        in_soak,
    ),
)
@pytest.mark.usefixtures("client", "former_policy")
def test_the_job_ends_where_the_script_ends(
    data: Path, mode: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    monkeypatch.setenv("DATA", str(data))
    program = ["-m", "examples.convnet", policy]
    with LocalJob(program, workers=2, training={"mode": mode}, checkpoint={"path": str(tmp_path)}) as run:
        assert finished(run) == 0, transcript(run)
        chief = run.processes["chief"]
        (result,), epochs, restored = (chief.events(name) for name in ("result", "epoch", "best_restored"))
    assert restored
    assert result["test_accuracy"] == pytest.approx(max(epoch["val_accuracy"] for epoch in epochs), abs=1e-6)
    assert epochs[-1]["learning_rate"] < 1e-5, "the schedule ends with training"
    assert list((tmp_path / "logs" / "validation").glob("events.*"))
    for name in ("final.keras", "best.keras"):
        model = keras.models.load_model(tmp_path / name)
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        accuracy = model.evaluate(plain.test_data(data), return_dict=True, verbose=0)["accuracy"]
        assert accuracy == pytest.approx(result["test_accuracy"], abs=1e-6), name

    keras.utils.set_random_seed(1)
    assert result["test_accuracy"] == pytest.approx(plain.main(data, policy), abs=HALF_A_POINT)
