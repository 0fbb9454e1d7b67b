"""The operator's requests in all these tests are those that the chart grants; its name orders this test last.

Writes are counted for every operator, whichever its user; reads for the operator of the chart and for those on this
machine.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from localcluster.auditlog import AuditFiles
from localcluster.config import WATCHED_USERS
from tests.chart.test_rbac import CLUSTER, KUEUE, KUEUE_CLASSES, LEASE, SECRET
from tests.e2e.conftest import ROOT, cluster_command
from tests.support.soak_marks import ALL

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

WHOLE = (["tests/e2e"], [str(ROOT / "tests" / "e2e")])
NOT_CALLED = {("pstraining.dev", "pstrainingjobs/finalizers")}
"""A right that the API server checks when a child with blockOwnerDeletion is created."""
NOT_SEEN = {
    # The audit log leaves reviews of tokens out. A job whose status has its progress shows that they are permitted.
    ("authentication.k8s.io", "tokenreviews"): {"create"},
    # Volcano is not available here.
    ("scheduling.volcano.sh", "podgroups"): {"create", "delete", "get", "patch"},
    # A Workload is read after a creation whose answer was lost, and a PriorityClass of the job's pods with its queue.
    ("kueue.x-k8s.io", "workloads"): {"get"},
    ("scheduling.k8s.io", "priorityclasses"): {"get"},
}
"""Rights for requests that these tests need not cause."""


def entries(since: datetime) -> Iterator[dict[str, Any]]:
    """Return the audit log's entries from this time on."""
    for line in AuditFiles(Path(cluster_command("audit"))).lines():
        entry = json.loads(line)
        if datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= since:
            yield entry


def test_the_chart_grants_exactly_the_used_rights(request: pytest.FixtureRequest, began: datetime) -> None:
    rights = CLUSTER | LEASE | SECRET | (KUEUE | KUEUE_CLASSES if ALL else {})  # only `make test-all` has Kueue
    granted = {of: set(verbs) for of, verbs in rights.items() if of not in NOT_CALLED}
    used: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries(began):
        is_ours = entry["user"]["username"] in WATCHED_USERS or entry.get("userAgent", "").startswith("pstraining-oper")
        if is_ours and (target := entry.get("objectRef")):
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            used[target.get("apiGroup", ""), resource].add(entry["verb"])
    extra = {of: verbs - granted.get(of, set()) for of, verbs in used.items()}
    assert not {of: verbs for of, verbs in extra.items() if verbs}, "these are used and not granted"
    # The tests that `make test` skips use rights as well.
    is_whole = ALL and not request.config.option.keyword and request.config.args in WHOLE
    unused = {of: verbs - used.get(of, set()) - NOT_SEEN.get(of, set()) for of, verbs in granted.items()}
    if is_whole:
        assert not {of: verbs for of, verbs in unused.items() if verbs}, "these are granted and not used"
