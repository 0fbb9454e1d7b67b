"""Updates on real parameter servers: equal to Keras, fenced, and restorable onto another number of servers.

One client and three servers serve the whole module: a process connects to a cluster once. Every test has a container
of its own on the servers.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime import network
from pstraining.runtime.local import LocalJob
from pstraining.runtime.recovery import ATTEMPTS, ChiefAction, Session, Shard, decide
from pstraining.runtime.trainer import launcher_file

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
PS = 3
GENERATION = 7


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    network.set_environment()
    own = LocalJob([], ps=0, workers=1, chief=False).cluster  # an address for this process
    with LocalJob([str(launcher_file()), "serve"], ps=PS, workers=0, chief=False) as job:
        from pstraining.runtime.client import Client
        from pstraining.runtime.cluster import Cluster, Task

        addresses = {role: tuple(tasks) for role, tasks in {**job.cluster, **own}.items()}
        client = Client(Cluster(job="test", task=Task("worker", 0), addresses=addresses))
        client.connect()
        client.servers = [job.processes[f"ps-{index}"].popen for index in range(PS)]  # type: ignore[attr-defined]
        yield client
        client.close()


@pytest.fixture
def client(cluster: Any, request: pytest.FixtureRequest) -> Any:
    """The module's client, on a clean container."""
    cluster.container = "test." + "".join(c if c.isalnum() else "." for c in request.node.name)
    return cluster


class Bench:
    """A model on the first `ps` servers, initialised under term 1, and what belongs to it."""

    def __init__(self, client: Any, optimizer: Callable[[], Any], *, ps: int, build: Callable[[], Any]) -> None:
        import tensorflow as tf

        from pstraining.runtime.model import Model
        from pstraining.runtime.modes.async_ import AsyncUpdates
        from pstraining.runtime.store import ParameterStore, StoreControl

        everything = client.shards
        try:
            client.shards = everything[:ps]
            with tf.device(client.local):
                self.model = Model(build, optimizer, "sparse_categorical_crossentropy")
                self.store = ParameterStore(client, self.model)
        finally:
            client.shards = everything
        self.control = StoreControl(self.store)
        self.updates = AsyncUpdates(self.store)
        self.initial = self.model.values()

    def start(self, state: Any = None, *, term: int = 1) -> None:
        from pstraining.runtime.state import State

        self.control.raise_fence(self.store.read(), term)
        fresh = State(0, self.initial, {}, {})
        self.control.restore(state or fresh, term=term, generation=GENERATION, fresh=state is None)

    def train(self, batches: Any, *, term: int = 1) -> None:
        for batch in batches:
            assert self.updates.step(batch, Session(term, GENERATION)).accepted


def small() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def large() -> Any:
    """With one tensor of more than 256 KB that is cut, and statistics."""
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(400, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(400, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def batches(number: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(0)
    return [
        (
            tf.constant(random.normal(size=(16, 8)).astype("float32")),
            tf.constant(random.integers(0, 3, 16)),
        )
        for _ in range(number)
    ]


def optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    def decayed() -> Any:
        optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        return optimizer

    rate = keras.optimizers.schedules.CosineDecay
    return {
        "SGD": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(rate(0.1, 40), momentum=0.9, nesterov=True),
        "Adam": lambda: keras.optimizers.Adam(1e-2, clipnorm=0.5),
        "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
        "AdamW": decayed,
    }


@pytest.mark.parametrize("name", ["SGD", "momentum", "Adam", "Adagrad", "AdamW"])
def test_one_worker_equals_keras_in_one_process(client: Any, name: str) -> None:
    make = optimizers()[name]
    bench = Bench(client, make, ps=2, build=small)
    bench.start()
    bench.train(batches(50))
    state = bench.control.snapshot(term=1)

    alone = small()
    alone.compile(optimizer=make(), loss="sparse_categorical_crossentropy", jit_compile=False)
    for variable, tensor in zip(alone.trainable_variables, bench.model.tensors, strict=True):
        variable.assign(bench.initial[tensor.path])
    for batch in batches(50):
        alone.train_on_batch(*batch)

    assert state.step == 50
    for variable, tensor in zip(alone.trainable_variables, bench.model.tensors, strict=True):
        np.testing.assert_allclose(state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-6)


def test_statistics_and_large_cut_tensors_equal_keras(client: Any) -> None:
    import keras

    bench = Bench(client, lambda: keras.optimizers.SGD(0.05, momentum=0.9), ps=2, build=large)
    cut = [s for s in bench.store.layout.segments if len(s.pieces) == 1 and s.size > 10_000]
    assert {segment.ps for segment in cut} == {0, 1}, "the large tensor lies on both servers"
    bench.start()
    bench.train(batches(20))
    state = bench.control.snapshot(term=1)

    alone = large()
    alone.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        jit_compile=False,
    )
    variables = alone.trainable_variables + alone.non_trainable_variables
    for variable, tensor in zip(variables, bench.model.tensors, strict=True):
        variable.assign(bench.initial[tensor.path])
    for batch in batches(20):
        alone.train_on_batch(*batch)
    for variable, tensor in zip(variables, bench.model.tensors, strict=True):
        np.testing.assert_allclose(
            state.variables[tensor.path], variable.numpy(), rtol=0, atol=1e-5, err_msg=tensor.path
        )


def test_an_older_terms_updates_restores_and_snapshots_are_refused(client: Any) -> None:
    from pstraining.runtime.state import State
    from pstraining.runtime.store import RefusedError

    bench = Bench(client, optimizers()["SGD"], ps=2, build=small)
    bench.start()
    accepted: list[int] = []
    stop = threading.Event()

    def old_worker() -> None:
        for batch in batches(1) * 100_000:
            if stop.is_set():
                return
            if bench.updates.step(batch, Session(1, GENERATION)).accepted:
                accepted.append(1)

    worker = threading.Thread(target=old_worker)
    worker.start()
    try:
        wait_until(lambda: len(accepted) >= 20)
        bench.control.raise_fence(bench.store.read(), 2)
        raised = bench.control.snapshot(term=2)
        later = len(accepted)
        for _ in range(20):
            assert not bench.updates.step(batches(1)[0], Session(1, GENERATION)).accepted
    finally:
        stop.set()
        worker.join()
    assert len(accepted) - later <= 1, "nothing but an answer under way arrives after the raise"
    state = bench.control.snapshot(term=2)
    assert state.step == raised.step
    for path, value in raised.variables.items():
        np.testing.assert_array_equal(state.variables[path], value)

    with pytest.raises(RefusedError):
        bench.control.restore(State(0, bench.initial, {}, {}), term=1, generation=9, fresh=True)
    with pytest.raises(RefusedError):
        bench.control.snapshot(term=1)
    with pytest.raises(RefusedError):
        bench.control.raise_fence(bench.store.read(), 1)
    assert decide(bench.store.read(), term=1, layout=bench.store.fingerprint) is ChiefAction.SUPERSEDED
    np.testing.assert_array_equal(
        bench.control.snapshot(term=2).variables[bench.model.tensors[0].path],
        raised.variables[bench.model.tensors[0].path],
    )


def test_an_update_computed_on_a_replaced_set_is_refused(client: Any) -> None:
    bench = Bench(client, optimizers()["SGD"], ps=2, build=small)
    bench.start()
    bench.control.set_record(1, generation=0)
    assert not bench.updates.step(batches(1)[0], Session(1, GENERATION)).accepted
    bench.control.set_record(1, generation=GENERATION + 1)
    assert not bench.updates.step(batches(1)[0], Session(1, GENERATION)).accepted
    assert bench.updates.step(batches(1)[0], Session(1, GENERATION + 1)).accepted


def test_a_compare_and_set_of_the_fence_has_one_winner(client: Any) -> None:
    from pstraining.runtime.store import RefusedError

    bench = Bench(client, optimizers()["SGD"], ps=1, build=small)
    bench.start()
    seen = bench.store.read()
    bench.control.raise_fence(seen, 5)
    with pytest.raises(RefusedError):
        bench.control.raise_fence(seen, 6)
    assert [shard.fence for shard in bench.store.read()] == [5]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_checkpoint_restores_bit_equal_onto_another_number_of_servers(
    client: Any, before: int, after: int, tmp_path: Path
) -> None:
    import keras

    from pstraining.runtime.checkpoint import Checkpoints

    first = Bench(client, lambda: keras.optimizers.Adam(1e-3), ps=before, build=large)
    first.start()
    first.train(batches(5))
    saved = first.control.snapshot(term=1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(saved, term=1, layout=first.store.layout)

    client.container += ".after"
    second = Bench(client, lambda: keras.optimizers.Adam(1e-3), ps=after, build=large)
    restored = checkpoints.newest()
    assert restored is not None
    second.start(restored)
    state = second.control.snapshot(term=1)
    assert state.step == saved.step == 5
    assert state.scalars == saved.scalars
    for path, value in saved.variables.items():
        np.testing.assert_array_equal(state.variables[path], value)
    for slot, values in saved.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(state.slots[slot][path], value)
    first.train(batches(3))
    second.train(batches(3))
    one, other = first.control.snapshot(term=1), second.control.snapshot(term=1)
    for path, value in one.variables.items():  # a tensor cut otherwise may be updated by the other kernel
        np.testing.assert_allclose(other.variables[path], value, rtol=0, atol=1e-6, err_msg=path)


def test_another_optimizers_checkpoint_is_named_as_the_reason(client: Any) -> None:
    from pstraining.runtime.state import State, StateMismatchError

    bench = Bench(client, optimizers()["Adam"], ps=1, build=small)
    with pytest.raises(StateMismatchError, match="momentum"):
        bench.start(State(3, bench.initial, {}, {"counter0": np.array(3)}))


def test_a_call_to_a_server_that_froze_is_cut_and_mended(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.runtime import client as clients

    bench = Bench(client, optimizers()["SGD"], ps=2, build=small)
    bench.start()
    bench.train(batches(1))
    monkeypatch.setattr(clients, "CALL_PATIENCE", 2.0)
    frozen = client.servers[1]
    frozen.send_signal(signal.SIGSTOP)  # its port still accepts, its kernel still acknowledges
    try:
        with pytest.raises(clients.ShardLostError) as lost:
            bench.updates.step(batches(1)[0], Session(1, GENERATION))
    finally:
        frozen.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    client.recover(lost.value)
    bench.train(batches(2))


def test_every_server_is_marked_where_it_runs(client: Any, tmp_path: Path) -> None:
    bench = Bench(client, optimizers()["SGD"], ps=1, build=small)
    bench.control.mark(str(tmp_path / "owned"))
    assert (tmp_path / "owned").read_bytes() == b""


def test_an_empty_server_has_an_empty_record_and_no_session(client: Any) -> None:
    bench = Bench(client, optimizers()["SGD"], ps=2, build=small)
    assert bench.store.read() == [Shard(), Shard()]


def test_the_programs_own_mistake_is_not_taken_for_a_lost_server_for_ever(client: Any) -> None:
    import tensorflow as tf

    from pstraining.runtime.client import ShardLostError

    bench = Bench(client, optimizers()["SGD"], ps=1, build=small)
    bench.start()
    wrong = (batches(1)[0][0], tf.fill([16], tf.constant(99, tf.int64)))  # there are three classes
    for _ in range(ATTEMPTS - 1):
        with pytest.raises(ShardLostError):
            bench.updates.step(wrong, Session(1, GENERATION))
        bench.store.read()  # as a worker does before it tries again
    with pytest.raises(tf.errors.InvalidArgumentError):
        bench.updates.step(wrong, Session(1, GENERATION))


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_an_optimizer_that_looks_at_whole_tensors_is_refused(name: str) -> None:
    import keras

    from pstraining.runtime import optimizer

    with pytest.raises(optimizer.OptimizerError, match=name):
        optimizer.check(getattr(keras.optimizers, name)())


def test_an_unknown_optimizer_is_refused() -> None:
    import keras

    from pstraining.runtime import optimizer

    class Mine(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    with pytest.raises(optimizer.OptimizerError, match="Mine"):
        optimizer.check(Mine())


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
