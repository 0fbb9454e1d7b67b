"""Waits for several jobs: a job that ends during the wait for another one may be deleted before its turn."""

from collections.abc import Callable

import pytest

from pstraining.cli.commands import wait
from pstraining.cli.commands.suspend import set_suspended
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.waiting import Patience
from tests.support.builders import job
from tests.support.cli_cluster import Object, WithJobs


class Expiring(WithJobs):
    """Has the jobs a and b. While a runs, b ends and is deleted. Then a succeeds."""

    def __init__(self, end: str) -> None:
        super().__init__(job("a"), job("b"))
        for made in self.there:
            made["metadata"]["uid"] = f"uid-{made['metadata']['name']}"
        self.outages = 1
        self.changes: list[Callable[[], object]] = [
            lambda: None,
            lambda: self.end("b", end),
            self.there.pop,
            lambda: self.end("a", "Succeeded"),
            lambda: None,
        ]

    def job(self, namespace: str, name: str) -> Object | None:
        if name == "b" and self.outages and len(self.changes) < 5:
            self.outages -= 1
            raise RequestError("No answer.")
        return super().job(namespace, name)

    def end(self, name: str, kind: str) -> None:
        found = super().job("default", name)
        assert found is not None
        condition = {"type": kind, "status": "True", "reason": "R", "message": "no data"}
        found["status"] = {"observedGeneration": 1, "conditions": [condition]}

    def sleep(self, seconds: float) -> None:
        self.changes.pop(0)()

    def patience(self, seconds: float = 60) -> Patience:
        return Patience(seconds, lambda: 5.0 - len(self.changes), self.sleep, lambda line: None)


def waited(cluster: Expiring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "KubeconfigClient", lambda context: cluster)
    monkeypatch.setattr(wait, "Patience", cluster.patience)
    wait.wait(["a", "b"])


def resumed(cluster: Expiring, monkeypatch: pytest.MonkeyPatch) -> None:
    set_suspended(cluster, ["a", "b"], False, patience=cluster.patience())


@pytest.mark.parametrize("command", [waited, resumed])
def test_the_end_of_a_later_job_counts_also_after_its_deletion(
    command: Callable[[Expiring, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(Expiring("Succeeded"), monkeypatch)
    assert capsys.readouterr().out.splitlines()[-2:] == ["a has succeeded.", "b has succeeded."]
    with pytest.raises(CommandError, match="b has failed: no data") as caught:
        command(Expiring("Failed"), monkeypatch)
    assert caught.value.code is ExitCode.JOB_FAILED


def test_a_later_job_that_is_deleted_before_its_end_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Expiring("Succeeded")
    cluster.changes[1] = lambda: None
    with pytest.raises(CommandError, match="b was deleted in the meantime") as caught:
        waited(cluster, monkeypatch)
    assert caught.value.code is ExitCode.JOB_DELETED
