"""Fixtures of the end-to-end tests: a real cluster, the operator as the chart installs it, and a namespace per test.

The cluster is the one that PSTRAINING_CONTEXT and KUBECONFIG name, or else that of localcluster, which must be up:
`python3 -m localcluster up`.

Several tests run at a time (hack/layers.py): first those with their own operator, then those that share the operator of
the chart. Tests marked `trains` keep the cores busy with TensorFlow, so at most two run at a time. Tests marked `alone`
cut nodes, replace the operator or measure the whole cluster; they come last, one by one. In each part, tests marked
`minutes` start first: a long test that starts late runs without others beside it.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
import yaml
from kubernetes import config

from localcluster import faults
from localcluster.images import image_repository
from tests.support.kube import Kube, Object, Target, named_target, wait_for
from tests.support.kueue_queues import History, Queue
from tests.support.nodes import ready
from tests.support.operator_process import OperatorProcess

ROOT = Path(__file__).parents[2]
RELEASE, RELEASE_NAMESPACE = "pstraining", "pstraining-system"
OPERATOR_IMAGE = ("--set", f"image.repository={image_repository('operator')}")
"""The chart's option for the operator image on the nodes."""
ALONE = {"healed", "fake_nodes", "kueue"}
"""Fixtures that change the whole cluster. Gangs have their own scheduler and fake nodes, which no other test of their
part uses.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by the fixtures that they use: see the parts of the layer in hack/layers.py. Order those of a part."""
    for item in items:
        needs = set(getattr(item, "fixturenames", ()))
        if "installed" in needs:
            item.add_marker("installed")
        if needs & ALONE:
            item.add_marker("alone")
    yield
    long = {item for item in items if item.get_closest_marker("minutes")}
    if any(item.get_closest_marker("installed") for item in items):  # they are distributed by file
        files = {item.path for item in long}
        items.sort(key=lambda item: item.path not in files)
    else:  # each process begins with an equal share of the sequence; the last ones get one more if it does not divide
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        items.sort(key=lambda item: item not in long)
        shares = sorted((items[number::processes] for number in range(processes)), key=len)
        items[:] = [item for share in shares for item in share]


def cluster_command(*arguments: str) -> str:
    """Return the output of a command of localcluster."""
    command = [sys.executable, "-m", "localcluster", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def target() -> Target:
    named = named_target()
    return named or Target(cluster_command("kubeconfig"), "pstraining-local")


@pytest.fixture(scope="session")
def kube(target: Target) -> Kube:
    found = Kube(target)
    found.list("Node")
    return found


@pytest.fixture(scope="session", autouse=True)
def began() -> datetime:
    """Return the start of the tests; for a layer with several parts, the start of the first part."""
    reported = os.environ.get("PSTRAINING_LAYER_BEGAN")
    return datetime.fromisoformat(reported) if reported else datetime.now(UTC)


@pytest.fixture(scope="session")
def helm() -> str:
    return cluster_command("tool", "helm")


@contextmanager
def counted(folder: Path) -> Iterator[Path]:
    """Open a file that holds a number, while no other process reads or writes it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / "installed"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="module")
def installed(kube: Kube, helm: str, run_folder: Path) -> Iterator[str]:
    """Install the operator by its chart; return its namespace.

    Processes share it: the first one that needs it installs it, and the last one removes it, because other tests run
    their own operator.
    """
    with counted(run_folder) as users:
        before = int(users.read_text()) if users.exists() else 0
        if before == 0:
            install(kube, helm)
        users.write_text(str(before + 1))
    yield RELEASE_NAMESPACE
    statuses = [p["status"].get("containerStatuses", ()) for p in kube.list("Pod", RELEASE_NAMESPACE)]
    with counted(run_folder) as users:
        left = int(users.read_text()) - 1
        users.write_text(str(left))
        if left == 0 and not os.environ.get("PSTRAINING_KEEP"):
            uninstall(kube, helm)
    restarts = [status["restartCount"] for found in statuses for status in found]
    assert not any(restarts), "the kubelet found the operator ill, or it ended by itself"


def install(kube: Kube, helm: str, *more: str) -> None:
    # Other tests apply the CRD by hand, as a user of the plain manifest would, so the chart adopts it.
    options = ["--create-namespace", "--wait", "--timeout", "120s", "--take-ownership", *OPERATOR_IMAGE]
    run_helm(kube, [helm, "upgrade", "--install", RELEASE, str(ROOT / "charts" / "pstraining"), *options, *more])


def uninstall(kube: Kube, helm: str) -> None:
    run_helm(kube, [helm, "uninstall", RELEASE, "--wait"])


def run_helm(kube: Kube, command: list[str]) -> None:
    environment = {**os.environ, "KUBECONFIG": kube.target.kubeconfig}
    where = ["-n", RELEASE_NAMESPACE, "--kube-context", kube.target.context]
    subprocess.run([*command, *where], check=True, env=environment, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def kueue() -> Iterator[None]:
    """Run the real Kueue, which handles all pods of the cluster."""
    cluster_command("kueue", "up")
    yield
    cluster_command("kueue", "down")


@pytest.fixture
def queue(kube: Kube, namespace: str, kueue: None, own_operator: OperatorProcess) -> Iterator[Queue]:
    """Return a queue without quota, with an operator that uses Kueue."""
    own_operator.start(settings={"PSTRAINING_KUEUE": "true"})
    made = Queue(kube, namespace, pods=0)
    history = History(kube, namespace)
    yield made
    assert history.check() > 0
    for job in kube.list("PSTrainingJob", namespace):
        kube.delete("PSTrainingJob", namespace, job["metadata"]["name"])
    wait_for(lambda: not kube.list("Pod", namespace), "the pods are gone", 90)
    made.remove()


@pytest.fixture(scope="module")
def fake_nodes() -> Iterator[int]:
    """Create fake nodes in three zones, for pods that tolerate and select them; return their number."""
    number = 6
    cluster_command("kwok", "up", "--nodes", str(number))
    yield number
    cluster_command("kwok", "down")


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    with kube.namespace("e2e") as name:
        yield name


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to which pods on every node may write."""
    return shared_folder(tmp_path_factory)


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create such a folder."""
    folder = tmp_path_factory.mktemp("shared")
    for part in (folder, *folder.parents):
        if part == Path(part.anchor) or not os.access(part, os.W_OK):
            break
        # pytest's folders are private, and pods run as another user.
        part.chmod(part.stat().st_mode | 0o711)
    folder.chmod(0o777)
    return folder


@pytest.fixture
def crd(kube: Kube) -> None:
    """Apply the CRD as a user would."""
    apply_crd(kube)


def apply_crd(kube: Kube) -> None:
    """Apply the CRD unless it exists: for each write, the API server compiles all of its rules."""
    definition = crd_definition()
    name = definition["metadata"]["name"]

    def is_served() -> bool:
        found = kube.get("CustomResourceDefinition", "", name) or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        is_established = any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
        return is_established and bool(found["spec"]["versions"] == definition["spec"]["versions"])

    if is_served():
        return
    path = kube.path("CustomResourceDefinition", "", name)
    kube.request("PATCH", f"{path}?fieldManager=tests&force=true", definition, "application/apply-patch+yaml")
    wait_for(is_served, "the CRD is established")


@cache
def crd_definition() -> Object:
    """Return the CRD as a user would apply it."""
    definition: Object = yaml.safe_load((ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml").read_text())
    return definition


def is_known(target: Target) -> bool:
    """Whether the kubeconfig has the context."""
    contexts, _ = config.list_kube_config_contexts(target.kubeconfig)  # type: ignore[no-untyped-call]
    return target.context in [context["name"] for context in contexts]


@pytest.fixture
def own_operator(kube: Kube, namespace: str, crd: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Return an operator for this test's namespace only, run from this checkout on this machine, and not started
    yet.
    """
    others = kube.list("Deployment", RELEASE_NAMESPACE)
    assert not others, "another operator is installed and would act on the same jobs: helm uninstall it"
    own = Target(kube.target.kubeconfig, f"{kube.target.context}-operator")
    process = OperatorProcess(own if is_known(own) else kube.target, namespace, tmp_path)
    yield process
    process.stop()


@pytest.fixture
def healed(kube: Kube) -> Iterator[None]:
    """Reconnect all nodes after the test."""
    yield
    for node in kube.list("Node"):
        name = node["metadata"]["name"]
        faults.restore(name)
        kube.merge("Node", "", name, {"spec": {"taints": None}})
    names = [n["metadata"]["name"] for n in kube.list("Node")]
    wait_for(lambda: all(ready(kube, n)["status"] == "True" for n in names), "all nodes are ready again", 120)
