"""Running jobs during an upgrade, a rollback and an uninstallation of the chart, and the rights to install it.

The older chart is this one with another version, and so another Deployment, and a CRD that lacks a field. The test
shows that jobs survive, not that any real older version can be upgraded.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining import __version__
from tests.e2e.conftest import OPERATOR_IMAGE, RELEASE, ROOT, cluster_command
from tests.support.kube import Kube, Object, wait_for
from tests.support.scripted_program import Puppet
from tests.support.soak_marks import ALL, in_all

pytestmark = pytest.mark.cluster

CHART = ROOT / "charts" / "pstraining"
CRD = "pstrainingjobs.pstraining.dev"
OLDER = "0.0.9"
NEWER_FIELD = "failurePolicy"
"""A field of the spec that the older chart's CRD lacks."""
OWNER = "owner-of-one-namespace"

Helm = Callable[..., str]


@pytest.fixture
def helm_in(kube: Kube, helm: str, namespace: str) -> Iterator[Helm]:
    """Return a function that runs helm in the test's namespace; its releases are uninstalled at the end."""
    environment = {**os.environ, "KUBECONFIG": kube.target.kubeconfig}

    def run(*arguments: str, check: bool = True) -> str:
        command = [helm, *arguments, "-n", namespace, "--kube-context", kube.target.context]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout + done.stderr

    yield run
    run("uninstall", RELEASE, "--wait", check=False)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Return the chart of an older version."""
    copy = shutil.copytree(CHART, tmp_path / "pstraining")
    chart = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump(chart | {"version": OLDER, "appVersion": OLDER}))
    crd = yaml.safe_load((copy / "files" / "crd.yaml").read_text())
    del _spec(crd)[NEWER_FIELD]
    (copy / "files" / "crd.yaml").write_text(yaml.safe_dump(crd))
    return copy


def _spec(crd: Object) -> dict[str, Any]:
    """Return the fields of a job's spec in the CRD."""
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def has_field(kube: Kube) -> bool:
    crd = kube.get("CustomResourceDefinition", "", CRD)
    assert crd is not None
    return NEWER_FIELD in _spec(crd)


def operator_version(kube: Kube, namespace: str) -> str:
    """Return the version of the only operator pod that is not terminating."""
    pods = kube.list("Pod", namespace, "app.kubernetes.io/component=operator")
    (pod,) = (p for p in pods if not p["metadata"].get("deletionTimestamp"))
    return str(pod["metadata"]["labels"]["app.kubernetes.io/version"])


def restarts_by_pod(puppet: Puppet) -> dict[str, int]:
    """Return the job's pods by uid, with the restarts of their containers."""
    return {
        p["metadata"]["uid"]: sum(s["restartCount"] for s in p["status"].get("containerStatuses", ()))
        for p in puppet.pods()
    }


def ready(puppet: Puppet) -> dict[str, int]:
    """Return the number of ready pods of each role, according to the status."""
    status = puppet.status()
    return {role: status[role]["ready"] for role in ("ps", "chief", "worker")}


def acts(puppet: Puppet, times: int) -> None:
    """Demand that the operator replaces the deleted worker."""
    (pod,) = puppet.pods("worker")
    puppet.kube.delete("Pod", puppet.namespace, pod["metadata"]["name"], grace=0)
    wait_for(lambda: puppet.runs("worker-0") == times, f"worker 0 runs for the {times}. time")
    wait_for(lambda: puppet.status()["worker"]["ready"] == 1, "the worker is ready")


@pytest.mark.alone  # replaces the CRD
def test_a_running_job_survives_upgrade_rollback_and_uninstall(
    kube: Kube, helm_in: Helm, older: Path, namespace: str, shared: Path
) -> None:
    image = (*OPERATOR_IMAGE, "--set", f"image.tag={__version__}")
    own = (*image, "--set", f"watch.namespaces={{{namespace}}}", "--wait", "--timeout", "120s")
    # Other tests apply the CRD by hand, and another release may have kept it.
    helm_in("install", RELEASE, str(older), *own, "--take-ownership")
    assert (operator_version(kube, namespace), has_field(kube)) == (OLDER, False)
    puppet = Puppet.make(kube, namespace, "job", shared, workers=1)
    puppet.wait_phase("Running")
    wait_for(lambda: ready(puppet) == {"ps": 1, "chief": 1, "worker": 1}, "every pod is ready")
    before, old_status = restarts_by_pod(puppet), puppet.status()
    assert set(before.values()) == {0}

    helm_in("upgrade", RELEASE, str(CHART), *own)
    assert (operator_version(kube, namespace), has_field(kube)) == (__version__, True)
    assert restarts_by_pod(puppet) == before, "no pod was touched"
    assert puppet.status() == old_status, "no task was notified"
    acts(puppet, 2)

    before = restarts_by_pod(puppet)
    helm_in("rollback", RELEASE, "1", "--wait", "--timeout", "120s")
    assert (operator_version(kube, namespace), has_field(kube)) == (OLDER, False)
    assert restarts_by_pod(puppet) == before
    acts(puppet, 3)

    before = restarts_by_pod(puppet)
    helm_in("uninstall", RELEASE, "--wait")
    assert not kube.list("Deployment", namespace, "app.kubernetes.io/component=operator")
    assert puppet.phase() == "Running", "the CRD, and with it the job, is kept"
    assert restarts_by_pod(puppet) == before, "its pods continue"
    if ALL:  # tests/chart/test_chart.py has the CRD's annotation
        _is_removed_with_all_jobs(kube, helm_in, puppet, *own)


def _is_removed_with_all_jobs(kube: Kube, helm_in: Helm, puppet: Puppet, *own: str) -> None:
    """Install the chart again, and remove it with the CRD."""
    namespace, before = puppet.namespace, restarts_by_pod(puppet)
    helm_in("install", RELEASE, str(CHART), *own, "--set", "crds.keep=false")
    assert restarts_by_pod(puppet) == before
    acts(puppet, 4)
    # Not left to the CRD's deletion: a garbage collector that does not watch jobs yet would never notice it.
    kubectl(kube, "delete", "pstj", "--all", "-n", namespace)
    kubectl(kube, "wait", "--for=delete", "pod", "-l", "pstraining.dev/job-name", "-n", namespace, "--timeout=2m")
    assert not puppet.pods()
    helm_in("uninstall", RELEASE, "--wait")
    wait_for(lambda: kube.get("CustomResourceDefinition", "", CRD) is None, "the CRD is gone")


@in_all("tests/chart/test_rbac.py::test_an_owner_of_one_namespace_needs_no_right_elsewhere")  # asks the API server
def test_an_owner_of_one_namespace_installs_it_there(
    kube: Kube, helm_in: Helm, crd: None, namespace: str, shared: Path
) -> None:
    name = {"name": OWNER, "apiGroup": "rbac.authorization.k8s.io"}
    body = {
        "metadata": {"name": "owner"},
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": name["apiGroup"]},
        "subjects": [{"kind": "User", **name}],
    }
    kube.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", body)
    own = (*OPERATOR_IMAGE, "--set", f"watch.namespaces={{{namespace}}}")
    as_owner = ("--kube-as-user", OWNER, "--timeout", "120s", *own)
    refused = helm_in("install", RELEASE, str(CHART), *as_owner, check=False)
    assert "cannot" in refused, "the CRD and the roles of the cluster are not the owner's"
    assert "customresourcedefinitions" in refused or "clusterroles" in refused
    less = ("--set", "crds.install=false,rbac.aggregate=false")
    helm_in("upgrade", "--install", RELEASE, str(CHART), *as_owner, *less, "--wait")
    puppet = Puppet.make(kube, namespace, "job", shared, workers=1)
    puppet.wait_phase("Running")
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")
    account = f"system:serviceaccount:{namespace}:{RELEASE}-operator"
    assert allowed(kube, account, namespace)
    assert not allowed(kube, account, "default"), "nor has the operator a right elsewhere"
    helm_in("uninstall", RELEASE, "--wait", "--kube-as-user", OWNER)


@pytest.fixture
def monitoring(kube: Kube) -> Iterator[None]:
    """Install the Prometheus operator's CRDs that the chart's objects need, until the test's end."""
    folder = Path(cluster_command("tool", "prometheus-operator")) / "prometheus-operator-crd"
    kinds = ("podmonitors", "prometheusrules")
    made = [f"customresourcedefinition.apiextensions.k8s.io/{kind}.monitoring.coreos.com" for kind in kinds]
    files = [f"--filename={folder}/monitoring.coreos.com_{kind}.yaml" for kind in kinds]
    kubectl(kube, "apply", "--server-side", *files)
    kubectl(kube, "wait", "--for=condition=Established", "--timeout=30s", *made)
    yield
    kubectl(kube, "delete", *made)


def kubectl(kube: Kube, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Return the output of a kubectl command, which must succeed unless its input may be rejected."""
    place = ["--kubeconfig", kube.target.kubeconfig, "--context", kube.target.context]
    command = [cluster_command("tool", "kubectl"), *place, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert text or done.returncode == 0, done.stderr
    return done


def test_the_api_server_knows_every_object_of_the_chart(
    kube: Kube, helm_in: Helm, namespace: str, monitoring: None
) -> None:
    """The API server accepts every object of the chart with all options, by strict validation; those of the Prometheus
    operator by its CRDs.
    """
    parts = ("networkPolicy", "podDisruptionBudget", "metrics.dashboard", "metrics.rules")
    on = [f"{part}.enabled=true" for part in (*parts, "metrics.podMonitor", "metrics.jobsPodMonitor")]
    text = helm_in("template", RELEASE, str(CHART), "--kube-version", "1.34", *OPERATOR_IMAGE, "--set", ",".join(on))
    objects = [item for item in yaml.safe_load_all(text) if item]
    kinds = {"NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "ClusterRole", "PodMonitor", "PrometheusRule"}
    assert kinds <= {o["kind"] for o in objects}

    def refused(found: list[Object]) -> str:
        done = kubectl(
            kube, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=yaml.safe_dump_all(found)
        )
        return done.stderr if done.returncode else ""

    assert not refused(objects)
    for kind, typo, reported in (
        ("NetworkPolicy", {"ingres": []}, 'unknown field "spec.ingres"'),
        ("PodMonitor", {"podTargetLables": []}, 'unknown field "spec.podTargetLables"'),
        ("PrometheusRule", {"groups": [{"name": "g", "rules": [{"alert": "A"}]}]}, "expr"),
    ):
        one = next(o for o in objects if o["kind"] == kind)
        assert reported in refused([one | {"spec": {**one["spec"], **typo}}])


def allowed(kube: Kube, user: str, namespace: str) -> bool:
    """Whether a user may list jobs there."""
    wanted = {"namespace": namespace, "verb": "list", "group": "pstraining.dev", "resource": "pstrainingjobs"}
    body = {"spec": {"user": user, "resourceAttributes": wanted}}
    found = kube.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(found["status"]["allowed"])
