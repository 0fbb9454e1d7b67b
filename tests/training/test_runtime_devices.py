"""The compute device, for which logical CPU devices stand in: what runs there, what crosses, and equal results."""

from typing import Any

import numpy as np
import pytest

from tests.support.placement import computing_on, watched
from tests.support.servers import Rig, batches, in_float64, large, small
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
INT8 = {"push": "Int8", "pull": "Int8"}
HERE = "worker 0 CPU:1"


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(1e-2)


def on_device(client: Any, made: Any) -> Any:
    """Batches on the device that computes, as a worker's input pipeline leaves them."""
    import tensorflow as tf

    with tf.device(client.compute):
        return [tuple(tf.identity(part) for part in batch) for batch in made]


@pytest.mark.parametrize(
    ("settings", "fetches"),
    [
        ({"mode": "Async", "ps": 2}, 0),
        ({"mode": "Sync", "ps": 2}, 1),
        ({"mode": "Sync", "ps": 2, "compression": INT8}, 1),
        ({"mode": "Async", "ps": 1, "members": 2}, 0),
        ({"mode": "Sync", "ps": 1, "members": 2}, 1),
    ],
    ids=["Async", "Sync", "Sync Int8", "Async hot", "Sync hot"],
)
def test_the_device_computes_and_what_travels_crosses_once_each_way(client: Any, settings: Any, fetches: int) -> None:
    """In a worker's first step; in rounds it also fetches the parameters before."""
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


def values_after(client: Any, device: str, settings: Any, initial: Any = None) -> tuple[Any, dict[str, Any]]:
    """Initial and final values."""
    with computing_on(client, device):
        client.container += device.replace(":", ".")
        rig = Rig(client, adam, ps=2, build=in_float64(small), workers=2, **settings)
        rig.initial = initial or rig.initial
        rig.start()
        Crew(rig, [batches(6, seed=worker) for worker in range(2)], accumulation=settings.get("local_steps", 1)).join()
        return rig.initial, dict(rig.snapshot().variables)


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    "settings",
    [{"mode": "Sync", "ordered_sums": True}, {"mode": "Hybrid"}, {"mode": "Sync", "local_steps": 2}],
    ids=["Sync", "Hybrid", "localSteps"],
)
def test_another_device_leads_to_the_same_parameters(client: Any, settings: Any) -> None:
    initial, expected = values_after(client, "CPU:0", settings)
    _, found = values_after(client, "CPU:1", settings, initial)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-9, atol=1e-12)
