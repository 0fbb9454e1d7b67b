"""The operator's Deployment: its settings, its probes, and its restricted pod."""

import json
from itertools import product
from typing import Any

import pytest
import yaml

from pstraining import __version__
from pstraining.api import contract, names

from .conftest import CHART, KUBERNETES, NAMESPACE, REPOSITORY, Helm, Render

# Pod Security Standards, "restricted": the volume types that are allowed.
ALLOWED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}


def pod(render: Render, values: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = render(values).one("Deployment")["spec"]["template"]
    return found


def container(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


def test_one_operator_at_a_time(render: Render) -> None:
    spec = render().one("Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_pod_passes_the_restricted_standard(render: Render) -> None:
    spec = pod(render)["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for volume in spec.get("volumes", ()):
        assert set(volume) - {"name"} <= ALLOWED_VOLUMES
    own = container(pod(render))["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert "privileged" not in own
    assert not [port for port in container(pod(render))["ports"] if "hostPort" in port]


def test_the_platform_may_choose_the_ids_of_the_operators_pod(render: Render) -> None:
    """The platform may choose the IDs of the operator's pod. OpenShift's restricted-v2 rejects IDs outside the
    namespace's range; elsewhere the image's user suffices.
    """
    contexts = (pod(render)["spec"]["securityContext"], container(pod(render))["securityContext"])
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & {key for context in contexts for key in context}


def test_the_process_gets_its_settings(render: Render) -> None:
    template = pod(
        render,
        {
            "watch": {"namespaces": ["a", "b"]},
            "lease": {"durationSeconds": 30},
            "operator": {"workers": 8, "logLevel": "DEBUG", "logFormat": "text", "podIds": "platform"},
            "extraEnv": [{"name": "EXTRA", "value": "1"}],
        },
    )
    env = container(template)["env"]
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in env if "valueFrom" in e}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    assert {e["name"]: e["value"] for e in env if "value" in e} == {
        "PSTRAINING_NAMESPACES": "a,b",
        "PSTRAINING_WATCH_NODES": "false",
        "PSTRAINING_LEASE_NAME": "pstraining-operator",
        "PSTRAINING_LEASE_DURATION_SECONDS": "30",
        "PSTRAINING_METRICS_PORT": "8080",
        "PSTRAINING_HEALTH_PORT": "8081",
        "PSTRAINING_LOG_LEVEL": "DEBUG",
        "PSTRAINING_LOG_FORMAT": "text",
        "PSTRAINING_POD_IDS": "platform",
        "PSTRAINING_WORKERS": "8",
        "EXTRA": "1",
    }


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["PSTRAINING_LOG_LEVEL"], "must not have PSTRAINING_LOG_LEVEL, which the chart sets: set operator.logLevel"),
        (["A", "PSTRAINING_KUEUE"], "must not have PSTRAINING_KUEUE, which the chart sets: set kueue.enabled instead"),
        (["POD_NAME"], "must not have POD_NAME, which the chart sets: remove it"),
        (["A", "B", "A"], "extraEnv has A twice: remove one of them"),
        (["PSTRAINING_RESYNC_SECONDS"], None),
    ],
)
def test_a_variable_that_the_chart_sets_cannot_be_set_again(helm: Helm, given: list[str], reported: str | None) -> None:
    values = {"image": {"repository": REPOSITORY}, "extraEnv": [{"name": name, "value": "1"} for name in given]}
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", "-")
    done = helm("template", "pstraining", str(CHART), *where, stdin=json.dumps(values))
    assert reported is None or reported in done.stderr
    assert (done.returncode == 0) is (reported is None)


def test_every_variable_of_the_chart_is_listed(render: Render) -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text("utf-8")
    listed = yaml.safe_load(helpers.partition('"pstraining.ownEnv" -}}')[2].partition("{{")[0])
    assert set(listed) == {e["name"] for e in container(pod(render, {"kueue": {"enabled": True}}))["env"]}


def test_all_namespaces_is_the_default(render: Render) -> None:
    env = {e["name"]: e.get("value") for e in container(pod(render))["env"]}
    assert env["PSTRAINING_NAMESPACES"] == ""


def test_probes_use_the_health_port(render: Render) -> None:
    found = container(pod(render))
    assert {p["name"]: p["containerPort"] for p in found["ports"]} == {
        "metrics": 8080,
        "health": 8081,
        "progress": 8443,
    }
    assert found["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert found["startupProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


def test_the_image(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    assert container(pod(render))["image"] == f"{REPOSITORY}:{__version__}"
    assert container(pod(render, {"image": {"tag": "x"}}))["image"] == f"{REPOSITORY}:x"
    assert container(pod(render, {"image": {"tag": "x", "digest": digest}}))["image"] == f"{REPOSITORY}@{digest}"


@pytest.mark.parametrize("end", [":1.0", "@sha256:" + "0" * 64])
def test_a_repository_with_a_tag_is_rejected(helm: Helm, end: str) -> None:
    """A second tag would follow, and the kubelet would report InvalidImageName after minutes."""
    given = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--set")
    done = helm("template", "pstraining", str(CHART), *given, f"image.repository=localhost:5000/operator{end}")
    assert f"neither tag nor digest: localhost:5000/operator{end}. Set image.tag or image.digest" in done.stderr
    assert (
        helm("template", "pstraining", str(CHART), *given, "image.repository=localhost:5000/operator").returncode == 0
    )


@pytest.mark.parametrize(
    ("repository", "is_accepted"),
    [
        ("operator", True),
        ("REGISTRY/pstraining/operator", True),
        ("Registry.example.org:5000/a_b/c--d", True),
        ("[::1]:5000/operator", True),
        ("https://registry.example.org/operator", False),
        ("registry.example.org/Team/operator", False),
        ("registry.example.org/operator/", False),
        ("registry.example.org/my operator", False),
    ],
)
def test_a_repository_is_the_name_of_an_image(helm: Helm, repository: str, is_accepted: bool) -> None:
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    done = helm("template", "pstraining", str(CHART), *where, "--set", f"image.repository={repository}")
    assert (done.returncode == 0) is is_accepted
    assert is_accepted or f"image.repository is not the name of an image: {repository}. It has no" in done.stderr


def test_no_repository_is_the_default(helm: Helm) -> None:
    """There is no default repository, because anyone could claim one without an owner."""
    done = helm("template", "pstraining", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES)
    assert done.returncode != 0
    assert "image.repository is not set" in done.stderr
    assert "--set image.repository=REGISTRY/pstraining/operator" in done.stderr


def test_only_the_pod_requests_the_token(render: Render) -> None:
    rendered = render()
    account = rendered.one("ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    spec = rendered.one("Deployment")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert spec["serviceAccountName"] == account["metadata"]["name"]


def test_a_custom_service_account_is_used(render: Render) -> None:
    rendered = render({"serviceAccount": {"create": False, "name": "mine"}})
    assert rendered.of_kind("ServiceAccount") == []
    assert rendered.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert rendered.one("ClusterRoleBinding")["subjects"][0]["name"] == "mine"


def test_placement_and_metadata_reach_the_pod(render: Render) -> None:
    toleration = {"key": "dedicated", "operator": "Exists"}
    template = pod(
        render,
        {
            "nodeSelector": {"disk": "fast"},
            "tolerations": [toleration],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"a": "1"},
            "podLabels": {"b": "2"},
            "imagePullSecrets": [{"name": "pull"}],
        },
    )
    spec = template["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"] == [toleration]
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert template["metadata"]["annotations"]["a"] == "1"
    assert template["metadata"]["labels"]["b"] == "2"


class OneOfEachKey(yaml.CSafeLoader):
    """Refuses mappings with two equal keys, as Kustomize does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep=deep)
        assert len(found) == len(node.value), f"two equal keys:{node.start_mark}"
        return found


def test_labels_of_values_replace_the_charts(helm: Helm) -> None:
    labels = {"app.kubernetes.io/part-of": "platform", "app.kubernetes.io/version": "9", "mine": "1"}
    annotations = {"kubectl.kubernetes.io/default-container": "sidecar"}
    monitors = ("podMonitor", "jobsPodMonitor", "rules", "dashboard")
    values = {
        "image": {"repository": REPOSITORY},
        "podLabels": labels,
        "podAnnotations": annotations,
        "metrics": {name: {"enabled": True, "labels": labels} for name in monitors},
    }
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", "-")
    done = helm("template", "pstraining", str(CHART), *where, stdin=json.dumps(values))
    found = [o for o in yaml.load_all(done.stdout, Loader=OneOfEachKey) if o]
    (deployment,) = (o for o in found if o["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["metadata"]
    others = [o["metadata"] for o in found if o["kind"] in ("PodMonitor", "PrometheusRule", "ConfigMap")]
    assert [labels.items() <= o["labels"].items() for o in (pod, *others)] == [True] * 5
    assert pod["annotations"] == annotations


@pytest.mark.parametrize("label", ["name", "instance", "component"])
def test_labels_that_select_the_pod_cannot_be_replaced(helm: Helm, label: str) -> None:
    values = {"image": {"repository": REPOSITORY}, "podLabels": {f"app.kubernetes.io/{label}": "mine"}}
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", "-")
    done = helm("template", "pstraining", str(CHART), *where, stdin=json.dumps(values))
    assert f"podLabels must not have app.kubernetes.io/{label}, by which the Deployment and the Services" in done.stderr


def test_selectors_are_labels_of_the_pod(render: Render) -> None:
    rendered = render(
        {
            "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
            "podDisruptionBudget": {"enabled": True},
            "networkPolicy": {"enabled": True},
        }
    )
    deployment = rendered.one("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    monitor, policy = rendered.one("PodMonitor"), rendered.one("NetworkPolicy")
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in rendered.of_kind("Service")),
        monitor["spec"]["selector"]["matchLabels"],
        rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
        assert "app.kubernetes.io/version" not in selector
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_jobs_monitor_finds_their_pods_and_the_runtimes_port(render: Render) -> None:
    assert not [item for item in render().objects if item["kind"] == "PodMonitor"]
    wanted = {"jobsPodMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}}}
    monitor = render({"metrics": wanted}).one("PodMonitor")
    assert monitor["spec"]["selector"] == {"matchExpressions": [{"key": names.LABEL_JOB, "operator": "Exists"}]}
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": contract.METRICS_PORT_NAME, "interval": "5s"}]
    assert monitor["spec"]["podTargetLabels"] == [names.LABEL_JOB, names.LABEL_ROLE, names.LABEL_INDEX]
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    some = render({"metrics": wanted, "watch": {"namespaces": ["a", "b"], "nodes": False}}).one("PodMonitor")
    assert some["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_everything_but_cluster_wide_objects_lies_in_the_release_namespace(render: Render) -> None:
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    for item in render().objects:
        if item["kind"] not in cluster_wide:
            assert item["metadata"]["namespace"] == NAMESPACE, item["kind"]
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "pstraining"


def test_the_network_policy_opens_only_used_ports(render: Render) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {"networkPolicy": {"enabled": True, "metricsFrom": [peer], "apiServerPorts": [443]}}
    spec = render(values).one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    metrics, progress, health = ([{"port": name}] for name in ("metrics", "progress", "health"))
    assert spec["ingress"] == [{"ports": metrics, "from": [peer]}, {"ports": progress}, {"ports": health}]
    dns, server = spec["egress"]
    assert {(rule["port"], rule["protocol"]) for rule in dns["ports"]} == set(product((53, 5353), ("UDP", "TCP")))
    assert server == {"ports": [{"port": 443}]}


def test_extra_objects_are_templates(render: Render) -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}}
    assert render({"extraObjects": [extra]}).one("ConfigMap")["metadata"]["name"] == "pstraining-extra"


def test_names_follow_the_release_and_its_overrides(render: Render) -> None:
    def name(values: dict[str, Any] | None = None, release: str = "pstraining") -> str:
        return str(render(values, release=release).one("Deployment")["metadata"]["name"])

    assert name() == "pstraining-operator"
    assert name(release="training") == "training-pstraining-operator"
    assert name({"nameOverride": "pst"}, release="a") == "a-pst-operator"
    assert name({"fullnameOverride": "x"}) == "x-operator"


@pytest.mark.parametrize("values", [{}, {"fullnameOverride": "f" * 53}, {"nameOverride": "n" * 53}])
def test_the_names_of_services_are_legal_for_the_longest_release(render: Render, values: dict[str, Any]) -> None:
    found = render(values, release="r" * 53)
    metrics, progress = (service["metadata"]["name"] for service in found.of_kind("Service"))
    assert (metrics.rpartition("-")[2], progress.rpartition("-")[2]) == ("metrics", "progress")
    assert max(len(metrics), len(progress)) <= 63
    env = found.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "PSTRAINING_PROGRESS_URL", "value": f"https://{progress}.{NAMESPACE}.svc:8443"} in env
