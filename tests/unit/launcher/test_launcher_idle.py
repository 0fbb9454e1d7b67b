"""A pod idles whose program must not run again; a success is returned once more."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pstraining.launcher import contract, launch, probe

WORKER = {"PSTRAINING_TASK_TYPE": "worker", "PSTRAINING_TASK_INDEX": "0"}


def pod(folder: Path, monkeypatch: pytest.MonkeyPatch, cluster_map: str) -> None:
    """Let a folder be the one in which a pod has its cluster map and its markers."""
    (folder / "cluster.json").write_text(cluster_map)
    monkeypatch.setattr(contract, "RUN_DIR", str(folder))
    monkeypatch.setattr(launch, "map_file", lambda: str(folder / "cluster.json"))


@pytest.mark.parametrize(("marker", "waits", "code"), [("success", 1, 0), ("failed", 5, 143)])
def test_only_a_success_is_returned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str, waits: int, code: int
) -> None:
    """A success is returned again after a time, because the kubelet may have removed the container that showed it."""
    now, waited = [0.0], list[float | None]()

    def wait(seconds: float | None = None) -> None:
        waited.append(seconds)
        now[0] += launch.IDLE_SECONDS
        if len(waited) == 5:
            launcher.supervisor.stopped_by = 15
            raise contract.ExitError(143, "")

    pod(tmp_path, monkeypatch, '{"job": "digits", "cluster": {"worker": ["127.0.0.1:2"]}}')
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    launcher = launch.Launcher(WORKER, ["program"])
    monkeypatch.setattr(launcher.supervisor, "wait", wait)
    (tmp_path / {"success": contract.SUCCESS_MARKER, "failed": contract.FAILED_MARKER}[marker]).write_text("")
    assert (launcher.idle("it has ended"), len(waited)) == (code, waits)


def test_a_full_disk_does_not_change_how_a_program_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dataset's cache may have taken the last inode of the node's disk."""
    pod(tmp_path, monkeypatch, '{"job": "digits", "cluster": {"worker": ["127.0.0.1:2"]}}')
    launcher = launch.Launcher(WORKER, ["program"])
    absent = str(tmp_path / "absent" / "marker")
    launcher.success_marker = launcher.failed_marker = launcher.terms._layout_file = absent
    for code in (0, contract.EXIT_BAD_SETTINGS):
        monkeypatch.setattr(launcher.supervisor, "run", lambda *_, code=code: (code, 5.0))
        assert launcher.run_program() == code
    assert f"{absent} cannot be written: No such file or directory" in capfd.readouterr().err


def test_a_full_disk_does_not_keep_a_program_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pod(tmp_path, monkeypatch, '{"job": "digits", "cluster": {"worker": ["127.0.0.1:2"]}}')
    env = dict(WORKER)
    for name, file in {
        contract.ENV_NODE: contract.NODE_FILE,
        contract.ENV_PROGRESS_AUTHORITY: contract.PROGRESS_AUTHORITY_FILE,
    }.items():
        (tmp_path / file).symlink_to("/dev/full")
        env[name] = "text"
    assert launch.Launcher(env, ["program"]).command == ["program"]
    assert capfd.readouterr().err.count("cannot be written: No space left on device") == 2


@pytest.mark.parametrize(
    "work", [launch.Launcher.await_ps, lambda launcher: launcher.was_ps_lost({"ps:1": probe.PsProbe()}, 1)]
)
def test_a_stop_is_not_delayed_by_a_name_server_that_is_silent(
    work: Callable[[launch.Launcher], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup takes up to a minute, which no timeout of a connection shortens."""
    resolved, late = threading.Event(), list[bool]()

    def probe_slowly(_: str) -> probe.PsProbe:
        os.kill(os.getpid(), signal.SIGTERM)
        late.append(not resolved.wait(10))
        return probe.PsProbe()

    pod(tmp_path, monkeypatch, '{"cluster": {"worker": ["127.0.0.1:2"], "ps": ["ps:1"]}}')
    monkeypatch.setattr(probe, "probe", probe_slowly)
    launcher = launch.Launcher(WORKER, ["program"])
    with pytest.raises(contract.ExitError) as stopped:
        work(launcher)
    assert (stopped.value.args[0], late) == (143, []), "it has not waited for the name server"
    resolved.set()
