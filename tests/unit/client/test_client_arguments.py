"""Arguments of the client's methods, default names, and a start that is interrupted."""

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from pstraining import Client
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity
from pstraining.client.client import Job, default_name
from pstraining.client.errors import ClientError
from pstraining.client.local import LocalBackend, _Run
from pstraining.runtime.local import LocalJob
from tests.support.builders import job
from tests.unit.client.test_client import Object, Rig


@pytest.mark.parametrize("timeout", ["10m", float("nan"), [1]])
def test_a_timeout_that_is_no_number_is_refused(timeout: Any) -> None:
    rig = Rig()
    with pytest.raises(ClientError, match="timeout: it must be a number of seconds, is "):
        rig.client.wait(rig.train(), timeout=timeout)


def test_a_local_wait_lasts_as_long_as_a_machine_can_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, limits = Client(local=True), list[float | None]()
    backend = client._backend
    assert isinstance(backend, LocalBackend)
    run = backend._runs["digits"] = _Run(cast(LocalJob, None), tmp_path, ExitStack(), code=0)
    run.ended.set()

    def wait(seconds: float | None) -> bool:
        limits.append(seconds)
        return True

    monkeypatch.setattr(run.ended, "wait", wait)
    for timeout in (None, 3, sys.maxsize):
        client.wait("digits", timeout)
    assert limits == [None, 3, threading.TIMEOUT_MAX]


@pytest.mark.parametrize("argument", ["namespace", "context", "kubeconfig"])
def test_a_local_client_refuses_the_arguments_of_a_cluster(argument: str) -> None:
    """Its jobs would be on this machine, without a word."""
    given: dict[str, Any] = {argument: "team-a"}
    with pytest.raises(ClientError, match=f"^{argument}: a local client has no cluster: leave "):
        Client(local=True, **given)
    empty: dict[str, Any] = {argument: ""}
    assert Client(local=True, **empty).list() == [], "an empty one names nothing"


@pytest.mark.parametrize("follow", [True, False])
def test_an_index_without_a_role_is_refused_at_once(follow: bool) -> None:
    rig = Rig()
    rig.train()
    with pytest.raises(ClientError, match=r"^index requires role, "):
        rig.client.logs("digits", follow=follow, index=0)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("index", ["0", -1, 1.0, True])
def test_an_index_that_is_none_is_refused_at_once(index: Any, follow: bool) -> None:
    """With follow, no line would ever have the index."""
    rig = Rig()
    rig.train()
    with pytest.raises(ClientError, match=f"^index: it must be a whole number from 0, is {index!r}"):
        rig.client.logs("digits", follow=follow, role="worker", index=index)


def test_a_job_of_another_namespace_is_not_taken_for_one_of_the_same_name() -> None:
    rig = Rig()
    own = rig.train()
    other = Job("digits", "another", "uid-9")
    methods: tuple[Callable[[Job], object], ...] = (rig.client.delete, rig.client.suspend, rig.client.get)
    for method in (*methods, rig.client.wait, rig.client.logs):
        with pytest.raises(ClientError, match=r"digits is in the namespace another, and .* is team: use the client"):
            method(other)
    assert rig.client.get(own).uid == rig.client.get("digits").uid == "uid-0"


def test_an_interrupted_start_leaves_no_job_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    create = rig.cluster.create

    def interrupted(api: str, plural: str, body: Object) -> Object:
        if plural == "configmaps":
            raise KeyboardInterrupt
        return create(api, plural, body)

    monkeypatch.setattr(rig.cluster, "create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.train()
    assert rig.cluster.there == []


@pytest.mark.parametrize(
    ("given", "stem"),
    [
        *(("train", "train"), ("Train_My_Model", "train-my-model"), ("3d", "job-3d"), ("_", "job")),
        *(("x" * 80, "x" * 35), (f"2{'x' * 80}", f"job-2{'x' * 30}")),
    ],
)
def test_default_names(given: str, stem: str) -> None:
    name = default_name(given)
    assert name.startswith(f"{stem}-")
    assert len(name) == len(stem) + 5
    assert [f for f in wrong_with({**job(name), "metadata": {"name": name}}) if f.severity is Severity.ERROR] == []
    assert default_name(given) != name or default_name(given) != name
