"""Commands about the pods of a job that MultiKueue sends to another cluster name that cluster as their place."""

from collections.abc import Callable

import pytest

from pstraining.cli.commands.takeover import switch_over
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.logs.following import Follower
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import read
from pstraining.cli.metrics.measurement import measure
from tests.support.builders import job
from tests.support.cli_cluster import Object, WithJobs

SENT = job(spec={"managedBy": "kueue.x-k8s.io/multikueue", "ps": {"replicas": 1, "standby": {"mode": "Warm"}}})
WORDS = "here: Kueue sends it to another cluster. Run this command there."


def refused(*_: str) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    "command",
    [
        lambda cluster: read(cluster, "default", "digits", LogSelection(), refused, refused),
        lambda cluster: measure(cluster, "default", "digits", 1),
        lambda cluster: switch_over(cluster, "digits", 0),
    ],
)
def test_the_error_names_the_other_cluster(command: Callable[[WithJobs], object]) -> None:
    with pytest.raises(CommandError) as caught:
        command(WithJobs(SENT))
    assert str(caught.value).endswith(WORDS)


class SentAndDone(WithJobs):
    """Has a job that succeeds after it was first seen."""

    def pods(self, namespace: str, job: str) -> list[Object]:
        done = {"type": "Succeeded", "status": "True"}
        self.there = [SENT | {"status": {"conditions": [done]}}]
        return []


def test_followed_logs_end_with_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    writer = LogWriter(coloured=False)
    assert (
        Follower(SentAndDone(SENT), "default", "digits", LogSelection(), writer, every=0.01).run() is ExitCode.SUCCESS
    )
    assert capsys.readouterr().err.splitlines() == [f"digits has no pods {WORDS}", "digits has ended: Succeeded."]
