"""kube-score's findings on the chart with all options are only the intended ones."""

import json
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.support.soak_marks import in_soak

from .conftest import ROOT, Render

pytestmark = in_soak  # building it takes longer than all other tests of the chart

WANTED = {
    "container-image-pull-policy": "a version's tag, or a digest, always means the same image",
    "container-security-context-user-group-id": "the image says who runs it (65532); on OpenShift the namespace does",
    "container-resources": "no limit on processor time: it would slow the operator down when all jobs need it",
    "deployment-replicas": "the Lease lets one act; jobs continue while there is none",
    "deployment-strategy": "Recreate: the old one gives its Lease back before the new one wants it",
}
"""The findings on the Deployment, each with the reason why it stays."""


@pytest.fixture(scope="module")
def program() -> str:
    command = [sys.executable, "-m", "localcluster", "tool", "kube-score"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def found(program: str, objects: tuple[dict[str, Any], ...]) -> dict[str, set[str]]:
    """Return the kinds on which each check has a finding."""
    command = [program, "score", "--output-format", "json", "-"]
    done = subprocess.run(command, input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False)
    faults: dict[str, set[str]] = {}
    for item in json.loads(done.stdout):
        for check in item["checks"]:
            if not check["skipped"] and check["grade"] < 10:
                faults.setdefault(check["check"]["id"], set()).add(item["type_meta"]["kind"])
    return faults


def test_the_score_reports_only_the_expected_findings(render: Render, program: str) -> None:
    on = {"enabled": True}
    rendered = render({"podDisruptionBudget": on, "networkPolicy": on, "metrics": {"dashboard": on, "rules": on}})
    assert found(program, rendered.objects) == {check: {"Deployment"} for check in WANTED}
