"""The launcher, as real processes, when the number of parameter servers changes: containers stay, and processes
restart.

Each of these tests fails without its mechanism. The mechanisms are the wait of a new server, and the end of a server or
program for another layout. Further ones are SIGKILL after SIGTERM, and the comparison of layouts before a program
starts.
"""

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pstraining.launcher import contract
from tests.processes.pods import FakePs, Pod, eventually, get, is_alive
from tests.support.ports import free_neighbours

MakePod = Callable[..., Pod]
SERVER = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
print("server of", len(config["cluster"]["ps"]), flush=True)
port = int(config["cluster"]["ps"][config["task"]["index"]].rpartition(":")[2])
with socket.create_server(("0.0.0.0", port)) as server:
    while True: server.accept()[0].close()
"""
OTHER = "127.0.0.1:1"


class Server:
    """The second parameter server of a job."""

    def __init__(self, make: MakePod) -> None:
        self.address = f"127.0.0.1:{free_neighbours()}"
        self.port = int(self.address.rpartition(":")[2])
        self.pod = make("ps", {"ps": [OTHER]}, 1)

    def write(self, servers: int, layout: int, **further: Any) -> None:
        """Deliver a map with this number of servers, as the kubelet does."""
        addresses = [OTHER, self.address, OTHER][:servers]
        self.pod.write_cluster({"ps": addresses}, term=1, layout=layout, **further)

    def status(self, layout: int) -> dict[str, Any]:
        """Wait until the server serves for that layout; return its status."""

        def found() -> dict[str, Any]:
            reported = get(self.port + 1, "/v1/status")[1]
            return reported if reported.get("layout") == layout and reported["state"] == "Serving" else {}

        return eventually(found)


@pytest.fixture
def server(pod: MakePod) -> Server:
    return Server(pod)


def test_a_new_server_waits_until_the_job_has_it(server: Server) -> None:
    server.write(1, 1)
    server.pod.start(sys.executable, "-c", SERVER)
    eventually(lambda: "has 1 parameter servers" in server.pod.log())
    assert server.pod.runs()
    assert "server of" not in server.pod.log()
    server.write(2, 2)
    assert server.status(2)["restarts"] == 0
    assert "server of 2" in server.pod.log()


def test_a_server_that_waits_ends_when_it_is_stopped(server: Server) -> None:
    server.write(1, 1)
    server.pod.start(sys.executable, "-c", SERVER)
    eventually(lambda: "has 1 parameter servers" in server.pod.log())
    server.pod.kill()
    assert server.pod.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("policy", ["Keep", "Restart"])
def test_a_server_restarts_empty_for_another_layout_also_with_runtime_owned_state(server: Server, policy: str) -> None:
    server.write(2, 1, onChiefRestart=policy)
    server.pod.start(sys.executable, "-c", SERVER)
    boot = server.status(1)["bootId"]
    owned = server.pod.run_dir / "runtime-owned"
    owned.touch()
    server.write(3, 2, onChiefRestart=policy)
    assert server.status(2)["bootId"] != boot
    assert "server of 3" in server.pod.log()
    assert not owned.exists()
    server.write(2, 3, onChiefRestart=policy)  # the number of servers is the former one, but the layout is not
    server.status(3)


def test_a_server_that_the_job_no_longer_has_serves_no_more(server: Server) -> None:
    server.write(2, 1)
    server.pod.start(sys.executable, "-c", SERVER)
    server.status(1)
    server.write(1, 2)
    eventually(lambda: get(server.port + 1, "/v1/status")[1].get("state") == "Starting")
    assert server.pod.runs(), "its StatefulSet deletes it"


class Member:
    """The second member of a shard, as a pod, in a job with hot standbys.

    Args:
        make: creates the pod.
        shard: its number.
    """

    def __init__(self, make: MakePod, shard: int) -> None:
        self.shard, self.address = shard, f"127.0.0.1:{free_neighbours()}"
        self.port = int(self.address.rpartition(":")[2])
        self.pod = make("ps", {"ps": [OTHER]}, shard, PSTRAINING_MEMBER="1")

    def write(self, shards: int, layout: int) -> int:
        """Deliver a map with this number of shards, as the kubelet does; return the server's task."""
        addresses, task = [OTHER] * 2 * shards, self.shard + shards
        if self.shard < shards:
            addresses[task] = self.address
        self.pod.write_cluster({"ps": addresses}, term=1, layout=layout, members=2, witnesses=[])
        return task

    def task(self) -> int:
        """Return the task as which the newest server was started."""
        return int(json.loads(self.pod.starts()[-1][2])["task"]["index"])


def test_a_hot_standby_has_another_task_in_another_layout(pod: MakePod) -> None:
    member = Member(pod, 1)
    first = member.write(2, 1)
    member.pod.start(*member.pod.puppet)
    member.pod.started()
    assert member.task() == first == 3
    second = member.write(3, 2)
    member.pod.started(2)
    assert member.task() == second == 4


def test_a_server_of_a_new_shard_waits_although_a_standby_has_the_number_of_its_shard(pod: MakePod) -> None:
    member = Member(pod, 2)
    member.write(2, 1)  # its task 2 is the standby of shard 0
    member.pod.start(*member.pod.puppet)
    eventually(lambda: "no shard 2" in member.pod.log())
    assert not member.pod.starts()
    assert member.pod.runs()
    task = member.write(3, 2)
    member.pod.started()
    assert member.task() == task == 5


def test_a_chief_that_has_saved_for_another_layout_ends_although_a_server_is_lost(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", {"chief": [OTHER], "ps": [ps.up().address]})
    chief.start(*chief.puppet)
    chief.started()
    ps.down()
    chief.order(contract.EXIT_SAVED)
    assert chief.wait() == contract.EXIT_SAVED


def worker_of(*fakes: FakePs) -> dict[str, list[str]]:
    return {"worker": [OTHER], "ps": [ps.address for ps in fakes]}


def sizes(pod: Pod) -> list[int]:
    """Return the numbers of servers with which the program was started."""
    return [len(json.loads(config)["cluster"]["ps"]) for _, _, config in pod.starts()]


def test_a_program_starts_again_in_its_container_once_every_server_has_the_layout(pod: MakePod, ps: FakePs) -> None:
    second = FakePs()
    ps.layout = second.layout = 1
    worker = pod("worker", worker_of(ps.up()))
    worker.start(*worker.puppet)
    first = worker.started()
    second.up()
    worker.write_cluster(worker_of(ps, second), term=1, layout=2)
    eventually(lambda: not is_alive(first))
    eventually(lambda: "it runs for layout 1, not 2" in worker.log())
    second.layout = 2
    assert sizes(worker) == [1], "one server still has the former layout"
    ps.layout = 2
    worker.started(2)
    second.down()
    assert sizes(worker) == [1, 2]
    assert not (worker.run_dir / "succeeded").exists()


@pytest.mark.parametrize("code", [0, 1, 78])
def test_a_program_that_is_stopped_for_a_layout_has_neither_succeeded_nor_failed(
    pod: MakePod, ps: FakePs, code: int
) -> None:
    ps.layout = 1
    worker = pod("worker", worker_of(ps.up()), PSTRAINING_RESTART_POLICY="Never")
    ends = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); "
    started = "print('started', flush=True); signal.pause(); sys.exit(9)"
    worker.start(sys.executable, "-c", ends + started)
    eventually(lambda: "started" in worker.log())
    ps.layout = 2
    worker.write_cluster(worker_of(ps), term=1, layout=2)
    eventually(lambda: worker.log().count("started\n") == 2)
    assert worker.runs()
    assert not [name for name in ("succeeded", "failed") if (worker.run_dir / name).exists()]


def test_a_program_that_ignores_the_signal_is_killed(pod: MakePod, ps: FakePs) -> None:
    ps.layout = 1
    worker = pod("worker", worker_of(ps.up()))
    worker.constants["STOP_SECONDS"] = 0.2
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    worker.start(sys.executable, "-c", ignores + "print('started', flush=True)\nwhile True: signal.pause()")
    eventually(lambda: "started" in worker.log())
    ps.layout = 2
    worker.write_cluster(worker_of(ps), term=1, layout=2)
    eventually(lambda: worker.log().count("started\n") == 2)


CHANGES_AND_FAILS = """
import json, os, sys
found = json.load(open("cluster.json"))
if "layout" in found: sys.exit(0)
with open("next.json", "w") as file: json.dump({**found, "term": 1, "layout": 2}, file)
os.rename("next.json", "cluster.json")
os._exit(3)
"""


def test_a_program_that_fails_when_the_layout_has_changed_is_started_again(pod: MakePod, ps: FakePs) -> None:
    """A program that fails after the layout has changed is restarted: the servers may be empty before the launcher
    reads the new map.
    """
    worker = pod("worker", worker_of(ps.up()))
    worker.write_cluster(worker_of(ps), term=1)
    worker.start(sys.executable, "-c", CHANGES_AND_FAILS)
    assert worker.wait() == 0
