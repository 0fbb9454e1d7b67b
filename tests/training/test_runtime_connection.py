"""A new connection to the servers, and the resources that a former one leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bench.usage import usage
from pstraining.runtime.transport import client as clients
from pstraining.runtime.transport.client import FULL_RESET_EVERY
from tests.support.soak_marks import THOROUGH, in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
BRANCHES = 100
ROUNDS, EACH = 2, FULL_RESET_EVERY if THOROUGH else 3
GROWTH = 1.0
"""Upper bound of megabytes per connection. It is 0.05 here, and 4 where servers keep all former functions."""


@pytest.mark.timeout(900)
@in_all("tests/training/test_runtime_hot.py::test_processes_are_renewed_in_place")  # the memory of many connections
def test_servers_free_the_functions_of_former_connections(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setattr(clients, "FULL_RESET_EVERY", EACH)

    def emit(x: Any) -> Any:
        with tf.device(client.shards[0]):
            for _ in range(BRANCHES):
                x = tf.cond(x > 0, lambda x=x: x + 1, lambda x=x: x - 1)
        return client.to_local(x)

    branches, sizes = tf.function(emit, autograph=False), []
    for _ in range((1 + ROUNDS) * EACH):
        client.reconnect_available()
        client.call(branches, tf.constant(0.5))
        sizes.append(usage(client.servers[0].pid).rss)
    assert (sizes[-1] - sizes[EACH - 1]) / (ROUNDS * EACH) < GROWTH, sizes


@pytest.mark.parametrize(
    "ps",
    some(
        [1, 4],
        lambda ps: ps == 4,
        in_all(
            "tests/training/test_runtime_connection.py::test_a_server_whose_first_operation_fails_gets_a_new_context"
        ),  # of several servers
    ),
)
def test_a_server_whose_first_operation_fails_gets_a_new_context(
    client: Any, ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose first operation fails gets a new context.

    Failed reconnections count: after the third one the process ends.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    reported: list[Any] = []
    servers = list(range(ps))
    real, update = client._watchdog.watching, context.context().update_server_def

    @contextmanager
    def watching(what: str, *, vital: float, cuts: int) -> Iterator[Any]:
        reported.append((what, cuts))
        with real(what, vital=1000 * vital, cuts=cuts) as watched:  # a busy machine takes longer than the usual limit
            yield watched
        if reported == [("connect", 0), servers, ("greet", 0)]:
            watched.cuts += 1
            raise tf.errors.UnavailableError(None, None, "cut")

    def updated(definition: Any) -> None:
        reported.append(sorted(index for job in definition.cluster.job if job.name == "ps" for index in job.tasks))
        update(definition)

    everything = client.cluster
    monkeypatch.setattr(client, "_connection", 1 + FULL_RESET_EVERY)
    monkeypatch.setattr(client, "_to_connect", frozenset(servers))
    monkeypatch.setattr(
        client, "cluster", replace(everything, addresses={**everything.addresses, "ps": everything.ps[:ps]})
    )
    with client._exclusive():
        client._wait_for_servers()
        client._connect_all(first=False)
        monkeypatch.setattr(client._watchdog, "watching", watching)
        monkeypatch.setattr(context.context(), "update_server_def", updated)
        client._connect_all(first=False)
        monkeypatch.undo()
        client._wait_for_servers()
        client._connect_all(first=False)
    greetings = [("greet", 1)] * ps
    assert reported == [("connect", 0), servers, ("greet", 0), ("connect", 1), [], servers, *greetings]


def test_a_program_whose_functions_run_eagerly_is_refused_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job would neither train nor end. The servers of this one do not exist: the refusal comes first."""
    import json

    import tensorflow as tf

    from pstraining.runtime import Trainer
    from pstraining.runtime.errors import FinalError

    cluster = {"cluster": {"worker": ["127.0.0.1:9"], "ps": ["127.0.0.1:9"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(FinalError, match=r"^tf\.config\.run_functions_eagerly\(True\) is set, but .*: leave it"):
            Trainer(lambda: None, lambda: None, "mse", lambda worker, workers: (), steps=1).run()
    finally:
        tf.config.run_functions_eagerly(False)
