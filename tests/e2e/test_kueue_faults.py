"""Jobs in a queue of the real Kueue under one plan of each kind of the campaign; `make campaign` runs all of them.

The campaign replays every version of every pod and Workload: no pod exists without quota, and a deleted job leaves no
quota behind.
"""

from pathlib import Path

import pytest

from tests.campaign.judging import judging
from tests.controlplane.conftest import cluster
from tests.support.soak_marks import in_all

__all__ = ["cluster"]

pytestmark = [
    pytest.mark.cluster,
    in_all("tests/property/test_queue_campaign.py::test_a_crash_at_any_write_changes_nothing"),
]


def test_one_plan_of_each_kind_for_each_workload_in_a_queue(
    kueue: None, cluster: dict[str, str], tmp_path: Path
) -> None:
    with judging(cluster, tmp_path, with_queues=True) as judge:
        found = {workload: judge.one_of_each_kind(workload) for workload in ("queue", "evict", "slice")}
    assert found == {"queue": {}, "evict": {}, "slice": {}}
