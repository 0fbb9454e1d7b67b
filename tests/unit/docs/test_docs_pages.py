"""The statements of the pages on volumes, pools, tenants and nodes hold for the jobs that they show."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from hack.docs.pages import ROOT, Page, pages
from pstraining.api import names
from pstraining.core.actions import Resize
from pstraining.core.policies import node_loss
from pstraining.resources import devices
from pstraining.resources.installation import Installation
from tests.support.builders import job, typed
from tests.support.documented import documents, job_of
from tests.support.simulation import World


def page(path: str) -> Page:
    return pages()[ROOT / "docs" / path]


def shown(path: str) -> Iterator[Any]:
    """Return the manifests of a page and their parts."""
    for block in page(path).blocks:
        if block.language == "yaml":
            yield from yaml.safe_load_all(block.text)


def templates(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod template of each role, as the operator renders it from a spec."""
    world = World(job(spec=dict(spec)))
    world.reconcile()
    found = {}
    for child in world.children.values():
        template = (child.get("spec") or {}).get("template") or {}
        if role := ((template.get("metadata") or {}).get("labels") or {}).get(names.LABEL_ROLE):
            found[role] = template
    return found


def jobs(path: str) -> list[dict[str, Any]]:
    """Return the pod templates of each job that a page shows."""
    return [templates(made["spec"]) for document in shown(path) if (made := job_of(document))]


def test_data_is_mounted_by_workers_and_not_by_servers() -> None:
    volume, _, _ = jobs("users/data-and-volumes.md")
    mounts = {role: {v["name"] for v in template["spec"]["volumes"]} for role, template in volume.items()}
    assert "data" in mounts["worker"]
    assert "data" in mounts["chief"], "according to the page, the chief copies the worker's template"
    assert "data" not in mounts["ps"]


def test_an_identity_reaches_the_pods_without_a_token_for_the_api_server() -> None:
    _, bucket, _ = jobs("users/data-and-volumes.md")
    spec = bucket["worker"]["spec"]
    assert spec["serviceAccountName"] == "reads-the-bucket"
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket-key"}}]


def test_only_the_chief_has_the_credentials_of_a_bucket_for_checkpoints() -> None:
    *_, bucket = jobs("users/data-and-volumes.md")
    (container,) = bucket["chief"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket-key"}}]
    assert not [role for role in ("ps", "worker") if "envFrom" in bucket[role]["spec"]["containers"][0]]


def test_a_server_that_writes_checkpoints_is_replaced_when_its_node_is_lost() -> None:
    made = [one for found in shown("users/write-a-job.md") if (one := job_of(found))]
    (spec,) = (one["spec"] for one in made if "saved" in str(one["spec"]["ps"].get("template")))
    world = World(job(spec=spec), nodes={"node-1": "True"})
    world.settle()
    seen = world.snapshot()
    assert not [p.name for p in seen.pods_of(names.PS) if node_loss.is_held(typed(seen.job), seen, p)]


def test_the_command_on_sizes_resizes_the_examples_workers_in_place() -> None:
    (patch,) = (found for place, _, found in documents() if place.startswith("docs/users/resize.md"))
    example = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text(encoding="utf-8"))
    world = World(job(spec=example["spec"]), installation=Installation(resizes_pods=True))
    world.settle()
    world.edit(patch["spec"])
    resized = {action.name for action in world.plan().actions if isinstance(action, Resize)}
    assert resized == {pod.name for pod in world.snapshot().pods_of(names.WORKER)}


def test_roles_without_gpus_are_placed_as_the_page_shows() -> None:
    (pools,) = jobs("operators/gpu-pools.md")
    selected = {role: template["spec"]["nodeSelector"] for role, template in pools.items()}
    assert selected == {"worker": {"pool": "gpu"}, "ps": {"pool": "cpu"}, "chief": {"pool": "cpu"}}
    words = {span.text for span in page("operators/gpu-pools.md").spans}
    assert set(devices._NODE_LABELS) <= words


@pytest.mark.parametrize(
    ("selector", "leaves"), [*((label, True) for label in devices._NODE_LABELS), ("pool", False), ("spot", False)]
)
def test_what_selects_the_pool_decides_whether_servers_leave_it(selector: str, leaves: bool) -> None:
    container = {"name": "tensorflow", "image": "i", "command": ["x"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"nodeSelector": {selector: "x"}, "containers": [container]}}
    made = templates({"ps": {"replicas": 1}, "worker": {"replicas": 1, "template": template}})
    assert (selector in (made["ps"]["spec"].get("nodeSelector") or {})) is not leaves


def test_annotations_for_autoscalers_are_on_the_pods_of_each_role() -> None:
    spot, autoscaler, karpenter = jobs("operators/changing-nodes.md")
    kinds = {role: template["spec"]["nodeSelector"] for role, template in spot.items()}
    assert {role: one["karpenter.sh/capacity-type"] for role, one in kinds.items()} == {
        "worker": "spot",
        "ps": "on-demand",
        "chief": "on-demand",
    }
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    said = {role: template["metadata"]["annotations"][key] for role, template in autoscaler.items()}
    assert said == {"worker": "true", "chief": "true", "ps": "false"}
    assert karpenter["ps"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert any("emptyDir" in volume for volume in spot["worker"]["spec"]["volumes"]), "why an autoscaler waits"
    assert "--delete-emptydir-data" in {span.text for span in page("operators/changing-nodes.md").spans}


def test_servers_have_a_budget_with_standbys_alone_and_the_budget_shown_selects_them() -> None:
    (budget,) = (d for d in shown("operators/changing-nodes.md") if d.get("kind") == "PodDisruptionBudget")
    labels = jobs("operators/changing-nodes.md")[0]["ps"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= {**labels, names.LABEL_JOB: "digits"}.items()
    for standby, budgets in ((None, 0), ({"mode": "Warm"}, 2)):
        spec: dict[str, Any] = {"ps": {"replicas": 2}}
        if standby:
            spec["ps"]["standby"] = standby
        world = World(job(spec=dict(spec)))
        world.reconcile()
        assert sum(kind == "PodDisruptionBudget" for kind, _ in world.children) == budgets


@pytest.mark.parametrize("standbys", [1, 2])
def test_a_budget_keeps_one_ready_member(standbys: int) -> None:
    world = World(job(spec={"ps": {"standby": {"mode": "Warm", "replicasPerShard": standbys}}}))
    world.reconcile()
    (budget,) = (child["spec"] for (kind, _), child in world.children.items() if kind == "PodDisruptionBudget")
    assert budget["minAvailable"] == 1
    for path in ("operators/changing-nodes.md", "users/standby.md"):
        words = " ".join(page(path).path.read_text(encoding="utf-8").split())
        assert "keeps one ready member. With one standby per shard," in words


def test_the_page_on_quotas_names_what_stays_of_a_suspended_job() -> None:
    world = World(job(spec={"checkpoint": {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}}}))
    world.settle()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    counted = {kind for kind, _ in world.children} - {"NetworkPolicy", "PersistentVolumeClaim"}
    (line,) = re.findall(r"\*\*Suspended jobs\*\*.*", page("operators/tenants.md").path.read_text(encoding="utf-8"))
    assert all(f"{kind}s" in line for kind in counted)
    assert "claims" in line


def test_the_quota_counts_the_jobs_of_this_api() -> None:
    (quota,) = (d for d in shown("operators/tenants.md") if d.get("kind") == "ResourceQuota")
    assert f"count/{names.PLURAL}.{names.GROUP}" in quota["spec"]["hard"]
