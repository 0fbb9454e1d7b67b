"""The compute device, for which logical CPU devices stand in: its operations, the copies to it, and equal results."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.placement import computing_on, watched
from tests.support.servers import Rig, batches, in_float64, large, small
from tests.support.soak_marks import THOROUGH, in_all, some
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
INT8 = {"push": "Int8", "pull": "Int8"}
HERE = "worker 0 CPU:1"
TWO = ("CPU:1", "CPU:2")


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(1e-2)


def on_device(client: Any, made: Any) -> Any:
    """Put batches on the computing device, as a worker's input pipeline does."""
    import tensorflow as tf

    with tf.device(client.compute):
        return [tuple(tf.identity(part) for part in batch) for batch in made]


@pytest.mark.parametrize(
    ("settings", "fetches"),
    some(
        [
            ({"mode": "Async", "ps": 2}, 0),
            ({"mode": "Sync", "ps": 2}, 1),
            ({"mode": "Sync", "ps": 2, "compression": INT8}, 1),
            ({"mode": "Async", "ps": 1, "members": 2}, 0),
            ({"mode": "Sync", "ps": 1, "members": 2}, 1),
        ],
        lambda settings, fetches: (
            settings in ({"mode": "Async", "ps": 2}, {"mode": "Sync", "ps": 2, "compression": INT8})
        ),
        in_all(
            "tests/training/test_runtime_devices.py::test_the_device_computes_and_data_crosses_once_each_way"
        ),  # each mode once, one of them with a codec
    ),
    ids=["Async", "Sync", "Sync Int8", "Async hot", "Sync hot"],
)
def test_the_device_computes_and_data_crosses_once_each_way(client: Any, settings: Any, fetches: int) -> None:
    """A worker's first step computes on the device, and data crosses once in each direction; with rounds, the worker
    also fetches the parameters first.
    """
    from pstraining.runtime.compression.codecs import is_coded

    with computing_on(client, "CPU:1"):
        rig = Rig(client, adam, build=large, **settings)
        rig.start()
        assert all("CPU:1" in variable.value.device for variable in rig.workers[0]._store.model.variables)
        (batch,) = on_device(client, batches(1))
        with watched() as found:
            rig.train([batch])
    assert found.devices_of("MatMul") == {HERE}
    segments = [segment for shard in rig.store.shards for segment in shard.segments]
    once = len(segments)
    if "compression" in settings:
        assert HERE in found.devices_of("Round")
        once += sum(map(is_coded, segments))  # steps and scales
    assert found.sent(HERE) == once
    assert found.received(HERE) == once + fetches * len(segments)
    assert found.sent(HERE, ["float64"]) <= 1  # the numbers of the gradient
    assert {source for source, target, _ in found.between if target == HERE} == {"worker 0 CPU:0"}, "messages end there"


def assert_as_on_one_cpu(
    client: Any,
    devices: Sequence[str],
    make: Callable[[], Rig],
    train: Callable[[Rig], None],
    *,
    rtol: float,
    atol: float,
) -> None:
    """Demand that a rig that is created and trained on these devices ends with the values of one on CPU:0."""
    ends: list[dict[str, Any]] = []
    initial = None
    for number, used in enumerate((("CPU:0",), devices)):
        with computing_on(client, *used):
            client.container += f".{number}"
            rig = make()
            initial = rig.initial = initial or rig.initial
            rig.start()
            train(rig)
            ends.append(dict(rig.snapshot().variables))
    expected, found = ends
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=rtol, atol=atol)


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    "settings",
    some(
        [{"mode": "Sync", "ordered_sums": True}, {"mode": "Hybrid"}, {"mode": "Sync", "local_steps": 2}],
        lambda settings: "ordered_sums" in settings,
        in_all("tests/training/test_runtime_devices.py::test_another_device_gives_the_same_parameters"),  # modes
    ),
    ids=["Sync", "Hybrid", "localSteps"],
)
def test_another_device_gives_the_same_parameters(client: Any, settings: Any) -> None:
    workers = 2 if THOROUGH else 1

    def rig() -> Rig:
        return Rig(client, adam, ps=2, build=in_float64(small), workers=workers, **settings)

    def train(rig: Rig) -> None:
        shares = [batches(6, seed=worker) for worker in range(workers)]
        Crew(rig, shares, accumulation=settings.get("local_steps", 1)).join()

    assert_as_on_one_cpu(client, ["CPU:1"], rig, train, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("plain_arithmetic")
def test_several_devices_equal_one(client: Any) -> None:
    """Several devices give the parameters of one: with unequal parts, fewer samples than devices, and gradients that
    are clipped together.

    Keras computes the loss in float32, whatever the model's type. So the optimizer is linear in the gradient; Adam
    would turn the rounding of a gradient near zero into a step.
    """
    import keras

    made = [tuple(part[:samples] for part in batch) for batch, samples in zip(batches(2), (5, 1), strict=True)]

    def clipped() -> Any:
        return keras.optimizers.SGD(1e-2, momentum=0.9, global_clipnorm=0.3)

    def rig() -> Rig:
        return Rig(client, clipped, ps=1, build=in_float64(small), mode="Async")

    def train(rig: Rig) -> None:
        with watched() as found:
            rig.train(on_device(client, made))
        if len(client.devices) > 1:
            assert found.devices_of("MatMul") == {f"worker 0 {device}" for device in TWO}

    assert_as_on_one_cpu(client, TWO, rig, train, rtol=0, atol=1e-8)


@in_all("tests/training/test_runtime_devices.py::test_several_devices_equal_one")  # rows of tables
def test_several_devices_look_up_and_push_the_rows_of_tables(client: Any) -> None:
    import tensorflow as tf

    ids = np.random.default_rng(0).integers(0, 20, [3, 8, 4])
    made = [(tf.constant(one), tf.constant(one[:, 0] % 3)) for one in ids]

    def build() -> Any:
        import keras

        from pstraining.runtime import Embedding

        rows = Embedding(20, 6)(entry := keras.Input((4,), dtype="int64"))
        return keras.Model(entry, keras.layers.Dense(3, activation="softmax")(keras.layers.Flatten()(rows)))

    def rig() -> Rig:
        return Rig(client, adam, ps=1, build=build, mode="Sync")

    assert_as_on_one_cpu(client, TWO, rig, lambda rig: rig.train(made), rtol=1e-5, atol=1e-6)


@in_all("tests/training/test_runtime_data_parallel.py::test_a_compiled_pass_equals_an_uncompiled_one")  # connected
def test_xla_compiles_the_pass_of_a_connected_worker(client: Any) -> None:
    with computing_on(client, "CPU:1"):
        rig = Rig(client, adam, build=small, ps=1, mode="Async")
        rig.workers[0]._store.model.jit_compile = True
        rig.start()
        made = on_device(client, batches(2))
        with watched() as found:
            rig.train(made)
    assert not found.devices_of("MatMul")  # the operation is inside the compiled function


@pytest.mark.parametrize(("pod", "found"), [(None, "true"), ("false", "false")], ids=["by default", "as the pod says"])
def test_the_memory_of_gpus_grows_also_if_the_program_has_listed_its_devices(
    monkeypatch: pytest.MonkeyPatch, pod: str | None, found: str
) -> None:
    import tensorflow as tf

    from pstraining.runtime.transport import devices

    variable = "TF_FORCE_GPU_ALLOW_GROWTH"
    monkeypatch.setenv(variable, pod or "")
    if pod is None:
        monkeypatch.delenv(variable)
    tf.config.list_logical_devices()
    devices.prepare(0)
    assert os.environ[variable] == found
