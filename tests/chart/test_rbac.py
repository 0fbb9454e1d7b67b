"""The chart grants the operator the rights that it uses, and no others."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from .conftest import NAMESPACE, Render, Rendered

ALL = ("create", "delete", "get", "list", "patch", "watch")

OPERATOR = {
    ("pstraining.dev", "pstrainingjobs"): ("delete", "list", "watch"),
    ("pstraining.dev", "pstrainingjobs/status"): ("patch",),
    ("pstraining.dev", "pstrainingjobs/finalizers"): ("update",),
    ("apps", "statefulsets"): ALL,
    ("apps", "deployments"): ALL,
    ("batch", "jobs"): ("create", "delete", "get", "list", "patch", "watch"),
    ("", "services"): ALL,
    ("", "configmaps"): ALL,
    ("policy", "poddisruptionbudgets"): ALL,
    ("networking.k8s.io", "networkpolicies"): ALL,
    ("scheduling.x-k8s.io", "podgroups"): ("create", "delete", "get", "patch"),
    ("scheduling.volcano.sh", "podgroups"): ("create", "delete", "get", "patch"),
    ("", "persistentvolumeclaims"): ALL,
    ("", "pods"): ("delete", "list", "patch", "watch"),
    ("", "pods/resize"): ("patch",),
    ("", "events"): ("list", "watch"),
    ("events.k8s.io", "events"): ("create",),
}
REVIEW = {("authentication.k8s.io", "tokenreviews"): ("create",)}
LOGS = {("", "pods/log"): ("get",)}
CLUSTER = OPERATOR | {("", "nodes"): ("list", "watch")} | REVIEW | LOGS
KUEUE = {
    ("kueue.x-k8s.io", "workloads"): ALL,
    ("kueue.x-k8s.io", "workloads/status"): ("patch",),
    ("kueue.x-k8s.io", "localqueues"): ("get",),
    ("pstraining.dev", "pstrainingjobs"): ("delete", "list", "patch", "watch"),
}
"""The rights for jobs in queues, where jobs are watched."""
KUEUE_CLASSES = {
    ("kueue.x-k8s.io", "resourceflavors"): ("get",),
    ("kueue.x-k8s.io", "workloadpriorityclasses"): ("get",),
    ("scheduling.k8s.io", "priorityclasses"): ("get",),
}
"""Those of them for kinds without a namespace."""
SECRET = {("", "secrets"): ("create", "get")}
LEASE = {("coordination.k8s.io", "leases"): ("create", "get", "update")}


def granted(rules: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return {key: tuple(sorted(verbs)) for key, verbs in found.items()}


def own_cluster_roles(rendered: Rendered) -> list[dict[str, Any]]:
    """Return the ClusterRoles that are not meant for users."""
    return [
        role
        for role in rendered.of_kind("ClusterRole")
        if not any(label.startswith("rbac.authorization.k8s.io/aggregate-to") for label in role["metadata"]["labels"])
    ]


def environment(rendered: Rendered) -> dict[str, Any]:
    container = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {e["name"]: e.get("value") for e in container["env"]}


def test_the_cluster_role_has_exactly_these_verbs(render: Render) -> None:
    rendered = render()
    (role,) = own_cluster_roles(rendered)
    assert granted(role["rules"]) == CLUSTER
    assert environment(rendered)["PSTRAINING_WATCH_NODES"] == "true"
    binding = rendered.one("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pstraining-operator", "namespace": NAMESPACE}]


def test_nodes_need_not_be_watched(render: Render) -> None:
    rendered = render({"watch": {"nodes": False}, "progress": {"enabled": False}})
    (role,) = own_cluster_roles(rendered)
    assert granted(role["rules"]) == OPERATOR
    assert environment(rendered)["PSTRAINING_WATCH_NODES"] == "false"


def test_a_list_of_namespaces_gets_roles_there_and_no_cluster_role(render: Render) -> None:
    rendered = render({"watch": {"namespaces": ["team-a", "team-b"]}})
    assert own_cluster_roles(rendered) == []
    assert rendered.of_kind("ClusterRoleBinding") == []
    assert environment(rendered)["PSTRAINING_WATCH_NODES"] == "false"
    roles = {r["metadata"]["namespace"]: r for r in rendered.of_kind("Role")}
    bindings = {b["metadata"]["namespace"]: b for b in rendered.of_kind("RoleBinding")}
    assert set(roles) == set(bindings) == {"team-a", "team-b", NAMESPACE}
    for namespace in ("team-a", "team-b"):
        assert granted(roles[namespace]["rules"]) == OPERATOR
        assert bindings[namespace]["roleRef"]["name"] == roles[namespace]["metadata"]["name"]
        assert bindings[namespace]["subjects"][0]["namespace"] == NAMESPACE
    assert granted(roles[NAMESPACE]["rules"]) == LEASE


def test_an_owner_of_one_namespace_needs_no_right_elsewhere(render: Render) -> None:
    values = {"watch": {"namespaces": [NAMESPACE]}, "crds": {"install": False}, "rbac": {"aggregate": False}}
    rendered = render(values)
    assert {o["metadata"].get("namespace") for o in rendered.objects} == {NAMESPACE}
    assert rendered.kinds() == {"Deployment", "Role", "RoleBinding", "Service", "ServiceAccount"}


def test_the_operators_namespace_may_be_watched(render: Render) -> None:
    rendered = render({"watch": {"namespaces": [NAMESPACE]}})
    names = [r["metadata"]["name"] for r in rendered.of_kind("Role")]
    assert sorted(names) == ["pstraining-operator", "pstraining-operator-lease"]


def test_the_lease_role_names_the_configured_lease(render: Render) -> None:
    rendered = render(release="other")
    (role,) = (role for role in rendered.of_kind("Role") if role["metadata"]["name"].endswith("-lease"))
    assert granted(role["rules"]) == LEASE
    named = [rule["resourceNames"] for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert named == [[environment(rendered)["PSTRAINING_LEASE_NAME"]]]


def test_no_rule_has_a_wildcard_or_grants_other_secrets(render: Render) -> None:
    for role in [*render().of_kind("ClusterRole"), *render().of_kind("Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                assert (role["kind"], role["metadata"]["namespace"]) == ("Role", NAMESPACE)
                assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["pstraining-operator-progress"]


def test_the_clusters_aggregated_roles_include_jobs(render: Render) -> None:
    roles = {r["metadata"]["name"]: r for r in render().of_kind("ClusterRole")}
    view, edit = roles["pstraining-view"], roles["pstraining-edit"]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert granted(view["rules"])["pstraining.dev", "pstrainingjobs"] == ("get", "list", "watch")
    assert granted(edit["rules"])["pstraining.dev", "pstrainingjobs"] == (
        *("create", "delete", "deletecollection", "patch", "update"),
    )
    # Only the operator writes a job's status.
    assert ("pstraining.dev", "pstrainingjobs/status") not in granted(edit["rules"])


@pytest.mark.parametrize("namespaces", [[], ["team-a"]])
def test_roles_can_be_left_out(render: Render, namespaces: list[str]) -> None:
    rendered = render({"rbac": {"create": False, "aggregate": False}, "watch": {"namespaces": namespaces}})
    assert not rendered.kinds() & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_progress_needs_a_service_a_secret_and_token_reviews(render: Render) -> None:
    rendered = render()
    name = "pstraining-operator-progress"
    roles = {role["metadata"]["name"]: role for role in rendered.of_kind("Role")}
    assert granted(roles[name]["rules"]) == SECRET
    reading = next(rule for rule in roles[name]["rules"] if "get" in rule["verbs"])
    assert reading["resourceNames"] == [name], "no other Secret"
    (service,) = (s for s in rendered.of_kind("Service") if s["metadata"]["name"] == name)
    host = f"{name}.{NAMESPACE}.svc"
    assert environment(rendered)["PSTRAINING_PROGRESS_URL"] == f"https://{host}:{service['spec']['ports'][0]['port']}"


def test_with_a_list_of_namespaces_progress_needs_a_cluster_role_for_one_right(render: Render) -> None:
    rendered = render({"watch": {"namespaces": ["team-a"]}, "progress": {"enabled": True}})
    (role,) = own_cluster_roles(rendered)
    assert granted(role["rules"]) == REVIEW
    binding = rendered.one("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == f"pstraining-operator-tokens-{NAMESPACE}"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pstraining-operator", "namespace": NAMESPACE}]
    roles = {(r["metadata"]["namespace"], r["metadata"]["name"]): r for r in rendered.of_kind("Role")}
    assert granted(roles["team-a", "pstraining-operator"]["rules"]) == OPERATOR | LOGS
    assert granted(roles[NAMESPACE, "pstraining-operator-progress"]["rules"]) == SECRET
    assert environment(rendered)["PSTRAINING_PROGRESS_URL"].startswith("https://")


@pytest.mark.parametrize("values", [{"progress": {"enabled": False}}, {"watch": {"namespaces": ["team-a"]}}])
def test_without_progress_none_of_that_is_rendered(values: dict[str, Any], render: Render) -> None:
    rendered = render({**values, "networkPolicy": {"enabled": True}})
    text = str([*rendered.of_kind("Role"), *rendered.of_kind("Service"), *rendered.of_kind("NetworkPolicy")])
    assert "progress" not in text
    assert "secrets" not in text
    assert not any(name.startswith("PSTRAINING_PROGRESS") for name in environment(rendered))
    assert not any(
        ("authentication.k8s.io", "tokenreviews") in granted(r["rules"]) for r in own_cluster_roles(rendered)
    )
