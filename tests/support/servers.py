"""A model on real parameter servers, with small models and data."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pstraining.runtime.config.server import launcher_file
from pstraining.runtime.config.settings import TrainingSettings, resolve
from pstraining.runtime.local import LocalJob, hold_port
from pstraining.runtime.ps.record import Session
from pstraining.runtime.transport import sockets
from tests.support.placement import divide_cpu, wanted_devices

GENERATION = 7
SESSION = Session(1, GENERATION)
SPREAD = {"minShardBytes": 0}
"""Options that place a small model on all of a job's servers, so that every loss matters."""


@contextmanager
def connected(ps: int) -> Iterator[Any]:
    """Return a client of a number of servers, whose processes are its `servers`; at most once per process.

    The process has several logical CPU devices, which may stand in for accelerators: PSTRAINING_TEST_DEVICES names
    those that compute, as CPU:1,CPU:2.
    """
    sockets.set_environment()
    servers = LocalJob([str(launcher_file()), "serve"], ps=ps, workers=0, chief=False)
    with ExitStack() as held, servers as job:
        from pstraining.runtime.config.cluster import Cluster, Task
        from pstraining.runtime.transport.client import PSClient

        own = f"127.0.0.1:{hold_port(held)}"
        addresses = {"ps": tuple(job.cluster["ps"]), "worker": (own,)}
        divide_cpu()
        cluster = Cluster(job="test", task=Task("worker", 0), addresses=addresses)
        client = PSClient(cluster, compute_on=wanted_devices())
        client.connect()
        client.servers = [job.processes[f"ps-{index}"].popen for index in range(ps)]  # type: ignore[attr-defined]
        yield client
        client.close()


class Rig:
    """A model on the first `ps` servers, initialised under term 1, and one worker or more on it.

    Workers share the process's one connection; each has a model of its own. Each of the `ps` shards has `members`
    servers.
    """

    def __init__(
        self,
        client: Any,
        optimizer: Callable[[], Any],
        *,
        ps: int,
        build: Callable[[], Any],
        workers: int = 1,
        members: int = 1,
        loss: Any = "sparse_categorical_crossentropy",
        with_ledger: bool = False,
        compiled: dict[str, Any] | None = None,
        count: Callable[[], int] | None = None,
        **training: Any,
    ) -> None:
        from pstraining.runtime.chief.store_admin import StoreAdmin
        from pstraining.runtime.updates import factory
        from pstraining.runtime.updates.base import Identity

        settings = resolve("training", TrainingSettings, {"steps": 1, **training}, {})
        self.mode = factory.choose(settings, workers=workers, with_ledger=with_ledger, paired=members > 1, count=count)
        self._client, self._ps, self._members, self._make = client, ps, members, (build, optimizer, loss)
        self._container = client.container
        self._compiled = compiled or {}
        self.store = self.new_store(with_tables=True)
        self.model = self.store.model
        self.control: Any = StoreAdmin(self.store)
        self.initial = self.model.values()
        # A worker's store has no tables; the chief's store, which is the first one, has.
        stores = [
            self.new_store() if self.model.tables else self.store,
            *(self.new_store() for _ in range(workers - 1)),
        ]
        self.identities = [Identity(worker, 1) for worker in range(workers)]
        # Tests also read the state behind the ports.
        self.workers: list[Any] = [
            self.mode.make(store, who) for store, who in zip(stores, self.identities, strict=True)
        ]

    def new_store(self, *, with_tables: bool = False) -> Any:
        """Return another process's store on the same servers."""
        import tensorflow as tf

        from pstraining.runtime.model.keras_model import Model
        from pstraining.runtime.model.training.objective import Objective
        from pstraining.runtime.ps.store import ModelMembers, ParameterStore
        from pstraining.runtime.replication import encoding

        build, optimizer, loss = self._make
        with tf.device(self._client.compute):
            model = Model(build, optimizer, Objective(loss, **self._compiled), with_tables=with_tables)
        whole = self._client.cluster
        addresses = {**whole.addresses, "ps": whole.ps[: self._ps * self._members]}
        cluster = replace(whole, members=self._members, addresses=addresses)
        servers = replace(self._client.servers_of(cluster), container=self._container)
        size = encoding.size(self._ps, self._members) if self._members > 1 else 0
        with tf.device(self._client.local):
            return ParameterStore(
                ModelMembers(self._client, model, self.mode.hooks, acceptor_size=size, servers=servers)
            )

    def start(self, state: Any = None, *, term: int = 1, generation: int = GENERATION) -> None:
        from pstraining.runtime.checkpoint.state import State

        self.control.raise_fence(self.store.read(), term)
        fresh = State(0, self.initial, {}, {})
        self.control.restore(state or fresh, fence=term, generation=generation, fresh=state is None)
        if self._members > 1:
            self._lend()
        for who in self.identities:
            assert self.store.register(who.worker, who.incarnation)
        for updates in self.workers:
            assert updates._store.hold_frozen(Session(term, generation))
            updates.start_session(Session(term, generation))

    def start_noted(self) -> list[Any]:
        """Start the updates; return the arguments of each call of `control._demand`."""
        sent, demand = list[Any](), self.control._demand

        def noted(*call: Any) -> None:
            sent.append(call)
            demand(*call)

        self.control._demand = self.control.parts.demand_of = noted
        self.start()
        self.control._demand = self.control.parts.demand_of = demand
        return sent

    def _lend(self) -> None:
        """Grant all members a lease without an end."""
        import tensorflow as tf

        from pstraining.runtime.ps.critical_section import applied, critical, with_dependencies

        def lent(shard: Any) -> Any:
            lease = shard.member_state.lease
            return with_dependencies([lease.assign(tf.constant(4e9, tf.float64), read_value=False)], applied())

        def lend() -> Any:
            given = [critical(shard.device, shard.container, [], partial(lent, shard)) for shard in self.store.every]
            with tf.control_dependencies(given), tf.device(self._client.local):
                return tf.constant(0)

        self._client.call(tf.function(lend, autograph=False))

    def snapshot(self, seconds: float = 120) -> Any:
        """Return the state on the servers, while idle workers push the dense state that only they have.

        Raises:
            Exception: a resting worker failed; without its push the chief would wait forever.
        """
        ended, errors, deadline = threading.Event(), [], time.monotonic() + seconds

        def rest() -> None:
            try:
                while not ended.wait(0.05):  # each poll costs processor time, which the tracing of the snapshot needs
                    for updates in self.workers:
                        updates.on_idle(self.store.read())
            except Exception as error:  # noqa: BLE001 - raised again by the waiting chief
                errors.append(error)

        def wait() -> None:
            if errors:
                raise errors[0]
            assert time.monotonic() < deadline, "the workers did not push their dense parameters"
            time.sleep(0.05)

        thread = threading.Thread(target=rest)
        thread.start()
        try:
            return self.control.snapshot(fence=1, wait=wait)
        finally:
            ended.set()
            thread.join()
            self.control.resume_steps()

    def train(self, batches: Any) -> None:
        for batch in batches:
            assert self.step(batch).session_valid

    def step(self, batch: Any, session: Session | None = None) -> Any:
        """Train the first worker on one batch."""
        if session:
            self.workers[0].start_session(session)
        return self.workers[0].step([batch])


def warm_up(rig: Rig, made: Any) -> None:
    """Trace every function that updates of these batches need, as workers do before they join."""
    for updates in rig.workers:
        updates.warm_up(made)
        updates.start_session(SESSION)


def in_float64(build: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that builds the model with parameters and arithmetic in double precision."""

    def built() -> Any:
        import keras

        former = keras.config.dtype_policy()
        keras.config.set_dtype_policy("float64")
        try:
            return build()
        finally:
            keras.config.set_dtype_policy(former)

    return built


def small() -> Any:
    """Return a small model without kinks, for the reason given in `large`."""
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def large() -> Any:
    """Return a model with statistics and a tensor of more than 256 KB, which is sliced.

    It has no kinks: where a rectifier's input is within rounding of zero, two equal runs can diverge (1 of 60 did).
    """
    import keras

    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(400, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(400, activation="tanh"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def batches(number: int, *, seed: int = 0) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    return [
        (
            tf.constant(random.normal(size=(16, 8)).astype("float32")),
            tf.constant(random.integers(0, 3, 16)),
        )
        for _ in range(number)
    ]
