"""`Client.wait` and `Client.logs` on a cluster that changes, or does not respond, meanwhile."""

import math
from unittest import mock

import pytest

from pstraining.cli.errors import ConflictError, DeniedError, RequestError
from pstraining.cli.logs.following import Follower
from pstraining.client.client import Job
from pstraining.client.errors import ClientError, JobFailedError
from tests.unit.client.test_client import Object, Rig, ended


@pytest.mark.parametrize("kind", ["Succeeded", "Failed"])
def test_wait_knows_the_end_of_a_job_that_is_deleted_at_its_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    job = rig.train()
    rig.steps = [lambda: rig.status(**ended(kind, "NameError: x"))]
    looks = iter([rig.cluster.there[0], rig.cluster.there[0], rig.cluster.there[0]])
    monkeypatch.setattr(rig.cluster, "job", lambda *_: next(looks, None))
    if kind == "Succeeded":
        assert rig.client.wait(job).phase == "Succeeded"
    else:
        with pytest.raises(JobFailedError, match="has failed: NameError: x"):
            rig.client.wait(job)


def test_wait_times_out_also_while_the_api_server_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.train()
    looks = iter([rig.cluster.there[0]])

    def look(*_: str) -> Object:
        if (found := next(looks, None)) is None:
            raise RequestError("No answer.")
        return found

    monkeypatch.setattr(rig.cluster, "job", look)
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        rig.client.wait("digits", timeout=0)


@pytest.mark.parametrize(
    "error", [RequestError("No answer."), RequestError("Timeout.", 504), ConflictError("it exists", 409)]
)
def test_the_job_whose_creation_got_no_response_is_used(error: RequestError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated request finds that the job exists, and no job is left that waits for its program."""
    rig = Rig()
    create = rig.cluster.create

    def lost(api: str, plural: str, body: Object) -> Object:
        stored = create(api, plural, body)
        if plural == "pstrainingjobs":
            raise error
        return stored

    monkeypatch.setattr(rig.cluster, "create", lost)
    assert rig.train().uid == "uid-0"
    (files,) = rig.cluster.config_maps
    assert files["metadata"]["ownerReferences"][0]["uid"] == "uid-0"


@pytest.mark.parametrize("error", [RequestError("No answer."), RequestError("Forbidden.", 403)])
def test_a_job_that_was_not_created(error: RequestError, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(rig.cluster, "create", mock.Mock(side_effect=error))
    with pytest.raises(ClientError, match=f"^{error}$"):
        rig.train()


def test_a_job_that_may_have_been_created_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    away = mock.Mock(side_effect=RequestError("No answer."))
    monkeypatch.setattr(rig.cluster, "create", away)
    monkeypatch.setattr(rig.cluster, "job", away)
    with pytest.raises(ClientError, match=r"No answer\. If the job digits exists now, delete it: it has no program\."):
        rig.train()


@pytest.mark.parametrize(
    ("refused", "said"),
    [(RequestError("The quota is used up.", 403), "The quota is used up."), (ConflictError("", 409), "another name.")],
)
def test_a_job_that_cannot_be_cleaned_up_is_named(
    refused: RequestError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(namespace: str, name: str, uid: str) -> None:
        raise DeniedError("You may not delete pstrainingjobs.", 403)

    rig = Rig()
    rig.cluster.refuses_config_maps = refused
    monkeypatch.setattr(rig.cluster, "delete", denied)
    with pytest.raises(ClientError) as caught:
        rig.train()
    assert str(caught.value).endswith(
        f"{said} The job digits is left without its program: delete it. It could not be deleted: You may not delete "
        "pstrainingjobs."
    )


def test_an_unexpected_error_ends_the_lines_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(follower: Follower) -> None:
        raise KeyError("metadata")

    rig = Rig()
    job = rig.train()
    monkeypatch.setattr(Follower, "run", broken)
    with pytest.raises(KeyError, match="metadata"):
        list(rig.client.logs(job))


def test_an_infinite_timeout_is_none_for_local_jobs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, limits = Rig(), list[float | None]()
    made = rig.train()

    def wait(name: str, seconds: float | None) -> Job:
        limits.append(seconds)
        return made

    monkeypatch.setattr(rig.client._backend, "wait", wait)
    for timeout in (None, math.inf, 3.0):
        rig.client.wait(made, timeout)
    assert limits == [None, None, 3.0]
    with pytest.raises(ClientError, match="timeout: it must be a number of seconds, is nan"):
        rig.client.wait(made, math.nan)
