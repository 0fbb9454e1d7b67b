"""The launcher with real TensorFlow: the builtin PS serves every kind of client, and jobs survive the loss of a PS."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pstraining.launcher import contract, serve
from tests.processes.pods import Pod, closing, eventually, get, is_constant
from tests.support.ports import free_neighbours
from tests.support.soak_marks import ALL, in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
SECONDS = 200.0
"""Seconds within which a busy machine starts a program that imports TensorFlow."""
# A client without a coordinator: it has its own cluster map, and its state by name on the PS, and counts upwards on
# request.
SELF_DRIVEN = """
import json, os, sys
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
spec = tf.train.ClusterSpec({"chief": {0: config["cluster"]["chief"][0]}, "ps": config["cluster"]["ps"]})
tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=0, protocol="grpc")
@tf.function
def step():
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="n", container="psj")
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=1.0)
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
        return tf.identity(value)
@tf.function
def begin():
    with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="n", container="psj")
        tf.raw_ops.AssignVariableOp(resource=handle, value=0.0)
    with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
        return tf.constant(0)
begin().numpy()
for _ in range(3):
    value = step().numpy()
print("counted", value, flush=True)
if "stay" in sys.argv:
    while not os.path.exists("stop"):
        step().numpy()
    if "bug" in sys.argv:
        raise SystemExit("a bug of its own")
print("finished", flush=True)
"""
# The pattern of TensorFlow's guides: one script for all tasks, ParameterServerStrategy on the chief.
STRATEGY = """
import os
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc").join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0)
@tf.function
def step():
    return strategy.run(lambda: count.assign_add(1))
done = 0
while done == 0 or not os.path.exists("stop"):
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    done += 20
    if done == 20:
        print("steps", flush=True)
print("finished", done, int(count.numpy()), flush=True)
"""
BETWEEN_GRAPH = """
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_eager_execution()
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc")
place = v1.train.replica_device_setter(worker_device="/job:chief/task:0", cluster=resolver.cluster_spec())
with v1.device(place):
    step = v1.train.get_or_create_global_step()
    weights = v1.get_variable("w", [8, 4], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean((weights - tf.random.normal([8, 4])) ** 2)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=True) as session:
    for _ in range(20):
        _, now = session.run([train, step])
print("finished", now, flush=True)
"""


class Cluster:
    """A chief, workers and builtin PSs of one job on this machine."""

    def __init__(self, folder: Path, stack: ExitStack, workers: int = 0) -> None:
        self.folder, self.stack = folder, stack
        self.map = {
            kind: [f"127.0.0.1:{free_neighbours()}" for _ in range(count)]
            for kind, count in (("chief", 1), ("worker", workers), ("ps", 1))
            if count
        }
        self.ps = self.pod("ps", PSTRAINING_SERVER="Builtin", CRASH_SECONDS=0)
        self.ps.start()
        self.status_port = contract.host_and_port(self.map["ps"][0])[1] + 1

    def pod(self, kind: str, index: int = 0, **settings: Any) -> Pod:
        env = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        env.update({name: value for name, value in settings.items() if not is_constant(name)})
        pod = Pod(self.folder / f"{kind}-{index}", kind, self.map, index, **env)
        pod.constants.update({name: value for name, value in settings.items() if is_constant(name)})
        self.stack.enter_context(closing(pod))
        return pod

    def run(self, kind: str, program: str, *args: str, index: int = 0, **settings: Any) -> Pod:
        return self.pod(kind, index, **settings).start(sys.executable, "-W", "ignore", "-c", program, *args)

    def status(self) -> dict[str, Any]:
        return get(self.status_port, "/v1/status")[1]

    def serving(self) -> dict[str, Any]:
        """Wait until the PS serves, and return its status."""
        return eventually(lambda: status if (status := self.status()).get("state") == "Serving" else {}, 60)

    def server(self) -> int:
        """Return the process of the PS's server."""
        (server,) = Path(f"/proc/{self.ps.pid}/task/{self.ps.pid}/children").read_text().split()
        return int(server)

    def kill_server(self) -> None:
        """Kill the PS's server, and wait until another one serves."""
        before = self.serving()["bootId"]
        os.kill(self.server(), signal.SIGKILL)
        eventually(lambda: (now := self.status()).get("state") == "Serving" and now["bootId"] != before, 60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as stack:
        yield lambda **settings: Cluster(tmp_path, stack, **settings)


def reported(pod: Pod, word: str) -> None:
    """Wait until the program reports this word."""
    eventually(lambda: word in pod.log() or not pod.runs(), SECONDS)
    assert word in pod.log(), pod.log()


def test_server_def_is_what_tensorflow_writes() -> None:
    import tensorflow as tf

    cluster = {"chief": ["a:2222"], "ps": ["x:2222", "y:2222"], "worker": [f"w-{index}:2222" for index in range(300)]}
    wanted = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(cluster).as_cluster_def(),
        job_name="ps",
        task_index=1,
        protocol="grpc",
        port=2222,
    )
    wanted.default_session_config.experimental.disable_thread_spinning = True
    wanted.default_session_config.device_count["GPU"] = 0
    assert tf.train.ServerDef.FromString(serve.server_def(cluster, "ps", 1)) == wanted


def test_a_killed_builtin_server_is_replaced_without_importing_tensorflow(cluster: Callable[..., Cluster]) -> None:
    """The launcher replaces a killed server quickly: TensorFlow's library loads in a fraction of a second, its Python
    package in several seconds.
    """
    job = cluster()
    for number in range(4 if ALL else 2):
        if number:
            job.kill_server()
        assert job.serving()["restarts"] == number
        mapped = Path(f"/proc/{job.server()}/maps").read_text()
        assert "/libtensorflow_cc.so.2" in mapped
        assert "_pywrap_tensorflow" not in mapped


@in_all("tests/e2e/test_training.py::test_plain_tensorflow_survives_a_lost_ps")
def test_builtin_serves_a_self_driven_client_which_survives_its_loss_in_place(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    job.serving()
    chief = job.run("chief", SELF_DRIVEN, "stay", PS_LOSS_GRACE_SECONDS=600)
    reported(chief, "counted 3.0")
    job.kill_server()
    reported(chief, "was lost; it runs again")
    eventually(lambda: chief.log().count("counted 3.0") == 2, SECONDS)  # a new server: the count restarted
    (chief.folder / "stop").touch()
    assert chief.wait() == 0
    assert set(os.listdir(chief.run_dir)) == {"layout", "succeeded"}


@in_all(
    "tests/processes/test_launcher_program.py::test_the_programs_exit_code_is_kept_without_a_message"
)  # TensorFlow's
def test_a_program_with_a_bug_is_not_restarted(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    job.serving()
    chief = job.run("chief", SELF_DRIVEN, "stay", "bug", PS_LOSS_GRACE_SECONDS=600)
    reported(chief, "counted 3.0")
    (chief.folder / "stop").touch()
    assert chief.wait() == 1
    assert chief.log().count("counted") == 1
    assert chief.log().splitlines()[-1] == "a bug of its own"


@in_all("tests/e2e/test_training.py::test_plain_tensorflow_survives_a_lost_ps")  # on kubelets
def test_builtin_serves_parameter_server_strategy_whose_chief_survives_its_loss(
    cluster: Callable[..., Cluster],
) -> None:
    job = cluster(workers=1)
    job.run("worker", STRATEGY)
    chief = job.run("chief", STRATEGY, PS_LOSS_GRACE_SECONDS=600)
    reported(chief, "steps")
    job.kill_server()
    reported(chief, "was lost; it runs again")
    eventually(lambda: chief.log().count("steps") == 2, SECONDS)
    (chief.folder / "stop").touch()
    assert chief.wait(60) == 0
    assert "finished" in chief.log()


@in_all("tests/e2e/test_training.py::test_examples_without_our_runtime")  # on kubelets
def test_builtin_serves_a_between_graph_session(cluster: Callable[..., Cluster]) -> None:
    job = cluster()
    chief = job.run("chief", BETWEEN_GRAPH)
    assert chief.wait(SECONDS) == 0, chief.log()
    assert "finished" in chief.log()
