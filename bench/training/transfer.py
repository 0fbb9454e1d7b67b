"""A worker's program that only pulls and pushes, alternately with a raw TCP stream over the same link.

It uses the functions of a worker's step with separate pull and push. The optimizer is SGD without slots, because the
link is measured and not arithmetic. BENCH_MODEL sets the model, BENCH_ROUNDS the number of rounds, and BENCH_RAW the
address of the stream's other end.
"""

import itertools
import os
import time
from functools import partial
from typing import Any

from bench.training import models, raw
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.config.server import become_server
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.ps.record import Session
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import sockets

SESSION = Session(1, 1)


def transfer(cluster: clusters.Cluster) -> None:
    """Pull and push; report the seconds of each."""
    import tensorflow as tf

    from pstraining.runtime.transport.client import PSClient

    client = PSClient(cluster)
    client.connect()
    with tf.device(client.local):
        name = os.environ["BENCH_MODEL"]
        pull, push = _prepared(client, name)
        host, port = sockets.split(os.environ["BENCH_RAW"])
        stream, size = raw.Stream(host, port), models.bytes_of(name)
        for warm in (pull, push, partial(stream.pull, size), partial(stream.push, size)):
            warm()
        for _ in range(int(os.environ["BENCH_ROUNDS"])):
            event(
                "transfer",
                megabytes=size / 1e6,
                pull=_timed(pull),
                raw_pull=stream.pull(size),
                push=_timed(push),
                raw_push=stream.push(size),
            )
    event("transferred")


def _prepared(client: Any, name: str) -> tuple[Any, Any]:
    """Return the functions that pull the whole model, and push a gradient."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.checkpoint.state import State
    from pstraining.runtime.chief.store_admin import StoreAdmin
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.ps.store import ModelMembers, ParameterStore
    from pstraining.runtime.updates import factory
    from pstraining.runtime.updates.asynchronous.messages import UpdateHeader
    from pstraining.runtime.updates.asynchronous.updates import AsyncUpdates
    from pstraining.runtime.updates.base import Identity, as_numbers

    mode = factory.choose(TrainingSettings(steps=1), workers=1)
    model = Model(partial(models.build, name), lambda: keras.optimizers.SGD(1e-9), Objective("mse"))
    store, identity = ParameterStore(ModelMembers(client, model, mode.hooks)), Identity(0, 1)
    control = StoreAdmin(store)
    control.raise_fence(store.read(), SESSION.fence)
    fresh = State(0, model.values(), {}, {})
    control.restore(fresh, fence=SESSION.fence, generation=SESSION.generation, fresh=True)
    store.register(identity.worker, identity.incarnation)
    updates = mode.make(store, identity)
    assert isinstance(updates, AsyncUpdates)
    updates.start_session(SESSION)
    batch = next(iter(models.batches(name, 0)))
    contribution = updates._computer.compute([batch])
    parts, _ = updates._compressor.encode(contribution.vectors, 0)
    numbers = itertools.count(1)
    arguments = (contribution.stats, parts, contribution.rows, updates._session, updates._identity)

    def push() -> None:
        with tf.device(client.local):
            numbered = next(numbers)  # servers apply each number once
            what = UpdateHeader.pack(as_numbers(None), numbered, batches=1, workers=1)
            answer = client.call(updates._push[0], *arguments, what)
        assert answer[0], "the push was refused"

    return partial(client.call, updates._pull[0]), push


def _timed(what: Any) -> float:
    started = time.monotonic()
    what()
    return time.monotonic() - started


if __name__ == "__main__":
    own = clusters.read()
    if own.task.type == "ps":
        become_server()
    sockets.set_environment()
    transfer(own)
