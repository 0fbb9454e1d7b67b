"""Control groups of both versions, and missing capabilities, are recognized."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from localcluster import cgroups
from localcluster.errors import ClusterError

V1 = """\
30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
32 30 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_1_with_an_empty_version_2_tree() -> None:
    trees = cgroups.parse_mounts(V1)
    assert [tree.version for tree in trees] == [1, 1, 1, 2]
    assert cgroups.tracking(trees).path == Path("/sys/fs/cgroup/pids")


def test_version_2_alone() -> None:
    trees = cgroups.parse_mounts(V2)
    assert [(tree.path, tree.version) for tree in trees] == [(Path("/sys/fs/cgroup"), 2)]
    assert cgroups.tracking(trees).version == 2


def test_creating_copies_cpusets_in_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = cgroups.Hierarchy(tmp_path, 1, frozenset({"cpuset"}))
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tree])
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset.mems").write_text("0\n")
    group = tmp_path / "node"
    group.mkdir()
    (group / "cpuset.cpus").write_text("\n")
    (group / "cpuset.mems").write_text("\n")
    cgroups.create("node")
    assert (group / "cpuset.cpus").read_text() == "0-1\n"
    assert (group / "cpuset.mems").read_text() == "0\n"


def test_creating_delegates_controllers_in_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = cgroups.Hierarchy(tmp_path, 2, frozenset())
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tree])
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    cgroups.create("node")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (tmp_path / "node").is_dir()


@pytest.mark.parametrize("refusals", [1, 3, cgroups.DELEGATIONS])
def test_processes_of_the_root_are_moved_until_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """A process that is not moved yet may fork, also several times."""
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("7\n")
    left, write = [refusals], Path.write_text

    def refusing(path: Path, text: str) -> int:
        if path.name == "cgroup.subtree_control" and left[0]:
            left[0] -= 1
            raise OSError(errno.EBUSY, "Device or resource busy")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refusing)
    if refusals == cgroups.DELEGATIONS:
        with pytest.raises(ClusterError, match="busy"):
            cgroups._delegate(tmp_path)
    else:
        cgroups._delegate(tmp_path)
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "init" / "cgroup.procs").read_text() == "7"


def test_capabilities_are_read_from_the_effective_set() -> None:
    assert cgroups.has_capability(cgroups.CAP_SYS_RESOURCE, "CapEff:\t000001ffffffffff\n")
    assert not cgroups.has_capability(cgroups.CAP_SYS_RESOURCE, "CapEff:\t000001fffeffffff\n")


def test_a_group_deleted_meanwhile_has_no_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tree:
        path = tmp_path

    (tmp_path / "node" / "pod").mkdir(parents=True)
    (tmp_path / "node" / "cgroup.procs").write_text("")
    scan = os.scandir

    def vanishing(path: Any) -> Any:
        if str(path).endswith("pod"):
            shutil.rmtree(path, ignore_errors=True)
        return scan(path)

    monkeypatch.setattr(cgroups, "hierarchies", lambda: [Tree()])
    monkeypatch.setattr(os, "scandir", vanishing)
    assert cgroups.members("node") == set()
