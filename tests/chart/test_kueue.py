"""The effects of `kueue.enabled`: the operator's switch and rights, Kueue's right to read jobs, the policy on the
label.

The policy's expressions are evaluated like those of the CRD.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pstraining.cli.validation import cel

from .conftest import CHART, NAMESPACE, REPOSITORY, ROOT, Helm, Render, Rendered
from .test_rbac import CLUSTER, KUEUE, KUEUE_CLASSES, LEASE, OPERATOR, environment, granted

ENABLED = {"kueue": {"enabled": True}}
LABEL = "kueue.x-k8s.io/queue-name"
OPERATOR_ROLE, CLASSES_ROLE, READER_ROLE = "pstraining-operator", "pstraining-operator-kueue", "pstraining-for-kueue"
OPERATOR_ACCOUNT = {"kind": "ServiceAccount", "name": OPERATOR_ROLE, "namespace": NAMESPACE}
POLICY_KINDS = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

Manifest = dict[str, Any]


def named(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in objects}


def bound(rendered: Rendered) -> dict[str, list[Manifest]]:
    """Return the subjects of each bound ClusterRole of the chart."""
    return {item["roleRef"]["name"]: item["subjects"] for item in rendered.of_kind("ClusterRoleBinding")}


def test_the_rights_of_jobs_in_queues_are_exactly_these(render: Render) -> None:
    rendered = render({"kueue": {"enabled": True, "serviceAccount": {"name": "k", "namespace": "queues"}}})
    roles = named(rendered.of_kind("ClusterRole"))
    assert granted(roles[OPERATOR_ROLE]["rules"]) == CLUSTER | KUEUE
    assert granted(roles[CLASSES_ROLE]["rules"]) == KUEUE_CLASSES
    assert granted(roles[READER_ROLE]["rules"]) == {("pstraining.dev", "pstrainingjobs"): ("get", "list", "watch")}
    assert bound(rendered) == {
        OPERATOR_ROLE: [OPERATOR_ACCOUNT],
        CLASSES_ROLE: [OPERATOR_ACCOUNT],
        READER_ROLE: [{"kind": "ServiceAccount", "name": "k", "namespace": "queues"}],
    }
    assert environment(rendered)["PSTRAINING_KUEUE"] == "true"


def test_the_page_names_the_rights_that_the_chart_grants(render: Render) -> None:
    text = (ROOT / "docs" / "operators" / "kueue.md").read_text("utf-8")
    rows = re.findall(r"^\| (operator|Kueue) \| (.*?) \| (.*?) \|", text, re.MULTILINE)
    stated = {
        (account, resource): tuple(sorted(verbs.split(", ")))
        for account, resources, verbs in rows
        for resource in re.findall(r"`(.*?)`", resources)
    }
    roles = named(render(ENABLED).of_kind("ClusterRole"))
    extra = granted(roles[OPERATOR_ROLE]["rules"]).items() - CLUSTER.items()
    classes, reader = granted(roles[CLASSES_ROLE]["rules"]), granted(roles[READER_ROLE]["rules"])
    assert stated == {
        **{("operator", resource): verbs for (_, resource), verbs in {**dict(extra), **classes}.items()},
        **{("Kueue", resource): verbs for (_, resource), verbs in reader.items()},
    }


def test_without_the_value_nothing_of_kueue_is_rendered(render: Render) -> None:
    rendered = render()
    assert "PSTRAINING_KUEUE" not in environment(rendered)
    assert not POLICY_KINDS & rendered.kinds()
    assert "kueue" not in str([o for o in rendered.objects if o["kind"] != "CustomResourceDefinition"])


def test_a_list_of_namespaces_takes_only_the_classes_from_the_cluster(render: Render) -> None:
    rendered = render({**ENABLED, "watch": {"namespaces": ["team-a", "team-b"]}})
    roles = {role["metadata"]["namespace"]: granted(role["rules"]) for role in rendered.of_kind("Role")}
    assert roles == {"team-a": OPERATOR | KUEUE, "team-b": OPERATOR | KUEUE, NAMESPACE: LEASE}
    classes, reader = (f"{role}-{NAMESPACE}" for role in (CLASSES_ROLE, READER_ROLE))
    assert set(bound(rendered)) == {classes, reader}
    assert granted(named(rendered.of_kind("ClusterRole"))[classes]["rules"]) == KUEUE_CLASSES
    selected = rendered.one("ValidatingAdmissionPolicyBinding")["spec"]["matchResources"]["namespaceSelector"]
    expected = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
    assert selected == {"matchExpressions": [expected]}


def test_without_roles_the_policy_stays(render: Render) -> None:
    rendered = render({**ENABLED, "rbac": {"create": False, "aggregate": False}})
    assert not {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} & rendered.kinds()
    assert rendered.kinds() >= POLICY_KINDS


def test_a_cluster_without_admission_policies_is_rejected(helm: Helm) -> None:
    given = ("--set", f"image.repository={REPOSITORY},kueue.enabled=true")
    done = helm("template", "pstraining", str(CHART), "--kube-version", "1.29", *given)
    assert "kueue.enabled needs Kubernetes 1.30 or newer" in done.stderr


def test_the_policy_applies_to_every_change_of_a_job(render: Render) -> None:
    rendered = render(ENABLED)
    policy = rendered.one("ValidatingAdmissionPolicy")
    binding = rendered.one("ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}, "all namespaces"
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": ["pstraining.dev"],
            "apiVersions": ["*"],
            "resources": ["pstrainingjobs"],
            "operations": ["UPDATE"],
        }
    ]


def queue(name: str | None) -> Manifest:
    """Return the labels of a job in that queue."""
    return {"team": "a"} if name is None else {"team": "a", LABEL: name}


def job(labels: Mapping[str, str] | None, spec: Manifest, status: Manifest | None) -> Manifest:
    """Return a job as the API server passes it to a policy: unset fields are absent."""
    found: Manifest = {"metadata": {"name": "digits"}, "spec": spec}
    if labels is not None:
        found["metadata"]["labels"] = dict(labels)
    if status is not None:
        found["status"] = status
    return found


def refusals(policy: Manifest, old: Manifest, new: Manifest, user: str = "alice") -> list[str]:
    """Return the messages with which the policy rejects a user's change."""
    given = {"object": new, "oldObject": old, "request": {"userInfo": {"username": user}}}
    of = {v["name"]: cel.evaluate(v["expression"], cel.context(given)) for v in policy["spec"]["variables"]}
    variables = cel.context({**given, "variables": of})
    rules = policy["spec"]["validations"]
    return [rule["message"] for rule in rules if not cel.evaluate(rule["expression"], variables)]


def ended(kind: str, status: str = "True") -> Manifest:
    """Return a status with a condition."""
    conditions = [{"type": "Running", "status": "True"}, {"type": kind, "status": status}]
    return {"phase": "Running", "conditions": conditions}


RUNS: Manifest = {"runPolicy": {"suspend": False}}
SUSPENDED: Manifest = {"runPolicy": {"suspend": True}}
RUNNING, QUEUED = {"phase": "Running"}, {"phase": "Queued"}
REFUSED = [
    pytest.param(queue("a"), queue(None), RUNS, RUNNING, id="removed"),
    pytest.param(queue("a"), None, RUNS, RUNNING, id="removed with all labels"),
    pytest.param(queue("a"), queue(""), RUNS, RUNNING, id="emptied"),
    pytest.param(queue("a"), queue("b"), RUNS, RUNNING, id="changed"),
    pytest.param(queue(None), queue("a"), RUNS, RUNNING, id="added"),
    pytest.param(None, queue("a"), RUNS, None, id="added before the first status"),
    pytest.param(queue("a"), queue("b"), {}, {}, id="neither runPolicy nor phase"),
    pytest.param(queue("a"), queue("b"), {"runPolicy": {}}, RUNNING, id="no suspend"),
    pytest.param(queue("a"), queue("b"), RUNS, {"phase": "Suspended"}, id="only its phase is suspended"),
    pytest.param(queue("a"), queue("b"), RUNS, ended("Succeeded", "False"), id="not succeeded"),
    pytest.param(queue("a"), queue("b"), RUNS, ended("Degraded"), id="another condition is true"),
    pytest.param(queue("a"), queue(None), RUNS, QUEUED, id="removed while it waits"),
    pytest.param(queue(None), queue("a"), RUNS, QUEUED, id="added while it waits"),
]
ALLOWED = [
    pytest.param(queue("a"), queue("a"), RUNS, RUNNING, id="unchanged"),
    pytest.param(None, None, {}, None, id="never in a queue"),
    pytest.param(queue(""), None, RUNS, RUNNING, id="an empty name is none"),
    pytest.param(queue("a"), queue(None), SUSPENDED, RUNNING, id="suspended"),
    pytest.param(queue(None), queue("a"), SUSPENDED, None, id="created suspended"),
    pytest.param(queue("a"), queue(None), RUNS, ended("Succeeded"), id="succeeded"),
    pytest.param(queue("a"), queue(None), RUNS, ended("Failed"), id="failed"),
    pytest.param(queue("a"), queue("b"), RUNS, QUEUED, id="to another queue while it waits"),
]


@pytest.mark.parametrize(("before", "after", "spec", "status"), REFUSED)
def test_the_queue_of_a_job_that_may_run_cannot_be_changed(
    before: Manifest | None, after: Manifest | None, spec: Manifest, status: Manifest | None, render: Render
) -> None:
    policy = render(ENABLED).one("ValidatingAdmissionPolicy")
    # A suspension in the same write is too late: the job's pods still hold quota of the old queue.
    for new in (job(after, spec, status), job(after, SUSPENDED, status)):
        (message,) = refusals(policy, job(before, spec, status), new)
        assert LABEL in message
        assert "set spec.runPolicy.suspend to true first" in message


@pytest.mark.parametrize(("before", "after", "spec", "status"), ALLOWED)
def test_the_queue_of_a_job_that_holds_no_quota_can_be_changed(
    before: Manifest | None, after: Manifest | None, spec: Manifest, status: Manifest | None, render: Render
) -> None:
    policy = render(ENABLED).one("ValidatingAdmissionPolicy")
    # The same write may resume it.
    for new in (job(after, spec, status), job(after, RUNS, status)):
        assert refusals(policy, job(before, spec, status), new) == []


def test_the_operator_may_add_a_job_to_a_queue_but_not_remove_it(render: Render) -> None:
    policy = render(ENABLED).one("ValidatingAdmissionPolicy")
    operator = f"system:serviceaccount:{NAMESPACE}:{OPERATOR_ROLE}"
    without, within = job(queue(None), RUNS, None), job(queue("default"), RUNS, None)
    assert refusals(policy, without, within, operator) == []
    assert refusals(policy, within, without, operator)
    assert refusals(policy, without, within, f"{operator}-other")
