"""A job that was deleted and created again with its name is another one, as for `kubectl pstraining wait`."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from pstraining import Client
from pstraining.cli.errors import RequestError
from pstraining.client.client import Job
from pstraining.client.errors import ClientError
from pstraining.client.local import LocalBackend, _Run
from pstraining.runtime.local import LocalJob
from tests.unit.client.test_client import Rig, ended

GONE = r"^digits was deleted in the meantime, and another job has its name now: pass the name, or what `get` returns"


def methods(client: Client) -> tuple[Callable[[Job], object], ...]:
    def present(job: Job) -> object:
        return client.logs(job, follow=False)

    def scale(job: Job) -> None:
        client.scale(job, 2)

    read = client.get, client.wait, client.progress, client.logs
    return *read, present, scale, client.suspend, client.resume, client.delete


def recreate(rig: Rig) -> None:
    rig.client.delete("digits")
    rig.train()
    rig.cluster.there[0]["metadata"]["uid"] = "uid-9"


def test_a_job_is_not_taken_for_a_later_one_of_its_name() -> None:
    rig = Rig()
    job = rig.train()
    recreate(rig)
    rig.status(**ended("Succeeded"), training={"step": 5})
    for method in methods(rig.client):
        with pytest.raises(ClientError, match=GONE):
            method(job)
    assert rig.cluster.patches == []
    assert rig.client.wait("digits").uid == rig.client.wait(rig.client.get("digits")).uid == "uid-9"
    assert rig.client.progress(rig.client.get("digits")) is not None


def replaced(rig: Rig, **metadata: str) -> Callable[[], None]:
    """Return an event after which other metadata of the job is stored."""

    def happens() -> None:
        (job,) = rig.cluster.there
        rig.cluster.there = [{**job, "metadata": {**job["metadata"], **metadata}}]

    return happens


@pytest.mark.parametrize("change", range(-4, 0), ids=["scale", "suspend", "resume", "delete"])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_change_does_not_hit_a_job_that_is_created_meanwhile(change: int, is_deleted: bool) -> None:
    rig = Rig()
    job = rig.train()
    other = replaced(rig, uid="uid-9", resourceVersion="9")
    rig.cluster.meanwhile = rig.cluster.there.clear if is_deleted else other
    with pytest.raises(ClientError, match=r"^digits was deleted in the meantime\.$"):
        methods(rig.client)[change](job)
    assert rig.cluster.patches == []
    assert len(rig.cluster.there) == (not is_deleted)


def test_a_new_status_does_not_keep_a_job_from_another_number_of_workers() -> None:
    rig = Rig()
    job = rig.train()
    versions = iter("23456789")

    def always() -> None:
        replaced(rig, resourceVersion=next(versions))()
        rig.cluster.meanwhile = always

    rig.cluster.meanwhile = replaced(rig, resourceVersion=next(versions))
    rig.client.scale(job, 3)
    rig.cluster.meanwhile = always
    with pytest.raises(ClientError, match="the object has been modified"):
        rig.client.scale(job, 4)
    assert rig.cluster.patches == [{"workers": 3}]


def test_the_clean_up_of_a_failed_start_does_not_hit_a_job_that_is_created_meanwhile() -> None:
    rig = Rig()
    rig.cluster.refuses_config_maps = RequestError("The quota is used up.", 403)
    rig.cluster.meanwhile = replaced(rig, uid="uid-9")
    with pytest.raises(ClientError, match="The quota is used up"):
        rig.train()
    assert [job["metadata"]["uid"] for job in rig.cluster.there] == ["uid-9"]


def test_a_job_that_is_created_again_during_a_wait_ends_it() -> None:
    rig = Rig()
    job = rig.train()
    rig.steps = [lambda: rig.status(phase="Running"), lambda: recreate(rig)]
    with pytest.raises(ClientError, match=r"^digits was deleted in the meantime\.$"):
        rig.client.wait(job)


def test_logs_are_those_of_the_job_at_the_call() -> None:
    rig = Rig()
    rig.train()
    lines = rig.client.logs("digits")
    recreate(rig)
    rig.status(**ended("Succeeded"))
    with pytest.raises(ClientError, match=r"^digits was deleted in the meantime\.$"):
        list(lines)


def test_a_local_job_is_not_taken_for_a_later_one_of_its_name(tmp_path: Path) -> None:
    client, jobs = Client(local=True), list[Job]()
    backend = client._backend
    assert isinstance(backend, LocalBackend)
    for _ in range(2):
        run = backend._runs["digits"] = _Run(cast(LocalJob, None), tmp_path, ExitStack(), code=0)
        run.ended.set()
        jobs.append(client.get("digits"))
    for method in methods(client)[:4]:
        with pytest.raises(ClientError, match=GONE):
            method(jobs[0])
    assert client.wait(jobs[1]) == client.wait("digits")
