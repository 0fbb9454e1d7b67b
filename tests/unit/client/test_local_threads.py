"""Local jobs: what a thread does while another one starts, lists or deletes jobs, and machines without processes."""

import errno
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from pstraining import Client
from pstraining.client import local
from pstraining.client.client import JobKey
from pstraining.client.errors import ClientError, JobFailedError
from pstraining.client.local import LocalBackend, _Run
from pstraining.runtime.local import LocalJob


class WatchedRun(_Run):
    """A run that ends when it is asked for its phase; another thread acts at that moment."""

    meanwhile: Callable[[], None]

    @property
    def phase(self) -> str:
        self.meanwhile()
        return "Succeeded"


@pytest.fixture
def backend() -> LocalBackend:
    found = Client(local=True)._backend
    assert isinstance(found, LocalBackend)
    return found


def run_in(folder: Path) -> WatchedRun:
    made = WatchedRun(cast(LocalJob, None), folder, ExitStack(), code=0)
    made.ended.set()
    return made


def test_a_job_that_starts_meanwhile_does_not_break_the_list(backend: LocalBackend, tmp_path: Path) -> None:
    one, other = run_in(tmp_path), run_in(tmp_path)
    one.meanwhile = lambda: backend._runs.update(other=other)
    backend._runs["one"] = one
    assert [job.name for job in backend.jobs()] == ["one"]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_job_is_deleted_once(
    is_new: bool, backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, later = run_in(tmp_path), {"digits": run_in(tmp_path)} if is_new else {}

    def waits(seconds: float | None = None) -> bool:
        backend._runs.clear()
        backend._runs.update(later)
        return True

    backend._runs["digits"] = run
    monkeypatch.setattr(run.ended, "wait", waits)
    backend.delete(JobKey("digits"))
    assert backend._runs == later


def test_a_process_that_cannot_be_started_again_fails_the_job(backend: LocalBackend, tmp_path: Path) -> None:
    class ExhaustedJob(LocalJob):
        def supervise(self) -> int | None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    job, stack = ExhaustedJob([]), ExitStack()
    stack.push(job._stack)  # its ports
    run = backend._runs["digits"] = _Run(job, tmp_path, stack)
    local._supervise(run)
    with pytest.raises(JobFailedError, match=r"^digits has failed: a process .* started again: Resource temporarily"):
        backend.wait(JobKey("digits"), 0)
    assert run.phase == "Failed"


def test_two_jobs_with_one_name_do_not_both_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, script, started = Client(local=True), tmp_path / "script.py", list[str]()
    script.write_text("pass")

    class JobInAnotherThread(LocalJob):
        """While it starts, another thread starts a job with its name."""

        def __enter__(self) -> LocalJob:
            started.append("digits")
            if len(started) == 1:
                client.train(script, name="digits")
            self._stack.close()
            raise BlockingIOError("no more processes")

    monkeypatch.setattr(local, "LocalJob", JobInAnotherThread)
    with pytest.raises(ClientError, match="The local job digits already exists"):
        client.train(script, name="digits")
    with pytest.raises(ClientError, match="The local job digits cannot start: no more processes"):
        client.train(script, name="digits")
    assert client.list() == []
