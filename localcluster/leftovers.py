"""Removal of files that the cluster's programs write to fixed paths outside the cluster's folders.

Only files that certainly belong to the instance, and empty folders, are removed. Another instance,
a container engine or a real kubelet may run on the same machine.
"""

import contextlib
from pathlib import Path

from localcluster import network

CNI_RESULTS = Path("/var/lib/cni/results")
KUBELET = Path("/var/lib/kubelet")
SHARED = (
    Path("/var/log/containers"),
    CNI_RESULTS,
    CNI_RESULTS.parent,
    Path("/run/containerd/s"),
    Path("/run/containerd/runc/k8s.io"),
    Path("/run/containerd/runc"),
    Path("/run/containerd"),
)


def remove(prefix: str) -> None:
    """Remove the files of an instance, whose namespaces must be deleted already.

    Args:
        prefix: the instance's prefix, which is also the name of its pod network.
    """
    for path in CNI_RESULTS.glob(f"{prefix}-*-eth0"):
        pod = path.name.removeprefix(f"{prefix}-").removesuffix("-eth0")
        (CNI_RESULTS / f"cni-loopback-{pod}-lo").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    if not any("-node-" in name and name.startswith("pst") for name in network.namespaces()):
        _remove_device_plugins(KUBELET)
    for folder in SHARED:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove_device_plugins(kubelet: Path) -> None:
    """Remove the folder that every kubelet creates under any root; a real kubelet has more files beside it."""
    folder = kubelet / "device-plugins"
    if not folder.is_dir() or [path.name for path in kubelet.iterdir()] != [folder.name]:
        return
    for name in ("kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"):
        (folder / name).unlink(missing_ok=True)
    for empty in (folder, kubelet):
        with contextlib.suppress(OSError):
            empty.rmdir()
