"""Installs the Debian packages of missing programs.

A package is installed only if its program is missing: another vendor's containerd is kept. The
installation starts no containerd daemon (policy-rc.d), because every node runs its own.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.layout import Layout
from localcluster.progress import Progress
from localcluster.shell import have, run_logged

CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")
POLICY = Path("/usr/sbin/policy-rc.d")

# Debian package -> a program that it installs.
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
"""Alternative programs; the first is also the name of the package to install."""


def cni_folder() -> Path | None:
    """Return the folder with all required CNI plugins; None without one."""
    for folder in CNI_FOLDERS:
        if all((Path(folder) / plugin).exists() for plugin in CNI_PLUGINS):
            return Path(folder)
    return None


def missing_packages(has: Callable[[str], bool], has_cni: bool) -> list[str]:
    """Return the packages to install.

    Args:
        has: returns whether a program is installed.
        has_cni: whether the CNI plugins are installed.
    """
    wanted = {**CLUSTER_PACKAGES, **IMAGE_PACKAGES}
    missing = [package for package, program in wanted.items() if not has(program)]
    return missing if has_cni else [*missing, "containernetworking-plugins"]


def missing_browser(has: Callable[[str], bool]) -> list[str]:
    """Return the package to install for tests in a browser; empty if a browser is installed."""
    return [] if any(map(has, BROWSERS)) else [BROWSERS[0]]


def ensure_packages(layout: Layout, progress: Progress) -> None:
    """Install the packages of missing programs.

    Raises:
        ClusterError: a program is missing, and this process is not root on a Debian-like system.
    """
    with _alone(layout):
        _ensure(layout, progress, lambda: missing_packages(have, cni_folder() is not None))


def ensure_browser(layout: Layout, progress: Progress) -> None:
    """Install a browser if the machine has none.

    Raises:
        ClusterError: no browser is installed, and this process is not root on a Debian-like system.
    """
    with _alone(layout):
        _ensure(layout, progress, lambda: missing_browser(have))


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Let one thread of one process look for packages and install them; the next one finds all programs.

    apt-get does not wait for the update of another apt-get.
    """
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock-packages").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


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
    """Run apt-get update and install; the installation waits up to 300 s for another program's."""
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
    """Prevent package scripts from starting daemons, unless the machine has its own policy."""
    if POLICY.exists() or shutil.which("invoke-rc.d") is None:
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
