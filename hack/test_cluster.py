"""A test cluster: started with the project's images, or the one that the environment names.

`make demo` and the tests that need a cluster share this module. If KUBECONFIG and PSTRAINING_CONTEXT are set, only that
context is used. Nothing is built or started then, and its nodes must be able to pull the images.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localcluster import lifecycle, load
from localcluster.errors import ClusterError
from localcluster.images import TARGETS, Image, ImageStore
from localcluster.layout import ClusterPlan, Layout, read_layout
from localcluster.packages import ensure_packages
from localcluster.progress import Progress
from localcluster.shell import run
from localcluster.tools import CLUSTER_TOOLS, Toolbox

ROOT = Path(__file__).resolve().parents[1]
NODES = 2


@dataclass(frozen=True)
class Target:
    """A cluster, and the programs for its use."""

    kubeconfig: str
    context: str
    kubectl_binary: str
    helm_binary: str

    def kubectl_command(self, *args: str) -> list[str]:
        """Return the command line of kubectl for this cluster."""
        return [self.kubectl_binary, "--kubeconfig", self.kubeconfig, "--context", self.context, *args]

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run kubectl on this cluster, and return its standard output."""
        return run(self.kubectl_command(*args), stdin=stdin, check=check, timeout=timeout)

    def helm(self, *args: str, timeout: float = 300) -> str:
        """Run helm on this cluster, and return its standard output."""
        command = [self.helm_binary, "--kubeconfig", self.kubeconfig, "--kube-context", self.context, *args]
        return run(command, timeout=timeout)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for tests."""
        return {"KUBECONFIG": self.kubeconfig, "PSTRAINING_CONTEXT": self.context, "HELM": self.helm_binary}


def given_context(env: Mapping[str, str]) -> str | None:
    """Return the context of another cluster that the environment names; None without one.

    Raises:
        ClusterError: the environment names a context, and no KUBECONFIG.
    """
    context = env.get("PSTRAINING_CONTEXT")
    if context and not env.get("KUBECONFIG"):
        raise ClusterError("PSTRAINING_CONTEXT is set: say in KUBECONFIG where it is defined")
    return context or None


class ClusterSession:
    """Starts the local cluster, with independent steps in parallel.

    Compilation uses the cores, and the installation of the images' packages the network: both run in parallel. Helm,
    which is needed last, is compiled while the cluster starts.
    """

    def __init__(self, progress: Progress, env: Mapping[str, str] = os.environ) -> None:
        """Read the environment, without starting anything."""
        self.progress = progress
        self.env = env
        self.context = given_context(env)
        self.layout: Layout = read_layout(env)
        self.toolbox = Toolbox(self.layout, progress)
        self._pool = ThreadPoolExecutor(max_workers=6)
        self._images: Future[Sequence[Image]] | None = None
        self._plan: ClusterPlan | None = None
        self._is_ours = False

    def helm(self) -> str:
        """Return the path of helm, from $HELM or built."""
        given = self.env.get("HELM") or (shutil.which("helm") if self.context else None)
        if given:
            return given
        self.toolbox.ensure(["helm"])
        return str(self.toolbox.binary("helm"))

    def up(self, *, with_images: bool = True) -> Target:
        """Start the cluster while the images are built; `image` and `load` wait for the build."""
        if self.context:
            return self._given(self.context)
        packages = self._pool.submit(ensure_packages, self.layout, self.progress)
        if with_images:
            self._images = self._pool.submit(self._build_images, packages)
        self.toolbox.ensure(CLUSTER_TOOLS)
        helm = self._pool.submit(self.helm)
        packages.result()
        with lifecycle.locked(self.layout, self.progress):
            # Not earlier: a demo may have started the cluster since this session began, and keeps it.
            was_up = lifecycle.saved_plan(self.layout) is not None
            self._is_ours = self._is_ours or not was_up
            cluster = lifecycle.up(self.layout, None if was_up else NODES, self.progress)
        self._plan = cluster.plan
        return Target(
            kubeconfig=str(self.layout.kubeconfig),
            context=self.layout.context,
            kubectl_binary=str(self.toolbox.binary("kubectl")),
            helm_binary=helm.result(),
        )

    def load(self, target: str) -> Image | None:
        """Load an image onto the nodes, and return it; None on a given cluster, which pulls it."""
        if self._plan is None or self._images is None:
            return None
        (image,) = [i for i in self._images.result() if f"/{target}:" in i.name]
        load.load(self.layout, self._plan, [image], self.progress)
        return image

    def load_all(self) -> None:
        """Load all images onto the nodes."""
        for target in TARGETS:
            self.load(target)

    def down(self) -> None:
        """Stop a cluster that `up` started, also partially; a cluster started by others is kept."""
        if self._is_ours:
            with lifecycle.locked(self.layout, self.progress):
                lifecycle.down(self.layout, self.progress)

    def close(self) -> None:
        """Wait for the running work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def aside(self, work: Callable[[], object]) -> Future[object]:
        """Start work in the background."""
        return self._pool.submit(work)

    def _build_images(self, packages: Future[None]) -> Sequence[Image]:
        packages.result()
        return ImageStore(self.layout, self.progress).ensure(TARGETS)

    def _given(self, context: str) -> Target:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            self.toolbox.ensure(["kubernetes"])
            kubectl = str(self.toolbox.binary("kubectl"))
        target = Target(self.env["KUBECONFIG"], context, kubectl, self.helm())
        try:
            target.kubectl("version", timeout=30)
        except (ClusterError, subprocess.SubprocessError) as error:
            raise ClusterError(f"context {context} of {self.env['KUBECONFIG']} cannot be used: {error}") from error
        return target
