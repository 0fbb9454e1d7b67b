"""Incremental saves on kubelets: parameter servers write changed rows, and a lost server is restored from them."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import paced_table
from tests.support.examples import ROOT, Example
from tests.support.kube import Kube, wait_for
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]


def roles() -> dict[str, Any]:
    """Return the job's fields that differ from the example's: the servers mount the volume of the checkpoints, too."""
    job = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    template = job["spec"]["worker"]["template"]
    template["spec"]["containers"][0]["command"] = ["python", "-c", Path(paced_table.__file__).read_text()]
    servers = deepcopy(template)
    servers["spec"]["volumes"] = [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    servers["spec"]["containers"][0]["volumeMounts"] = [{"name": "saved", "mountPath": "/checkpoints"}]
    return {
        "training": {"mode": "Sync", "steps": 10_000_000},
        "checkpoint": {"fullEvery": 4, "keep": 2},
        "ps": {"replicas": 2, "template": servers},
        "worker": {"replicas": 1, "template": template},
    }


@in_all(
    "tests/training/test_runtime_incremental_saves.py::test_changed_rows_of_several_saves_restore_onto_any_number_of_servers"
)
def test_a_lost_server_is_restored_from_changed_rows(kube: Kube, namespace: str, tmp_path: Path) -> None:
    example = Example.start(kube, namespace, "digits", tmp_path, roles())

    def saves() -> list[dict[str, Any]]:
        return [event for event in example.events("chief") if event["event"] == "checkpoint"]

    found = wait_for(lambda: saves() if len(saves()) > 1 else None, "a save after a full one", 300, every=0.5)
    way = example.wait_event("checkpoint_way")
    assert way["by"] == "servers", way
    assert [event["full"] for event in found[:2]] == [True, False]
    wait_for(lambda: list(example.checkpoints.glob("ckpt-*/ps-*-changed-*")), "there are files of changed rows")
    kube.delete("Pod", namespace, example.pod("ps", 1), grace=0)
    restored = example.wait_event("restored")
    assert int(restored["step"]) >= int(found[1]["step"])

    def after() -> list[bool]:
        return [event["full"] for event in saves() if event["time"] > restored["time"]]

    assert wait_for(lambda: after() if len(after()) > 1 else None, "saves after it", 300, every=0.5)[:2] == [
        True,
        False,
    ]
