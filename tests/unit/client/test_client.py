"""The client on a cluster in memory: the objects that it creates, and its handling of the cluster's answers."""

import itertools
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pstraining import Client
from pstraining.cli.errors import AbsentError, ConflictError, RequestError
from pstraining.cli.logs import following
from pstraining.client import cluster
from pstraining.client.client import Job, LogLine
from pstraining.client.cluster import ClusterBackend
from pstraining.client.errors import ClientError, JobFailedError
from tests.support.builders import pod, terminated
from tests.support.cli_cluster import WithJobs

Object = dict[str, Any]
FRESH = {"generation": 1, "resourceVersion": "1"}


def program(steps: int = 1) -> None:
    print(steps)


class Cluster(WithJobs):
    """Stores the created objects, and has logs by pod name."""

    def __init__(self) -> None:
        super().__init__()
        self.config_maps: list[Object] = []
        self.refuses_config_maps: RequestError | None = None
        self.logs: dict[str, Iterable[str]] = {}
        self.patches: list[Object] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens before the next write."""

    def create(self, api: str, plural: str, body: Object) -> Object:
        if plural == "configmaps":
            self.pass_time()
            if self.refuses_config_maps:
                raise self.refuses_config_maps
            self.config_maps.append(body)
            return body
        assert (api, plural) == ("/apis/pstraining.dev/v1alpha1", "pstrainingjobs")
        if self.job(body["metadata"]["namespace"], body["metadata"]["name"]):
            raise ConflictError("it exists", 409)
        stored = {**body, "metadata": {**body["metadata"], "uid": f"uid-{len(self.there)}", **FRESH}}
        self.there.append(stored)
        return stored

    def pass_time(self) -> None:
        happens, self.meanwhile = self.meanwhile, lambda: None
        happens()

    def changed(self, namespace: str, name: str) -> Object:
        """Return the metadata of a job before a write."""
        self.pass_time()
        if (found := self.job(namespace, name)) is None:
            raise AbsentError(f'"{name}" not found.', 404)
        metadata: Object = found["metadata"]
        return metadata

    def delete(self, namespace: str, name: str, uid: str) -> None:
        if self.changed(namespace, name)["uid"] != uid:
            raise ConflictError("Precondition failed: UID in precondition", 409)
        self.there = [j for j in self.there if j["metadata"]["name"] != name]

    def patch(self, namespace: str, name: str, change: Object) -> Object:
        if self.changed(namespace, name)["uid"] != change["metadata"]["uid"]:
            raise RequestError("metadata.uid: Invalid value: field is immutable", 422)
        self.patches.append({"spec": change["spec"]})
        return {}

    def scale(self, namespace: str, name: str, workers: int, version: str = "") -> None:
        if self.changed(namespace, name)["resourceVersion"] != version:
            raise ConflictError("the object has been modified", 409)
        self.patches.append({"workers": workers})

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        run = f"{pod}.previous" if query.get("previous") == "true" else pod
        if run not in self.logs:
            raise RequestError("not found", 404)
        yield from self.logs[run]


class Rig:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.client = Client.__new__(Client)
        self.rests: list[float] = []
        self.client._backend = ClusterBackend(self.cluster, "team", self.rest)
        self.steps: list[Any] = []

    def rest(self, seconds: float) -> None:
        """Advance the time, and apply the next event."""
        self.rests.append(seconds)
        self.steps.pop(0)()

    def train(self, **options: Any) -> Job:
        return self.client.train(program, **{"name": "digits", "image": "img:1", **options})

    @property
    def spec(self) -> Object:
        (job,) = self.cluster.there
        spec: Object = job["spec"]
        return spec

    @property
    def container(self) -> Object:
        container: Object = self.spec["worker"]["template"]["spec"]["containers"][0]
        return container

    def status(self, **status: Any) -> None:
        self.cluster.there[0]["status"] = {"observedGeneration": 1, **status}


def ended(kind: str, message: str = "") -> Object:
    condition = {"type": kind, "status": "True", "reason": "R", "message": message}
    return {"phase": kind, "conditions": [condition]}


def test_train_creates_the_job_and_its_program() -> None:
    rig = Rig()
    job = rig.train(ps=2, workers=8, arguments={"steps": 3}, training={"mode": "Sync"}, env={"SEED": 7})
    assert job == Job("digits", "team", "uid-0", "Unknown", "")
    assert (rig.spec["ps"]["replicas"], rig.spec["worker"]["replicas"]) == (2, 8)
    assert rig.spec["training"] == {"mode": "Sync"}
    assert rig.container["command"] == ["python", "/opt/program/program.py"]
    assert rig.container["env"] == [{"name": "SEED", "value": "7"}]
    (files,) = rig.cluster.config_maps
    assert files["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert files["immutable"] is True
    assert files["data"]["program.py"].endswith("program(steps=3)\n")
    (volume,) = rig.spec["worker"]["template"]["spec"]["volumes"]
    assert volume["configMap"] == {"name": files["metadata"]["name"]}


def as_the_kubelet(text: str) -> str:
    """Return what a container gets: $$ is an escaped $, and references to unknown variables stay."""
    return text.replace("$$", "$")


@pytest.mark.parametrize("text", ["pa$$word", "$", "$$$", "a$b$$c", "$(JOB)", "x$$"])
def test_dollars_reach_the_program_as_with_a_local_job(text: str, tmp_path: Path) -> None:
    rig, script = Rig(), tmp_path / "script.py"
    script.write_text("pass")
    rig.client.train(script, name="digits", image="img:1", arguments=[text], env={"SECRET": text}, packages=[text])
    (install,) = rig.spec["worker"]["template"]["spec"]["initContainers"]
    given = [rig.container["command"][-1], rig.container["env"][0]["value"], install["command"][-1]]
    assert list(map(as_the_kubelet, given)) == [text] * 3


def test_packages_are_installed_before_the_program() -> None:
    rig = Rig()
    rig.train(packages=["pandas<3", "lz4"], env={"PYTHONPATH": "/mine"})
    (install,) = rig.spec["worker"]["template"]["spec"]["initContainers"]
    assert install["command"][-2:] == ["pandas<3", "lz4"]
    assert install["image"] == "img:1"
    assert {"name": "PYTHONPATH", "value": "/mine:/opt/packages"} in rig.container["env"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (
            {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1},
            {
                "requests": {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1},
                "limits": {"memory": "4Gi", "nvidia.com/gpu": 1},
            },
        ),
        ({"cpu": 0.5}, {"requests": {"cpu": "0.5"}, "limits": {}}),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1Gi"}}),
    ],
)
def test_resources(resources: Object, expected: Object) -> None:
    rig = Rig()
    rig.train(resources=resources)
    assert rig.container["resources"] == expected


def test_what_validate_warns_of_is_a_warning_of_the_call() -> None:
    rig = Rig()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rig.client.train(program, name="digits", image="img:1", resources={"cpu": 2, "memory": "4Gi"})
    assert [(Path(one.filename).name, str(one.message).partition(" is ")[0]) for one in caught] == [
        (Path(__file__).name, "The job digits: spec.checkpoint:")
    ]


def test_a_checkpoint_is_set_by_size_and_all_else_by_the_spec() -> None:
    rig = Rig()
    rig.train(checkpoint="10Gi", spec={"worker": {"minReplicas": 1}, "checkpoint": {"keep": 2}})
    assert rig.spec["worker"]["minReplicas"] == 1
    assert rig.spec["worker"]["replicas"] == 1
    assert rig.spec["checkpoint"]["keep"] == 2
    claim = rig.spec["checkpoint"]["volumeClaimTemplate"]
    assert claim["resources"]["requests"]["storage"] == "10Gi"


def test_a_checkpoint_is_set_by_a_uri() -> None:
    rig = Rig()
    rig.train(checkpoint="s3://bucket/digits")
    assert rig.spec["checkpoint"] == {"uri": "s3://bucket/digits"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": ""}, "image: name the image"),
        ({"worker": 3}, "train has no option worker; its options are ps, workers, image"),
        ({"workers": 0}, "spec.worker.replicas"),
        ({"training": {"mode": "sync"}}, "spec.training.mode"),
        ({"spec": {"runPolicy": {"backoffLimit": -1}}}, "spec.runPolicy.backoffLimit"),
    ],
)
def test_a_job_that_the_cluster_would_reject_is_rejected_first(options: Object, words: str) -> None:
    rig = Rig()
    with pytest.raises(ClientError, match=words):
        rig.train(**options)
    assert rig.cluster.there == []


def test_a_file_whose_name_a_configmap_cannot_have_is_rejected_first(tmp_path: Path) -> None:
    rig, names = Rig(), ["mein modell.py", "größe.py", "..x", "a-b_C.1.py", ".hidden"]
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(ClientError, match=r"^mein modell.py, größe.py, ..x: on a cluster, .*: choose another name"):
        rig.train(files=[tmp_path / name for name in names])
    assert rig.cluster.there == []
    rig.train(files=[tmp_path / name for name in names[-2:]])


def test_an_existing_name_is_rejected() -> None:
    rig = Rig()
    rig.train()
    with pytest.raises(ClientError, match="The job digits in team already exists"):
        rig.train()


def test_a_job_without_its_program_is_not_created() -> None:
    rig = Rig()
    rig.cluster.refuses_config_maps = RequestError("quota", 403)
    with pytest.raises(ClientError, match="quota"):
        rig.train()
    assert rig.cluster.there == []


def test_the_program_of_a_deleted_job_may_exist_for_a_moment() -> None:
    rig = Rig()
    rig.cluster.refuses_config_maps = ConflictError("it exists", 409)
    with pytest.raises(ClientError, match=r"The ConfigMap digits-program exists.*: try again, or choose another"):
        rig.train()
    assert rig.cluster.there == []


def test_wait_returns_the_succeeded_job() -> None:
    rig = Rig()
    job = rig.train()
    rig.steps = [lambda: rig.status(phase="Running"), lambda: rig.status(**ended("Succeeded"))]
    assert rig.client.wait(job).phase == "Succeeded"
    assert len(rig.rests) == 2


AS_IT_ENDED = {"state": terminated(1), "phase": "Failed"}


RESTARTED = {"last": terminated(1), "restarts": 1}
PRINTED = ["Traceback (most recent call last):", "ValueError: no such thing"]
IDLE = ["pstraining-launcher: the job has ended; it does not run again in this pod, which idles until it is removed"]


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        pytest.param(AS_IT_ENDED, [PRINTED], id="as it ended"),
        pytest.param(RESTARTED, [IDLE, PRINTED], id="restarted since"),
        pytest.param(AS_IT_ENDED, [IDLE, PRINTED], id="restarted, which the status does not show yet"),
        pytest.param(AS_IT_ENDED, [[], PRINTED], id="just restarted, with an empty log"),
        pytest.param(AS_IT_ENDED, [None, PRINTED], id="being restarted, without a log"),
    ],
)
def test_wait_raises_the_failed_tasks_output(status: dict[str, Any], runs: list[list[str] | None]) -> None:
    rig = Rig()
    rig.train()
    failed = pod("worker", 1, job_uid="uid-0", **status)
    failed["metadata"]["namespace"] = "team"
    rig.cluster.there_pods = [failed]
    names = ("digits-worker-1", "digits-worker-1.previous")
    rig.cluster.logs = {name: run for name, run in zip(names, runs, strict=False) if run is not None}
    lost = {"lastFailure": {"pod": "digits-worker-1"}}
    rig.status(**ended("Failed", "worker 1 failed 7 times"), worker=lost, failedReplica="worker/1")
    with pytest.raises(JobFailedError, match="digits has failed: worker 1 failed 7 times") as raised:
        rig.client.wait("digits")
    expected = "worker-1: Traceback (most recent call last):\nworker-1: ValueError: no such thing"
    assert raised.value.log == expected
    assert str(raised.value).endswith("ValueError: no such thing")


def test_wait_ends_when_the_job_is_deleted_or_at_the_timeout() -> None:
    rig = Rig()
    job = rig.train()
    rig.steps = [lambda: rig.client.delete(job)]
    with pytest.raises(ClientError, match="was deleted in the meantime"):
        rig.client.wait(job)
    rig.train()
    with pytest.raises(TimeoutError, match="digits has not ended after 0 s: Unknown"):
        rig.client.wait("digits", timeout=0)


def test_progress() -> None:
    rig = Rig()
    job = rig.train()
    assert rig.client.progress(job) is None
    metrics = [{"name": "accuracy", "value": "0.9"}, {"name": "note", "value": "words"}]
    rig.status(training={"step": 5, "steps": 10, "progressPercentage": 50, "loss": "0.25", "metrics": metrics})
    progress = rig.client.progress(job)
    assert progress is not None
    assert (progress.step, progress.steps, progress.percentage, progress.loss) == (5, 10, 50, 0.25)
    assert progress.metrics == {"accuracy": 0.9}
    rig.status(training={"step": 5, "loss": "n/a", "samplesPerSecond": "12/s"})
    progress = rig.client.progress(job)
    assert progress is not None
    assert (progress.step, progress.loss, progress.samples_per_second) == (5, None, None)


def test_scale_suspend_resume_and_list() -> None:
    rig = Rig()
    job = rig.train(workers=2)
    rig.client.scale(job, 3)
    rig.client.suspend(job)
    rig.client.resume("digits")
    suspended = [{"spec": {"runPolicy": {"suspend": wanted}}} for wanted in (True, False)]
    assert rig.cluster.patches == [{"workers": 3}, *suspended]
    assert [found.name for found in rig.client.list()] == ["digits"]
    with pytest.raises(ClientError, match=r"cannot have -1 workers: .*spec.worker.replicas"):
        rig.client.scale(job, -1)
    rig.status(**ended("Succeeded"))
    with pytest.raises(ClientError, match="digits has ended"):
        rig.client.scale(job, 4)
    with pytest.raises(ClientError, match="digits has ended"):
        rig.client.suspend(job)


def test_logs_are_lines_with_their_task() -> None:
    rig = Rig()
    job = rig.train()
    rig.cluster.there_pods = [pod(role, term=int(role == "chief"), job_uid="uid-0") for role in ("chief", "worker")]
    rig.cluster.logs = {"digits-chief-1": ["step 1"], "digits-worker-0": ["a", "b"]}
    lines = list(rig.client.logs(job, follow=False))
    assert lines == [LogLine("chief-0", "step 1"), LogLine("worker-0", "a"), LogLine("worker-0", "b")]
    assert str(lines[0]) == "chief-0: step 1"
    rig.status(**ended("Succeeded"))
    assert sorted(rig.client.logs(job, role="worker")) == lines[1:]
    with pytest.raises(ClientError, match="role: 'master' is not one of chief, ps, worker, evaluator"):
        rig.client.logs(job, role="master")


def test_a_reader_that_stops_ends_the_follower() -> None:
    rig = Rig()
    job = rig.train()
    rig.cluster.there_pods = [pod("chief", term=1, job_uid="uid-0")]
    printed: list[int] = []

    def endless() -> Iterator[str]:
        for number in itertools.count():
            printed.append(number)
            yield str(number)

    rig.cluster.logs = {"digits-chief-1": endless()}
    before = threading.active_count()
    reader = rig.client.logs(job)
    assert next(reader).text == "0"
    while len(printed) <= following.ROOM + cluster.ROOM:
        time.sleep(0.01)  # both queues fill
    reader.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_an_absent_job_is_named() -> None:
    rig = Rig()
    rig.train()
    with pytest.raises(ClientError, match=r"There is no PSTrainingJob digit in namespace team. Did you mean digits\?"):
        rig.client.get("digit")


def test_without_a_kubeconfig_there_is_no_client(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="absent"):
        Client(kubeconfig=str(tmp_path / "absent"))
