"""The choice of a process to kill is never a guess, and its error message helps."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from localcluster import network, packages
from localcluster.errors import ClusterError
from localcluster.faults import choose_container
from localcluster.layout import read_layout
from localcluster.node import is_ready, renewed
from localcluster.packages import missing_browser, missing_packages
from localcluster.progress import Progress


def pod(*names: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    status = [
        {"name": name, "state": state or {"running": {}}, "containerID": f"containerd://{name}"} for name in names
    ]
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": status}}


def test_the_only_container_needs_no_name() -> None:
    assert choose_container(pod("a"), None)["name"] == "a"
    assert choose_container(pod("a", "b"), "b")["name"] == "b"


@pytest.mark.parametrize(
    ("body", "container", "message"),
    [
        (pod("a", "b"), None, "several containers, name one: a, b"),
        (pod("a"), "c", "no such container; there are: a"),
        (pod("a", state={"waiting": {"reason": "CrashLoopBackOff"}}), None, "CrashLoopBackOff"),
        ({"metadata": {"name": "p"}}, None, "none yet"),
    ],
)
def test_an_ambiguous_choice_is_rejected(body: dict[str, Any], container: str | None, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        choose_container(body, container)


def test_readiness_and_leases_are_read() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert is_ready({"status": {"conditions": [{"type": "DiskPressure", "status": "True"}, ready]}})
    assert not is_ready({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    assert not is_ready({})
    assert renewed({"spec": {"renewTime": "1970-01-01T00:00:05.500000Z"}}) == 5.5
    assert renewed({}) == 0.0


def test_links_are_up_by_their_flags() -> None:
    assert network.is_up({"flags": ["BROADCAST", "UP"]})
    assert not network.is_up({"flags": ["BROADCAST"]})


def test_packages_are_installed_for_missing_programs_only() -> None:
    assert missing_packages(lambda _: True, has_cni=True) == []
    assert missing_packages(lambda program: program != "nsenter", has_cni=True) == ["util-linux"]
    assert missing_packages(lambda _: True, has_cni=False) == ["containernetworking-plugins"]
    assert missing_browser(lambda program: program == "google-chrome") == []
    assert missing_browser(lambda _: False) == ["chromium"]


def test_processes_that_start_together_install_packages_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt-get does not wait for the update of another apt-get, so `make demo` beside `make test` would fail."""
    monkeypatch.setattr(
        packages, "missing_browser", lambda _: [] if (tmp_path / "installed").exists() else ["chromium"]
    )
    monkeypatch.setattr(packages, "have", lambda _: True)
    monkeypatch.setattr(packages, "POLICY", tmp_path)  # exists: nothing is written to the machine
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def install(*_: object) -> None:
        (tmp_path / "running").mkdir()  # fails beside another installation, and after one
        time.sleep(0.1)  # until then, the others would find nothing installed
        (tmp_path / "installed").touch()

    monkeypatch.setattr(packages, "install", install)
    layout, progress = read_layout({"HOME": str(tmp_path)}), Progress(quiet=True)
    fork = multiprocessing.get_context("fork")
    runs = [fork.Process(target=packages.ensure_browser, args=(layout, progress)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * 4
