"""The names of the chart's objects: of any release, in any namespace, and of several releases in one cluster."""

import re
from typing import Any

import pytest

from .conftest import Render, Rendered

EVERYTHING: dict[str, Any] = {
    "progress": {"enabled": True},
    "kueue": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "podDisruptionBudget": {"enabled": True},
    "metrics": {name: {"enabled": True} for name in ("podMonitor", "jobsPodMonitor", "rules", "dashboard")},
}
TEXTS = {"name", "namespace", "serviceAccountName", "priorityClassName", "app.kubernetes.io/instance"}


def not_text(node: Any, key: str = "") -> list[tuple[str, Any]]:
    """Return the members that YAML does not read as text, although Kubernetes accepts only text there."""
    if isinstance(node, list):
        return [found for item in node for found in not_text(item)]
    if isinstance(node, dict):
        return [found for name, value in node.items() for found in not_text(value, name)]
    return [(key, node)] if key in TEXTS and not isinstance(node, str) else []


@pytest.mark.parametrize("name", ["123", "2024-01-01", "on", "null"])
def test_names_that_yaml_reads_as_another_type_stay_text(render: Render, name: str) -> None:
    values = {
        **EVERYTHING,
        "watch": {"namespaces": [name]},
        "serviceAccount": {"name": name},
        "priorityClassName": name,
        "nameOverride": name,
    }
    for rendered in (render(values, release=name, namespace=name), render({"nameOverride": name}, namespace=name)):
        assert not_text([o for o in rendered.objects if o["kind"] != "CustomResourceDefinition"]) == []
        assert rendered.one("Deployment")["metadata"]["namespace"] == name
        assert rendered.one("Deployment")["metadata"]["labels"]["app.kubernetes.io/name"] == name


def cluster_wide(rendered: Rendered) -> set[tuple[str, str]]:
    return {(o["kind"], o["metadata"]["name"]) for o in rendered.objects if "namespace" not in o["metadata"]}


def test_releases_of_one_name_in_two_namespaces_share_no_object(render: Render) -> None:
    """Teams with an operator each may name their releases alike: an object of both would get the settings and subjects
    of one.
    """
    team = {**EVERYTHING, "crds": {"install": False}}
    one, two = (
        render({**team, "watch": {"namespaces": [namespace]}}, namespace=namespace)
        for namespace in ("team-a", "team-b")
    )
    assert cluster_wide(one) & cluster_wide(two) == set()
    assert len(cluster_wide(one)) == len(cluster_wide(two)) == 10
    binding = one.one("ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == one.one("ValidatingAdmissionPolicy")["metadata"]["name"]
    aggregated = {"pstraining-view-team-a", "pstraining-edit-team-a"}
    roles = {role["metadata"]["name"] for role in one.of_kind("ClusterRole")} - aggregated
    assert {b["roleRef"]["name"] for b in one.of_kind("ClusterRoleBinding")} == roles


@pytest.mark.parametrize(
    ("release", "values"), [("1st", {}), ("team.a", {}), ("2.0." + "r" * 49, {}), ("pst", {"fullnameOverride": "4ml"})]
)
def test_the_names_of_services_are_labels_of_rfc_1035(render: Render, release: str, values: dict[str, Any]) -> None:
    rendered = render(values, release=release)
    names = [service["metadata"]["name"] for service in rendered.of_kind("Service")]
    assert len(names) == 2
    assert [name for name in names if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []
    env = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    (url,) = (e["value"] for e in env if e["name"] == "PSTRAINING_PROGRESS_URL")
    assert url.removeprefix("https://").partition(".")[0] in names
