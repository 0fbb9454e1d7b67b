"""The plugin in a pod without a kubeconfig, as in a CI runner, uses the service account and its namespace."""

import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pstraining import __version__
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.pod_security import CONTAINER_SECURITY
from tests.support.scripted_program import manifest, share
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.cluster

ACCOUNT, POD, SITE = "ci", "in-a-pod", "/site"


@pytest.mark.parametrize("right", [True, False], ids=["may read jobs", "may read nothing"])
@in_all("tests/unit/cli/test_as_kubectl.py::test_a_row")  # every row in a simulated pod
def test_the_plugin_reads_the_jobs_of_the_pods_namespace(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, right: bool
) -> None:
    own_operator.start()
    kube.create(manifest(namespace, "held", runPolicy={"suspend": True}))
    site = shared / f"{namespace}-site"
    copy_packages("pstraining[cli]", site)
    share(kube, namespace, "site", site)
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace}})
    if right:
        allow_reading(kube, namespace)
    kube.create(pod(namespace))
    phase = wait_for(lambda: ended(kube, namespace), "the command ends", 120)
    said = kube.log(namespace, POD)
    if right:
        assert phase == "Succeeded", said
        assert "held" in said
    else:
        assert phase == "Failed"
        assert f"system:serviceaccount:{namespace}:{ACCOUNT}" in said, "the account without the right is named"


def ended(kube: Kube, namespace: str) -> str:
    """Return the pod's phase if it has ended, else nothing."""
    phase = str((kube.get("Pod", namespace, POD) or {}).get("status", {}).get("phase", ""))
    return phase if phase in ("Succeeded", "Failed") else ""


def allow_reading(kube: Kube, namespace: str) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["pstraining.dev"], "resources": ["pstrainingjobs"], "verbs": ["get", "list", "watch"]}
    metadata = {"name": ACCOUNT, "namespace": namespace}
    kube.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata}
    kube.create(binding | {"roleRef": role, "subjects": [subject]})


def pod(namespace: str) -> Object:
    """Return a pod with the plugin, which no image of the project has."""
    container = {
        "name": "cli",
        "image": f"pstraining/operator:{__version__}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["kubectl-pstraining", "status"],
        "env": [{"name": "PYTHONPATH", "value": SITE}],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "site", "mountPath": SITE, "readOnly": True}],
    }
    spec = {
        "serviceAccountName": ACCOUNT,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "site", "persistentVolumeClaim": {"claimName": "site"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": namespace}, "spec": spec}


def copy_packages(requirement: str, folder: Path) -> None:
    """Copy a package and its dependencies from this environment, as `pip install --target` would install them."""
    folder.mkdir(parents=True)
    wanted, known = [Requirement(requirement)], set[str]()
    while wanted:
        one = wanted.pop()
        found = distribution(one.name)
        for text in found.requires or ():
            further = Requirement(text)
            extras = [{"extra": extra} for extra in (*one.extras, "")]
            if further.name not in known and (further.marker is None or any(map(further.marker.evaluate, extras))):
                wanted.append(further)
        if one.name not in known and one.name != "pstraining":  # the image has that package
            _copy(found.name, folder)
        known.add(one.name)


def _copy(name: str, folder: Path) -> None:
    found = distribution(name)
    for file in found.files or ():
        source, target = Path(str(found.locate_file(file))), folder / file
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
