"""What the operator asked the API server for in all these tests is what the chart grants it; by its name it comes last.

Writes are those of every operator, whoever it was logged in as; reads those of the one that the chart installs, and of
those that tests run on this machine.
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
from tests.chart.test_rbac import CLUSTER, LEASE, SECRET
from tests.e2e.conftest import ROOT, cluster_command
from tests.support.soak_marks import ALL

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

WHOLE = (["tests/e2e"], [str(ROOT / "tests" / "e2e")])
NOT_CALLED = {("pstraining.dev", "pstrainingjobs/finalizers")}
"""What the API server checks when a child with blockOwnerDeletion is made."""
NOT_SEEN = {("scheduling.volcano.sh", "podgroups"): {"create", "delete", "get", "patch"}}
"""Volcano is not to be had."""


def entries(since: datetime) -> Iterator[dict[str, Any]]:
    """The audit log's from then on."""
    for line in AuditFiles(Path(cluster_command("audit"))).lines():
        entry = json.loads(line)
        if datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= since:
            yield entry


def test_the_chart_grants_exactly_the_used_rights(request: pytest.FixtureRequest, began: datetime) -> None:
    granted = {of: set(verbs) for of, verbs in (CLUSTER | LEASE | SECRET).items() if of not in NOT_CALLED}
    used: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in entries(began):
        is_ours = entry["user"]["username"] in WATCHED_USERS or entry.get("userAgent", "").startswith("pstraining-oper")
        if is_ours and (target := entry.get("objectRef")):
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            used[target.get("apiGroup", ""), resource].add(entry["verb"])
    extra = {of: verbs - granted.get(of, set()) for of, verbs in used.items()}
    assert not {of: verbs for of, verbs in extra.items() if verbs}, "these are used and not granted"
    # What `make test` leaves out uses rights, too.
    is_whole = ALL and not request.config.option.keyword and request.config.args in WHOLE
    unused = {of: verbs - used.get(of, set()) - NOT_SEEN.get(of, set()) for of, verbs in granted.items()}
    if is_whole:
        assert not {of: verbs for of, verbs in unused.items() if verbs}, "these are granted and not used"
