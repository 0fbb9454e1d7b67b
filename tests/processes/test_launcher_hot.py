"""The launcher with hot standbys: each member is a task, is kept running, and is ready while it is in sync."""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from pstraining.launcher import members
from tests.processes.pods import FakePs, Pod, closing, eventually, get, write_whole
from tests.processes.test_launcher_server import COMMAND
from tests.support.ports import free_neighbours

MakePod = Callable[..., Pod]


class Member:
    """The standby of shard 1 of 2, as a pod; the test controls its primary."""

    def __init__(self, make: MakePod) -> None:
        self.port, self.primary = free_neighbours(), FakePs()
        servers = ["127.0.0.1:1", self.primary.address, "127.0.0.1:1", f"127.0.0.1:{self.port}"]
        self.pod = make("ps", {"ps": servers}, 1, PSTRAINING_MEMBER="1")
        self.pod.write_cluster({"ps": servers}, members=2, witnesses=[])
        (self.pod.folder / "listen").touch()

    def is_ready(self) -> bool:
        return get(self.port + 1, "/readyz")[0] == 200

    def status(self) -> dict[str, Any]:
        return get(self.port + 1, "/v1/status")[1]

    def is_told(self, word: str) -> None:
        (self.pod.run_dir / "in-sync").write_text(word)


@pytest.fixture
def member(pod: MakePod) -> Any:
    found = Member(pod)
    with closing(found.primary):
        yield found


def test_a_standbys_task_follows_all_first_members(member: Member) -> None:
    member.pod.start(*member.pod.puppet)
    member.pod.started()
    assert json.loads(member.pod.starts()[0][2])["task"] == {"type": "ps", "index": 3}


def test_a_member_is_ready_while_it_or_no_member_is_in_sync(member: Member) -> None:
    member.pod.start(*COMMAND)
    eventually(lambda: member.status().get("state") == "Serving")
    assert not member.is_ready(), "the other one is silent, and may have the state"
    member.primary.up()
    assert member.is_ready(), "no member has any state yet"
    member.primary.in_sync = True
    assert not member.is_ready()
    member.is_told("1.2")
    assert member.is_ready()
    member.is_told("")
    assert not member.is_ready(), "the chief has taken it back"


def test_a_killed_server_restarts_in_place_and_is_not_in_sync(member: Member) -> None:
    member.primary.up().in_sync = True
    member.pod.start(*COMMAND)
    eventually(lambda: member.status().get("state") == "Serving")
    member.is_told("1.2")
    assert member.is_ready()
    pid = int(member.pod.log().split("server ")[1].split()[0])
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    after = eventually(lambda: now if (now := member.status()).get("restarts") == 1 else {})
    assert after["inSync"] is False
    eventually(lambda: member.status()["state"] == "Serving")
    member.is_told("1.4")
    assert member.status()["inSync"] is True
    eventually(member.is_ready)
    assert time.monotonic() - killed >= members.NOT_READY_SECONDS, "long enough for the kubelet to see it"


@pytest.mark.parametrize("word", ["1.2", ""], ids=["in sync", "not in sync"])
def test_a_member_in_sync_stays_until_a_view_excludes_it(member: Member, word: str) -> None:
    member.pod.start(*COMMAND)
    eventually(lambda: member.status().get("state") == "Serving")
    member.is_told(word)
    draining = [member.pod.run_dir / name for name in ("draining", "leaving")]
    member.pod.kill(signal.SIGTERM)
    if word:
        eventually(lambda: all(file.exists() for file in draining))
        assert "stopping" not in member.pod.log()
        member.is_told("")
    eventually(lambda: "stopping" in member.pod.log())
    assert [file.exists() for file in draining] == [bool(word)] * 2
    write_whole(member.pod.folder / "end", "0")
    assert member.pod.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("stale", [False, True], ids=["not in sync", "in sync in an earlier view"])
def test_the_only_copy_of_the_state_stays_until_another_member_has_it(member: Member, *, stale: bool) -> None:
    """The only copy of the state stays also after DRAINING_SECONDS, while another member can get it."""
    member.pod.constants["DRAINING_SECONDS"] = 0
    primary = member.primary.up()
    primary.in_sync, primary.view = stale, "1.9" if stale else ""
    member.pod.start(*COMMAND)
    eventually(lambda: member.status().get("state") == "Serving")
    member.is_told("1.10")
    assert member.status()["view"] == "1.10"
    member.pod.kill(signal.SIGTERM)
    eventually(lambda: "no other member has this shard's state" in member.pod.log())
    asked = primary.asked
    eventually(lambda: primary.asked > asked + 2)
    assert "stopping" not in member.pod.log()
    primary.in_sync, primary.view = True, "1.11"
    eventually(lambda: "stopping" in member.pod.log())
    write_whole(member.pod.folder / "end", "0")
    assert member.pod.wait() == 128 + signal.SIGTERM


def test_the_only_copy_of_the_state_does_not_wait_for_members_that_end_too(member: Member) -> None:
    member.pod.constants["DRAINING_SECONDS"] = 0
    member.primary.up().state = "Terminating"
    member.pod.start(*COMMAND)
    eventually(lambda: member.status().get("state") == "Serving")
    member.is_told("1.10")
    member.pod.kill(signal.SIGTERM)
    eventually(lambda: "stopping" in member.pod.log())
    write_whole(member.pod.folder / "end", "0")
    assert member.pod.wait() == 128 + signal.SIGTERM


def test_a_program_starts_with_one_member_of_each_shard(pod: MakePod) -> None:
    servers = [FakePs() for _ in range(4)]
    with closing(*servers):
        worker = pod("worker", {"worker": ["w:2222"], "ps": [ps.address for ps in servers]})
        worker.write_cluster({"worker": ["w:2222"], "ps": [ps.address for ps in servers]}, members=2)
        servers[0].up()
        worker.start(*worker.puppet)
        eventually(lambda: "waiting for PS" in worker.log())
        assert servers[1].address in worker.log()
        assert servers[2].address not in worker.log(), "its shard is served"
        servers[3].up()
        worker.started()


def test_a_program_does_not_wait_for_optional_members(pod: MakePod) -> None:
    """A program does not wait for optional members: it starts before one of them answers, and a member that answers
    later is used as well.
    """
    mute, *others = servers = [FakePs() for _ in range(4)]
    with closing(*servers):
        worker = pod("worker", {"worker": ["w:2222"], "ps": [ps.address for ps in servers]})
        worker.write_cluster({"worker": ["w:2222"], "ps": [ps.address for ps in servers]}, members=2)
        worker.constants["ANSWER_SECONDS"] = 3600
        mute.answers.clear()
        mute.up()
        for ps in others:
            ps.up()
        worker.start(*worker.puppet).started()
        assert mute.asked == 1


@pytest.mark.parametrize("number", [3, 0, "2"])
def test_an_invalid_cluster_map_is_rejected(pod: MakePod, number: Any) -> None:
    found = pod("ps", {"ps": ["127.0.0.1:1", "127.0.0.1:2"]}, 0)
    found.write_cluster({"ps": ["127.0.0.1:1", "127.0.0.1:2"]}, members=number)
    assert found.start(*COMMAND).wait() == 72
    assert "'members' is" in found.log()
