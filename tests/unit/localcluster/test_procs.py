"""Daemons are identified by id, start time and boot, never by id or name alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localcluster import procs
from localcluster.layout import read_layout
from localcluster.procs import Daemon, Record, Supervisor, digest_of, is_alive, parse_start_time, send, start_time
from localcluster.shell import wait_for

TAIL = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18"


def started(pid: int) -> int:
    found = start_time(pid)
    assert found is not None
    return found


def remembered(supervisor: Supervisor) -> Record:
    found = supervisor.record("sleeper")
    assert found is not None
    return found


def record(pid: int, start: int, **changes: Any) -> Record:
    base = Record(
        name="x", pid=pid, start=start, boot=procs.boot_id(), digest="d", netns="", netns_inode=0, log="/x.log"
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        (f"42 (etcd) S {TAIL} 777 0", 777),
        (f"42 (a) b) S) S {TAIL} 777 0", 777),
        (f"42 (etcd) Z {TAIL} 777 0", None),
        ("42 (etcd) S 1 2", None),
        ("", None),
    ],
)
def test_start_time_is_read_behind_the_last_bracket(stat: str, expected: int | None) -> None:
    assert parse_start_time(stat) == expected


def test_this_process_is_recognised() -> None:
    assert is_alive(record(os.getpid(), started(os.getpid())))


def test_another_start_time_or_boot_is_another_process() -> None:
    start = started(os.getpid())
    assert not is_alive(record(os.getpid(), start + 1))
    assert not is_alive(record(os.getpid(), start, boot="an earlier boot"))


def test_a_reused_id_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        stale = record(stranger.pid, started(stranger.pid) - 1)
        assert send(stale, signal.SIGKILL) is False
        assert stranger.poll() is None
        assert send(record(stranger.pid, started(stranger.pid)), signal.SIGKILL) is True
        assert stranger.wait(timeout=10) == -signal.SIGKILL


def test_records_survive_and_corrupted_ones_are_ignored(tmp_path: Path) -> None:
    kept = record(1, 2)
    procs.write_record(tmp_path, kept)
    (tmp_path / "y.json").write_text("{broken")
    (tmp_path / "z.json").write_text('{"pid": 1}')
    assert procs.read_records(tmp_path) == [kept]


def test_the_digest_covers_command_environment_and_inputs(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("a")
    daemon = Daemon("x", ("prog", "--flag"), "", (settings,))
    before = digest_of(daemon)
    assert digest_of(replace(daemon, argv=("prog",))) != before
    assert digest_of(replace(daemon, env=(("A", "1"),))) != before
    settings.write_text("b")
    assert digest_of(daemon) != before


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    layout = read_layout({"HOME": str(tmp_path), "PSTRAINING_RUN": "/run/unused"})
    object.__setattr__(layout, "run", tmp_path / "run")
    group = tmp_path / "cgroup.procs"
    found = Supervisor(layout, group)
    yield found
    procs.stop(procs.read_records(layout.records), grace_s=1)


def sleeper(seconds: str = "60") -> Daemon:
    return Daemon("sleeper", (sys.executable, "-c", f"import time; time.sleep({seconds})"), "")


def test_a_daemon_is_started_once_and_joins_the_group(supervisor: Supervisor) -> None:
    assert supervisor.ensure(sleeper()) is True
    first = remembered(supervisor)
    assert supervisor.ensure(sleeper()) is False
    assert supervisor.record("sleeper") == first
    assert supervisor.alive("sleeper")

    def joined() -> str | None:
        return supervisor.procs_file.read_text().strip() if supervisor.procs_file.exists() else None

    assert wait_for(joined, what="the group", deadline_s=60) == str(first.pid)


def test_a_dead_daemon_is_started_again(supervisor: Supervisor) -> None:
    supervisor.ensure(sleeper())
    first = remembered(supervisor)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    assert supervisor.ensure(sleeper()) is True
    assert remembered(supervisor).pid != first.pid


def test_a_changed_command_replaces_the_daemon(supervisor: Supervisor) -> None:
    supervisor.ensure(sleeper("60"))
    first = remembered(supervisor)
    assert supervisor.ensure(sleeper("61")) is True
    assert not is_alive(first)


def test_stopping_deletes_the_record(supervisor: Supervisor) -> None:
    supervisor.ensure(sleeper())
    first = remembered(supervisor)
    supervisor.stop(["sleeper", "never-was"])
    assert not is_alive(first)
    assert supervisor.record("sleeper") is None


def test_a_killed_daemon_has_ended_before_its_successor_starts(supervisor: Supervisor, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = f"import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path({str(ready)!r}).touch()"
    supervisor.ensure(Daemon("sleeper", (sys.executable, "-c", f"{program}; time.sleep(600)"), ""))
    wait_for(ready.exists, what="the daemon ignores SIGTERM", deadline_s=60)
    first = remembered(supervisor)
    procs.stop([first], grace_s=0.1)
    assert not is_alive(first)
