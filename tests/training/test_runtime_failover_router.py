"""The functions that workers prepare for the next failover while they train."""

import threading
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from pstraining.runtime.replication.transfer import chunks
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.worker import router
from pstraining.runtime.worker.router import FailoverRouter

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


class Updates:
    """Records the members for which it is warmed up."""

    def __init__(self) -> None:
        self.prepared: list[Any] = []
        self.dry_runs = 0

    def bind(self, store: Any) -> "Updates":
        self.prepared.append(store.assignment)
        return self

    def warm_up(self, batches: Any) -> None:
        """Trace nothing."""

    def trace(self, batches: Any) -> None:
        """Trace nothing."""

    def dry_run(self, batches: Any) -> None:
        self.dry_runs += 1


def router_of(
    monkeypatch: pytest.MonkeyPatch,
    updates: Updates,
    *,
    incremental: bool,
    nodes: Callable[[], dict[tuple[int, int], str]] = dict,
    read: Callable[[], None] = lambda: None,
) -> FailoverRouter:
    """Return the router of a job with two members per shard, without servers."""
    monkeypatch.setattr(router, "SETTLED_SECONDS", 0.01)
    monkeypatch.setattr(router, "MemberMonitor", lambda _: SimpleNamespace(nodes=nodes))
    monkeypatch.setattr(chunks, "is_incremental", lambda _: incremental)
    client, cluster = SimpleNamespace(connection=1), SimpleNamespace(members=2)

    def for_assignment(assignment: Any) -> Any:
        return SimpleNamespace(assignment=assignment, read=read)

    servers = SimpleNamespace(cluster=cluster)
    store: Any = SimpleNamespace(client=client, servers=servers, for_assignment=for_assignment)
    return FailoverRouter(store, updates)  # type: ignore[arg-type]


@pytest.mark.parametrize("incremental", [False, True])
def test_a_failed_warm_up_is_retried(monkeypatch: pytest.MonkeyPatch, incremental: bool) -> None:
    """A failed warm-up is repeated: a call of this thread may fail without the loss of a member, which no other thread
    would notice.
    """
    reported, failures = threading.Event(), [ShardLostError("INVALID_ARGUMENT: a handle is gone", 1)] * 2

    def nodes() -> dict[tuple[int, int], str]:
        if failures:
            raise failures.pop()
        return {}

    monkeypatch.setattr(router, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(router, "event", lambda name, **_: reported.set())
    updates = Updates()
    found = router_of(monkeypatch, updates, incremental=incremental, nodes=nodes)
    found._current = ((0, 1),)
    found.warm_up(lambda: [])
    assert reported.wait(60)
    assert not failures
    # A former primary is listed behind the other member while it is a learner.
    assert updates.prepared == [((0, 1),), ((1,),), ((0,),), *([((1, 0),)] if incremental else [])]
    assert updates.dry_runs == 2


def test_an_error_of_tensorflow_is_reported_once_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: Queue[str] = Queue()
    failures = [tf.errors.ResourceExhaustedError(None, None, "no memory") for _ in range(3)]

    class Failing(Updates):
        """Its first functions cannot be traced."""

        def trace(self, batches: Any) -> None:
            if failures:
                raise failures.pop()

    monkeypatch.setattr(router, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(router, "event", lambda name, **_: reported.put(name))
    found = router_of(monkeypatch, Failing(), incremental=False)
    found._current = ((0, 1),)
    found.warm_up(lambda: [])
    assert [reported.get(timeout=60) for _ in range(2)] == ["failover_unprepared", "failover_ready"]
    assert not failures


def test_during_a_state_transfer_the_assignment_with_the_learner_is_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = threading.Event()
    updates = Updates()
    found = router_of(monkeypatch, updates, incremental=True, read=reported.set)
    found._current, found._has_learners = ((1, 0), (0, 1)), True
    found.warm_up(lambda: [])
    assert reported.wait(60)
    assert updates.prepared == [((1, 0), (0, 1)), ((0, 1), (0, 1))]
    assert updates.dry_runs == 1


def test_the_event_survives_a_change_during_the_last_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = threading.Event()
    monkeypatch.setattr(router, "event", lambda name, **_: reported.set())

    class Interrupted(Updates):
        """The view changes while the last of two assignments is warmed up."""

        def dry_run(self, batches: Any) -> None:
            super().dry_run(batches)
            if self.dry_runs == 2:
                found._changed.set()

    updates = Interrupted()
    found = router_of(monkeypatch, updates, incremental=False)
    found._current = ((0, 1),)
    found.warm_up(lambda: [])
    assert reported.wait(60)
    assert updates.dry_runs == 2


def test_each_interruption_is_followed_by_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each interruption is followed by the event, also one that leaves nothing to prepare, as a view with the same
    members does.
    """
    reported: Queue[str] = Queue()
    monkeypatch.setattr(router, "event", lambda name, **_: reported.put(name))
    updates = Updates()
    found = router_of(monkeypatch, updates, incremental=False)
    found._current = ((0, 1),)
    found.warm_up(lambda: [])
    assert reported.get(timeout=60) == "failover_ready"
    found._changed.set()
    assert reported.get(timeout=60) == "failover_ready"
    assert updates.dry_runs == 2


def test_a_worker_is_settled_once_its_functions_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is settled once its functions are prepared over the present connection, with all members in sync."""
    prepares, reported = threading.Event(), threading.Event()
    monkeypatch.setattr(router, "event", lambda name, **_: reported.set())

    class Held(Updates):
        """Its dry runs wait."""

        def dry_run(self, batches: Any) -> None:
            prepares.wait(60)

    def is_settled() -> bool:
        return found.settled

    found = router_of(monkeypatch, Held(), incremental=False)
    found._current = ((0, 1),)
    assert not is_settled(), "nothing is prepared yet"
    found.warm_up(lambda: [])
    assert not is_settled(), "the first function is under way"
    prepares.set()
    assert reported.wait(60)
    assert is_settled()
    changes: list[tuple[Any, str, Any]] = [
        (found._store.client, "connection", 2),
        (found, "_has_learners", True),
        (found, "_current", ((0,),)),
    ]
    for changed, name, value in changes:
        former = getattr(changed, name)
        setattr(changed, name, value)
        assert not is_settled(), name
        setattr(changed, name, former)
        assert is_settled()
