"""The documentation's blocks on a real cluster: commands for kubectl exactly as printed, and jobs.

A command that is in none of the tables below runs on a running job `digits`, and must end with status 0. The job serves
made-up metrics of training.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.docs.pages import ROOT, pages
from localcluster import faults
from tests.e2e.conftest import cluster_command
from tests.support.documented import PROMPT, REFUSED, documents, job_of, shell_lines
from tests.support.examples import Example
from tests.support.kube import CHILD_KINDS, Kube, Object, wait_for
from tests.support.scripted_program import METRICS
from tests.support.soak_marks import in_all, some

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

CLASSIC: Final = ROOT / "docs" / "users" / "plan-a-job.md"
REFERENCE: Final = ROOT / "docs" / "reference" / "cli.md"
"""The page that is generated from the commands' help; tests/unit/cli/test_exit_codes.py runs its examples."""
MOVE: Final = ROOT / "docs" / "users" / "move-from-tfjob.md"
JOB_NAME: Final = "pstraining.dev/job-name"

ELSEWHERE: Final = {
    "kubectl apply --server-side -f install.yaml": "tests/e2e/test_release.py",
    "kubectl apply -f examples/digits/job.yaml": "hack/demo/__main__.py",
    "kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute": "tests/e2e/test_nodes.py",
    "kubectl delete pstj --all --all-namespaces": "tests/e2e/test_upgrade.py",
    "kubectl patch pstj digits --type=merge -p "
    """'{"spec":{"ps":{"resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}}}'""": "tests/e2e/test_resize.py",
    """kubectl patch pstj digits --type=merge -p '{"spec":{"autoscaling":{"mode":"Recommend"}}}'""": (
        "tests/e2e/test_autoscaling.py"
    ),
    f"kubectl wait --for=delete pod -l {JOB_NAME} --all-namespaces --timeout=2m": "tests/e2e/test_upgrade.py",
    "kubectl delete crd pstrainingjobs.pstraining.dev": "tests/e2e/test_upgrade.py",
    **dict.fromkeys(
        (
            "kubectl cp history:/digits/summary.json digits/summary.json",
            "kubectl cp history:/digits/history digits/history",
            "kubectl pstraining status --from digits",
            "kubectl pstraining logs digits --from digits --role worker --index 0",
        ),
        "tests/e2e/test_training.py",
    ),
    "kubectl kustomize FOLDER | kubectl pstraining convert -f -": "tests/unit/cli/test_convert_others.py",
    "kubectl pstraining dashboard --from digits": "tests/unit/cli/test_history_folder.py",
    "kubectl pstraining validate -f jobs.yaml": "tests/unit/docs/test_docs_validate.py",
    "kubectl pstraining logs d<TAB>": "tests/unit/cli/test_completion.py",
}
"""Commands that other tests run."""
SAYS: Final = {
    "kubectl -n pstraining-system logs deployment/pstraining-operator --previous": (1, "previous terminated container"),
    "kubectl -n pstraining-system top pod": (1, "Metrics API not available"),
    "kubectl top pods -l pstraining.dev/job-name=digits": (1, "Metrics API not available"),
}
"""Commands with another exit status here, where no operator is lost and no metrics server runs, and their output."""
FOLLOWS: Final = ("kubectl pstraining logs digits -f",)
"""Commands that end with the job."""
SERVES: Final = ("kubectl pstraining dashboard", "kubectl pstraining dashboard digits")
"""Commands that serve a page until they are interrupted."""
CHANGES: Final = (
    "kubectl apply -f job.yaml",
    "kubectl pstraining plan -f job.yaml",
    "kubectl pstraining submit -f job.yaml --wait",
    "kubectl pstraining submit -f jobs.yaml --wait --timeout 600",
    "kubectl pstraining takeover digits --shard 0",
    "kubectl pstraining scale digits --workers 4 --wait",
    "kubectl scale pstj/digits --replicas=4",
    "kubectl pstraining suspend digits --wait",
    "kubectl pstraining resume digits --wait",
    """kubectl patch pstj digits --type=merge -p '{"spec":{"runPolicy":{"suspend":true}}}'""",
)
"""Commands that change jobs, or plan changes, in sequence."""
REMOVES: Final = (
    "kubectl delete statefulset,deployment,job,service,configmap,networkpolicy,poddisruptionbudget   --all-namespaces "
    f"-l {JOB_NAME}"
)
"""Commands that remove the leftovers of jobs; here, in one namespace."""
ENDS: Final = ("kubectl pstraining wait digits",)


def shown() -> dict[str, str]:
    """Return the commands for kubectl, each with its first place; the reference has those of the commands' help."""
    found: dict[str, str] = {}
    for path, page in pages().items():
        if path == REFERENCE:
            continue
        for place, line in shell_lines(page):
            match = PROMPT.match(line)
            command = re.sub(r"\s+#.*$", "", line[match.end() if match else 0 :]).strip()
            if command.startswith("kubectl "):
                found.setdefault(command, place)
    return found


STAND_IN: Final = f"""{METRICS}
import socket, sys
server = socket.create_server(("", 2222))
if os.environ["PSTRAINING_TASK_TYPE"] == "ps":
    time.sleep(86400)
time.sleep(float(sys.argv[1]))
"""
SHOWN: Final = shown()
READS: Final = [c for c in SHOWN if c not in {*ELSEWHERE, *FOLLOWS, *SERVES, *CHANGES, *ENDS, REMOVES}]
JOBS: Final = [
    (place, job)
    for place, first, document in documents()
    if (job := job_of(document)) and (place.partition(":")[0], first) not in REFUSED
]
SIMILAR: Final = (
    "kubectl pstraining convert -f tfjob.yaml > job.yaml",
    "kubectl pstraining logs digits --role chief",
    "kubectl pstraining logs digits --role chief --tail 100",
    "kubectl pstraining logs digits --role ps --tail 50",
    "kubectl pstraining logs digits --role worker --index 0 --previous",
    "kubectl pstraining logs digits --role worker --index 1 --previous",
    "kubectl pstraining logs digits --role worker --tail 100",
    "kubectl pstraining logs digits --tail 20",
    "kubectl pstraining plan -f classic.yaml",
    "kubectl pstraining plan -f classic.yaml --parameters 25.6M",
    "kubectl pstraining wait digits --for running",
)
"""Commands of the plugin that differ from another one by the value or the number of their options."""


class Scene:
    """A shell with kubectl and the plugin, in its own namespace."""

    def __init__(self, kube: Kube, namespace: str, folder: Path) -> None:
        self.kube, self.namespace, self.folder = kube, namespace, folder
        known = yaml.safe_load(Path(kube.target.kubeconfig).read_text())
        known["current-context"] = kube.target.context
        for entry in known["contexts"]:
            if entry["name"] == kube.target.context:
                entry["context"]["namespace"] = namespace
        (folder / "kubeconfig").write_text(yaml.safe_dump(known))
        path = [str(Path(sys.executable).parent), cluster_command("bin"), os.environ["PATH"]]
        environment = {
            **os.environ,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(ROOT / "operator"),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._how: dict[str, Any] = {"cwd": folder, "env": environment, **pipes}

    def write(self, name: str, *documents: Object) -> None:
        (self.folder / name).write_text(yaml.safe_dump_all(documents))

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(["bash", "-c", command], **self._how)

    def run(self, command: str, but: tuple[str, str] = ("", "")) -> None:
        """Run a command, with one of its words replaced if needed, and demand what the tables say."""
        ran = subprocess.run(["bash", "-c", command.replace(*but)], check=False, timeout=240, **self._how)
        reported = f"{SHOWN[command]}: {command}\n{ran.stdout}\n{ran.stderr}"
        status, said = SAYS.get(command, (0, ""))
        assert ran.returncode == status, reported
        assert said in ran.stderr, reported


@pytest.fixture(scope="module")
def scene(kube: Kube, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with kube.namespace("e2e") as namespace:
        yield Scene(kube, namespace, tmp_path_factory.mktemp("shell"))


def write_jobs(scene: Scene) -> None:
    """Write a job with a warm standby that runs until the test ends it, and a suspended job."""
    job = stand_in(86400)
    job["spec"]["ps"]["standby"] = {"mode": "Warm"}
    scene.write("job.yaml", job)
    other = {**job, "metadata": {"name": "other"}, "spec": {**job["spec"], "runPolicy": {"suspend": True}}}
    job["spec"]["runPolicy"] = {"suspend": False}
    scene.write("jobs.yaml", job, other)


@pytest.fixture(scope="module")
def running_jobs(scene: Scene) -> None:
    """Run the first of these jobs, whose workers have lost their first containers."""
    write_jobs(scene)
    (classic,) = (block.text for block in pages()[CLASSIC].blocks if block.language == "yaml")
    (scene.folder / "classic.yaml").write_text(classic)
    tfjob = next(block.text for block in pages()[MOVE].blocks if "kind: TFJob" in block.text)
    (scene.folder / "tfjob.yaml").write_text(tfjob)
    scene.run(CHANGES[0])
    workers = Example(scene.kube, scene.namespace, "digits", scene.folder)
    for index in (0, 1):
        # The kubelet may report the container later than it shows the log, and the fault finds it by the report.
        wait_for(lambda i=index: "begins in" in workers.log("worker", i), f"worker {index} runs", 180)  # type: ignore[misc]
        wait_for(lambda i=index: is_ready(workers, i), f"worker {index} is reported")  # type: ignore[misc]
        faults.kill_container(f"{scene.namespace}/{workers.pod('worker', index)}")
    for index in (0, 1):
        wait_for(lambda i=index: is_ready(workers, i, restarts=1), f"worker {index} runs again", 120)  # type: ignore[misc]
    wait_for_standby(scene)


@pytest.fixture(scope="module")
def ending_job(scene: Scene) -> None:
    """Run a job that succeeds soon."""
    delete(scene)
    job = stand_in(5)
    scene.kube.create({**job, "metadata": {"name": "digits", "namespace": scene.namespace}})


def wait_for_standby(scene: Scene) -> None:
    def is_prepared() -> bool:
        job = scene.kube.get("PSTrainingJob", scene.namespace, "digits") or {}
        return (job.get("status") or {}).get("standbySummary") == "1/1"

    wait_for(is_prepared, "its standby is ready", 300)


def stand_in(seconds: float) -> Object:
    """Return the example's job with a program without TensorFlow, whose chief succeeds after these seconds.

    No StorageClass of the tests' cluster can provision the example's claim.
    """
    job: Object = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    del job["spec"]["checkpoint"]
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", STAND_IN, str(seconds)]
    return job


def is_ready(example: Example, index: int, restarts: int = 0) -> bool:
    """Whether a worker's container is ready, after at least this number of restarts."""
    pod = example.kube.get("Pod", example.namespace, example.pod("worker", index)) or {}
    return any(c["restartCount"] >= restarts and c["ready"] for c in pod["status"].get("containerStatuses", ()))


def delete(scene: Scene) -> None:
    """Delete the job of that name; fixtures of a module would only do so at its end."""
    scene.kube.delete("PSTrainingJob", scene.namespace, "digits")
    wait_for(lambda: not scene.kube.list("Pod", scene.namespace), "the job's pods are gone", 120)


def children(scene: Scene) -> list[str]:
    """Return the objects of jobs, except claims, which may have to be kept."""
    kinds = [kind for kind in CHILD_KINDS if kind != "PersistentVolumeClaim"]
    return [kind for kind in kinds if scene.kube.list(kind, scene.namespace, JOB_NAME)]


@pytest.mark.usefixtures("running_jobs")
@pytest.mark.parametrize(
    "command",
    some(
        READS,
        lambda command: command not in SIMILAR,
        in_all("tests/unit/docs/test_docs_commands.py::test_documented_commands_exist"),  # similar to another one
    ),
)
def test_reads(scene: Scene, command: str) -> None:
    scene.run(command)


@pytest.mark.usefixtures("running_jobs")
@pytest.mark.parametrize("command", FOLLOWS)
def test_follows(scene: Scene, command: str) -> None:
    with scene.start(command) as process:
        assert process.stdout is not None
        reported: set[str] = set()
        for line in process.stdout:
            reported |= {task for task in ("worker-0", "worker-1", "chief") if task in line}
            if len(reported) == 3:
                break
        process.terminate()
    assert len(reported) == 3, "it ended before all tasks had a line"


@pytest.mark.usefixtures("running_jobs")
@pytest.mark.parametrize("command", SERVES)
def test_serves(scene: Scene, command: str) -> None:
    of_job = f"namespace={scene.namespace}&name=digits"
    with scene.start(command) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("Dashboard: ").strip().partition("#")[0]
        try:
            answers = {
                what: json.load(urllib.request.urlopen(f"{address}{what}?{of_job}", timeout=60))
                for what in ("jobs", "job", "curves")
            }
            chief = answers["job"]["roles"][0]["pods"][0]["pod"]
            log = json.load(urllib.request.urlopen(f"{address}log?{of_job}&pod={chief}", timeout=60))
        finally:
            process.terminate()
    assert [job["name"] for job in answers["jobs"]["jobs"]] == ["digits"]
    assert [role["role"] for role in answers["job"]["roles"]] == ["chief", "ps", "worker"]
    assert answers["curves"]["rates"]["job"]["step"] > 0
    assert answers["curves"]["points"]["loss"][0] > 0
    assert log["lines"]


@pytest.mark.usefixtures("running_jobs")
@pytest.mark.parametrize("command", CHANGES)
def test_changes(scene: Scene, command: str) -> None:
    write_jobs(scene)  # a reading command has written its conversion into one of these files
    if "takeover" in command:
        wait_for_standby(scene)  # on a busy machine a failover may have taken place
    scene.run(command)


@pytest.mark.usefixtures("ending_job")
@pytest.mark.parametrize("command", ENDS)
def test_ends(scene: Scene, command: str) -> None:
    scene.run(command)


def test_removes(scene: Scene) -> None:
    """The documented commands remove objects whose job was deleted without them."""
    delete(scene)
    scene.kube.create({**stand_in(600), "metadata": {"name": "digits", "namespace": scene.namespace}})
    wait_for(lambda: len(scene.kube.list("Pod", scene.namespace)) == 4, "it has its pods")
    path = scene.kube.path("PSTrainingJob", scene.namespace, "digits")
    scene.kube.request("DELETE", path, {"propagationPolicy": "Orphan"})
    wait_for(lambda: scene.kube.get("PSTrainingJob", scene.namespace, "digits") is None, "it is deleted")
    assert scene.kube.list("StatefulSet", scene.namespace, JOB_NAME)
    scene.run(REMOVES, ("--all-namespaces", f"--namespace={scene.namespace}"))
    wait_for(lambda: not children(scene), "nothing of it is left")


@pytest.mark.parametrize(("place", "job"), JOBS)
def test_the_api_server_accepts_the_jobs(kube: Kube, place: str, job: Object) -> None:
    path = kube.path("PSTrainingJob", "default")
    stored = kube.request("POST", f"{path}?dryRun=All&fieldValidation=Strict", {**job, "metadata": {"name": "shown"}})
    assert stored["spec"], place


def test_every_entry_of_the_tables_is_in_a_page() -> None:
    assert {*ELSEWHERE, *SAYS, *FOLLOWS, *CHANGES, *ENDS, *SIMILAR, REMOVES} <= {*SHOWN}
    assert all((ROOT / place).exists() for place in ELSEWHERE.values())
