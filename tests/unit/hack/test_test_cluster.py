"""A run of the tests stops only a cluster that it has started."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hack import test_cluster
from hack.test_cluster import ClusterSession
from localcluster import lifecycle
from localcluster.errors import ClusterError
from localcluster.progress import Progress


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterSession:
    """Return the session of a machine without a running cluster; `down` records the clusters that it stops."""
    environment = {"HOME": str(tmp_path), "PSTRAINING_INSTANCE": "63", "HELM": "helm"}
    monkeypatch.setattr(lifecycle, "saved_plan", lambda _: None)
    monkeypatch.setattr(lifecycle, "locked", lambda *_: nullcontext())
    made = ClusterSession(Progress(), environment)
    monkeypatch.setattr(made, "toolbox", SimpleNamespace(ensure=lambda _: None, binary=lambda name: name))
    monkeypatch.setattr(test_cluster, "ensure_packages", lambda *_: None)
    return made


@pytest.mark.parametrize(
    ("brings_up", "fails", "expected"), [(True, False, 1), (True, True, 1), (False, False, 0)],
    ids=["its own", "the half that came up", "another run's, which came up meanwhile"],
)  # fmt: skip
def test_only_clusters_that_a_run_started_are_stopped(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch, brings_up: bool, fails: bool, expected: int
) -> None:
    down: list[Any] = []

    def up(*_: Any) -> Any:
        if fails:
            raise ClusterError("no node")
        return SimpleNamespace(plan=None)

    monkeypatch.setattr(lifecycle, "up", up)
    monkeypatch.setattr(lifecycle, "down", lambda *_: down.append(1))
    if brings_up and fails:
        with pytest.raises(ClusterError):
            session.up(with_images=False)
    elif brings_up:
        session.up(with_images=False)
    session.close()
    session.down()
    assert len(down) == expected


def test_a_cluster_that_another_run_started_since_is_used_and_kept(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo may start the cluster while the layers run that need none."""
    started: list[Any] = []
    down: list[Any] = []

    def up(_: Any, nodes: int | None, __: Any) -> Any:
        started.append(nodes)
        return SimpleNamespace(plan=None)

    monkeypatch.setattr(lifecycle, "saved_plan", lambda _: "the plan of the demo's cluster")
    monkeypatch.setattr(lifecycle, "up", up)
    monkeypatch.setattr(lifecycle, "down", lambda *_: down.append(1))
    session.up(with_images=False)
    session.close()
    session.down()
    assert (started, down) == ([None], []), "with the number of nodes that it has"


def test_a_second_attempt_at_a_start_still_owns_the_cluster(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    down: list[Any] = []

    def fails(*_: Any) -> Any:
        monkeypatch.setattr(lifecycle, "saved_plan", lambda _: "the plan of the half that came up")
        raise ClusterError("no node")

    monkeypatch.setattr(lifecycle, "up", fails)
    monkeypatch.setattr(lifecycle, "down", lambda *_: down.append(1))
    for _ in range(2):
        with pytest.raises(ClusterError):
            session.up(with_images=False)
    session.close()
    session.down()
    assert down == [1]
