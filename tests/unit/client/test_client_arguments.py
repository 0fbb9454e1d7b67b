"""Arguments of the client's methods, and a start that is interrupted."""

from collections.abc import Callable
from typing import Any

import pytest

from pstraining.client.client import Job
from pstraining.client.errors import ClientError
from tests.unit.client.test_client import Object, Rig


@pytest.mark.parametrize("timeout", ["10m", float("nan"), [1]])
def test_a_timeout_that_is_no_number_is_refused(timeout: Any) -> None:
    rig = Rig()
    with pytest.raises(ClientError, match="timeout: it must be a number of seconds, is "):
        rig.client.wait(rig.train(), timeout=timeout)


@pytest.mark.parametrize("follow", [True, False])
def test_an_index_without_a_role_is_refused_at_once(follow: bool) -> None:
    rig = Rig()
    rig.train()
    with pytest.raises(ClientError, match=r"^index requires role, "):
        rig.client.logs("digits", follow=follow, index=0)


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
