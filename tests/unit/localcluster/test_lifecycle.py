"""Tear-down deletes our folders, and never the content of mounts in them."""

import json
from pathlib import Path

import pytest

from localcluster import leftovers, lifecycle, network, procs
from localcluster.errors import ClusterError
from localcluster.layout import read_layout
from localcluster.progress import Progress


def test_a_folder_with_a_remaining_mount_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(lifecycle, "mount_points", lambda: ["/", str(tmp_path / "data")])
    monkeypatch.setattr(lifecycle, "run", lambda *_, **__: "")
    with pytest.raises(ClusterError, match="cannot unmount"):
        lifecycle.remove_tree(tmp_path)
    assert (tmp_path / "data").is_dir()


def test_mounts_go_last_first_and_neighbours_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    points = ["/", "/run/p", "/run/p/a", "/run/p-1", "/run/p/a/b"]
    commands: list[list[str]] = []
    monkeypatch.setattr(lifecycle, "mount_points", lambda: points)
    monkeypatch.setattr(lifecycle, "run", lambda args, **_: commands.append(args))
    lifecycle.unmount_below(Path("/run/p"))
    assert commands == [["umount", "-l", "/run/p/a/b", "/run/p/a", "/run/p"]]


def test_a_plan_of_another_boot_does_not_count(tmp_path: Path) -> None:
    layout = read_layout({"HOME": "/h", "PSTRAINING_RUN": "/run/x"})
    object.__setattr__(layout, "run", tmp_path)
    assert lifecycle.saved_plan(layout) is None
    layout.state_file.write_text(json.dumps({"nodes": 3, "boot": "another"}))
    assert lifecycle.saved_plan(layout) is None
    layout.state_file.write_text(json.dumps({"nodes": 3, "boot": procs.boot_id()}))
    plan = lifecycle.saved_plan(layout)
    assert plan is not None
    assert len(plan.nodes) == 3
    assert not plan.ipv6


def test_a_clusters_address_family_is_kept_until_it_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = read_layout({"HOME": "/h", "PSTRAINING_RUN": "/run/x"})
    object.__setattr__(layout, "run", tmp_path)
    monkeypatch.setattr(lifecycle, "require_root", lambda: None)
    layout.state_file.write_text(json.dumps({"nodes": 1, "ipv6": True, "boot": procs.boot_id()}))
    plan = lifecycle.saved_plan(layout)
    assert plan is not None
    assert plan.ipv6
    layout.state_file.write_text(json.dumps({"nodes": 1, "ipv6": False, "boot": procs.boot_id()}))
    with pytest.raises(ClusterError, match="uses IPv4: run 'python3 -m localcluster down' first"):
        lifecycle.up(layout, 1, Progress(), ipv6=True)


def test_a_real_kubelets_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "namespaces", set)
    monkeypatch.setattr(leftovers, "CNI_RESULTS", tmp_path / "results")
    monkeypatch.setattr(leftovers, "SHARED", ())
    kubelet = tmp_path / "kubelet"
    monkeypatch.setattr(leftovers, "KUBELET", kubelet)
    (kubelet / "device-plugins").mkdir(parents=True)
    (kubelet / "device-plugins" / "kubelet.sock").touch()
    (kubelet / "pods").mkdir()
    leftovers.remove("pst0")
    assert (kubelet / "device-plugins" / "kubelet.sock").exists()
    (kubelet / "pods").rmdir()
    leftovers.remove("pst0")
    assert not kubelet.exists()


def test_only_our_own_cni_results_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "namespaces", lambda: {"pst0-node-0"})
    monkeypatch.setattr(leftovers, "CNI_RESULTS", tmp_path)
    monkeypatch.setattr(leftovers, "SHARED", ())
    for name in ("pst1-abc-eth0", "cni-loopback-abc-lo", "pst0-def-eth0", "cni-loopback-def-lo", "podman-x-eth0"):
        (tmp_path / name).touch()
    leftovers.remove("pst1")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["cni-loopback-def-lo", "podman-x-eth0", "pst0-def-eth0"]
