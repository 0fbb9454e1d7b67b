"""Logs of containers that are restarted while their log is followed."""

from collections.abc import Iterator, Mapping

import pytest

from pstraining.cli.errors import CommandError, RequestError
from tests.support.builders import pod
from tests.support.cli_cluster import Object
from tests.unit.cli.test_logs import Script, follow, line

NAME = "digits-worker-0"
BEFORE = f"{NAME} before"
"""The key of the previous run's log."""
Look = tuple[list[Object], dict[str, list[str] | CommandError]]


class Restarted(Script):
    """Has the logs of previous runs, too. A log that ends with an error breaks."""

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        yield from super().log(namespace, f"{pod} before" if query.get("previous") else pod, query)


@pytest.mark.parametrize(
    "previous", [[line(1, "one"), line(2, "two"), line(3, "Traceback")], RequestError("previous log not found", 400)]
)
def test_the_end_of_a_run_whose_log_broke_is_read(
    capsys: pytest.CaptureFixture[str], previous: list[str] | CommandError
) -> None:
    runs, again = [pod("worker", 0)], [pod("worker", 0, restarts=1)]
    broken = RequestError("No answer", 0)
    returned: Look = (again, {NAME: [line(4, "begins")], BEFORE: previous})
    looks: list[Look] = [
        (runs, {NAME: [line(1, "one"), line(2, "two")]}),
        (runs, {NAME: broken}),
        *(returned, returned, returned),
        ([], {}),
    ]
    follow(Restarted(*looks))
    texts = [text.removeprefix("worker-0: ") for text in capsys.readouterr().out.splitlines()]
    assert texts == ["one", "two", *(["Traceback"] if isinstance(previous, list) else []), "begins"]
