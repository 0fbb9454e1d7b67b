"""The age of a job's status, from the times of reports and writes."""

import pytest

from bench.controlplane.progress import oldest


@pytest.mark.parametrize(
    ("reports", "writes", "age"),
    [
        ([0.0, 59.0, 118.0], [0.1, 59.1, 118.1], 59.1),
        ([0.0, 59.0, 118.0], [0.1, 60.5, 118.1], 60.5),
        ([0.0, 10.0, 20.0, 70.0], [0.1, 59.1, 118.1], 98.1),
        ([0.0, 59.0], [0.1], 0.0),
        ([0.0, 59.0], [], 0.0),
        ([60.0], [0.1, 61.0], 0.0),
    ],
)
def test_a_status_is_as_old_as_its_report_until_the_next_write(
    reports: list[float], writes: list[float], age: float
) -> None:
    assert oldest(reports, writes) == pytest.approx(age)
