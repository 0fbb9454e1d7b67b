"""Installing the Debian packages that the cluster needs, when a program is missing.

Programs decide, not packages: a machine with another vendor's containerd is left as it is. A
containerd daemon that the installation would start is never started (policy-rc.d), for every node
runs its own.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.layout import Layout
from localcluster.progress import Progress
from localcluster.shell import have, run_logged

CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")
# The image thread and the cluster thread both ask; the second finds all there.
LOCK = threading.Lock()
POLICY = Path("/usr/sbin/policy-rc.d")

# Debian package -> the program that shows that it is there.
CLUSTER_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "iproute2": "ip",
    "socat": "socat",
    "ethtool": "ethtool",
    "kmod": "modprobe",
    "openssl": "openssl",
    "util-linux": "nsenter",
    "mount": "umount",
}
IMAGE_PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs of which one is enough; the first is also the package that is installed."""


def cni_folder() -> Path | None:
    """The folder that holds all CNI plugins we use."""
    for folder in CNI_FOLDERS:
        if all((Path(folder) / plugin).exists() for plugin in CNI_PLUGINS):
            return Path(folder)
    return None


def missing_packages(has: Callable[[str], bool], has_cni: bool) -> list[str]:
    """The packages to install, given what programs there are."""
    wanted = {**CLUSTER_PACKAGES, **IMAGE_PACKAGES}
    missing = [package for package, program in wanted.items() if not has(program)]
    return missing if has_cni else [*missing, "containernetworking-plugins"]


def missing_browser(has: Callable[[str], bool]) -> list[str]:
    """The package to install for tests in a browser, if there is no browser."""
    return [] if any(map(has, BROWSERS)) else [BROWSERS[0]]


def ensure_packages(layout: Layout, progress: Progress) -> None:
    """Install what is missing.

    Raises:
        ClusterError: something is missing and this is not root on a Debian-like system.
    """
    with LOCK:
        _ensure(layout, progress, lambda: missing_packages(have, cni_folder() is not None))


def ensure_browser(layout: Layout, progress: Progress) -> None:
    """Install a browser where there is none.

    Raises:
        ClusterError: there is none and this is not root on a Debian-like system.
    """
    with LOCK:
        _ensure(layout, progress, lambda: missing_browser(have))


def _ensure(layout: Layout, progress: Progress, find_missing: Callable[[], list[str]]) -> None:
    missing = find_missing()
    if not missing:
        return
    if not have("apt-get"):
        raise ClusterError(
            "these programs are missing and this system has no apt-get to install them "
            f"(Debian 12 or Ubuntu 22.04 and newer are supported): {', '.join(missing)}"
        )
    if os.geteuid() != 0:
        raise ClusterError(f"root is needed to install: {', '.join(missing)}")
    with progress.step(f"installing Debian packages: {' '.join(missing)}"), no_service_starts():
        install(missing, layout.cache / "logs" / "apt.log")
    left = find_missing()
    if left:
        raise ClusterError(f"installed, but still missing: {', '.join(left)}")


def install(packages: Sequence[str], log: Path) -> None:
    """apt-get update and install; another apt that is running is waited for."""
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    run_logged([*apt, "update"], log, what="apt-get update", env=env)
    run_logged(
        [*apt, "-o", "Dpkg::Options::=--force-unsafe-io", "install", "--no-install-recommends", *packages],
        log,
        what=f"apt-get install {' '.join(packages)}",
        env=env,
    )


@contextmanager
def no_service_starts() -> Iterator[None]:
    """Forbid package scripts to start daemons, unless the machine has its own policy."""
    if POLICY.exists() or shutil.which("invoke-rc.d") is None:
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
