"""The remark about a log of which no line was printed."""

import pytest

from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.tasks import TaskRole
from tests.support.builders import job
from tests.unit.cli.test_logs import Logged, read


@pytest.mark.parametrize(
    ("tail", "since", "remarks"),
    [
        (None, None, ["chief-0 (digits-chief-1): the log is empty"]),
        (5, 0, ["chief-0 (digits-chief-1): the log is empty"]),
        (None, 60, ["chief-0 (digits-chief-1): the log has no lines of this time"]),
        (0, None, []),
    ],
)
def test_a_log_is_called_empty_only_if_it_is(tail: int | None, since: float | None, remarks: list[str]) -> None:
    assert read(Logged(job()), LogSelection(TaskRole.CHIEF, tail=tail, since=since)) == ([], remarks)
