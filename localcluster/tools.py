"""Builds the cluster's programs from pinned Go modules, once, into a cache.

Each tool has a folder ``tools/<name>/`` with a go.mod and a go.sum. The cache key covers these
files, the flags and the Go version: a program is built again if and only if one of them changes.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.gotoolchain import Go, find_go
from localcluster.layout import Layout
from localcluster.progress import Progress, Step
from localcluster.shell import run, run_logged

# Without DWARF, which saves a tenth of the time; these programs are not debugged with delve.
FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")
BUILD_ENV = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}


@dataclass(frozen=True)
class Tool:
    """The programs and data files of one go.mod.

    Attributes:
        binaries: (package, name of the program); empty if only `extra` is needed.
        version_module: the module whose version is stamped into the programs.
        extra: (module, path in it) of data files to keep beside the programs.
        tags: build tags.
    """

    name: str
    binaries: tuple[tuple[str, str], ...]
    version_module: str = ""
    stamp: bool = False
    extra: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = field(default=(), repr=False)


def _kubernetes() -> tuple[tuple[str, str], ...]:
    names = (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
    )
    return tuple((f"k8s.io/kubernetes/cmd/{name}", name) for name in names)


# In the order of builds: the longest first, and tools of the start before those of the demo.
TOOLS = (
    Tool("kubernetes", _kubernetes(), "k8s.io/kubernetes", stamp=True),
    Tool("etcd", (("go.etcd.io/etcd/server/v3", "etcd"),), "go.etcd.io/etcd/server/v3"),
    Tool("pause", ((".", "pause"),)),
    Tool("coredns", ((".", "coredns"),), "github.com/coredns/coredns"),
    Tool("helm", (("helm.sh/helm/v3/cmd/helm", "helm"),), "helm.sh/helm/v3"),
    Tool(
        "kwok",
        (("sigs.k8s.io/kwok/cmd/kwok", "kwok"),),
        "sigs.k8s.io/kwok",
        extra=(("sigs.k8s.io/kwok", "kustomize/stage"),),
    ),
    Tool(
        "scheduler-plugins",
        (("sigs.k8s.io/scheduler-plugins/cmd/scheduler", "gang-scheduler"),),
        "sigs.k8s.io/scheduler-plugins",
        extra=(("sigs.k8s.io/scheduler-plugins", "config/crd/bases"),),
    ),
    Tool(
        "prometheus",
        tuple((f"github.com/prometheus/prometheus/cmd/{name}", name) for name in ("prometheus", "promtool")),
        "github.com/prometheus/prometheus",
        # Without the clients of a score of clouds, and without the pages for browsers.
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    ),
    Tool(
        "prometheus-operator",
        (),
        extra=(("github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd"),),
    ),
    Tool(
        "kueue",
        (("sigs.k8s.io/kueue/cmd/kueue", "kueue"),),
        "sigs.k8s.io/kueue",
        extra=(
            ("sigs.k8s.io/kueue", "config/components/crd/bases"),
            ("sigs.k8s.io/kueue", "config/components/webhook"),
        ),
    ),
    Tool("kube-score", (("github.com/zegl/kube-score/cmd/kube-score", "kube-score"),), "github.com/zegl/kube-score"),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
CLUSTER_TOOLS = ("kubernetes", "etcd", "pause", "coredns")
DEFAULT_TOOLS = (*CLUSTER_TOOLS, "helm")


def tool_named(name: str) -> Tool:
    """Return the tool of this name, or the tool with a program of this name.

    Raises:
        ClusterError: no tool or program has this name.
    """
    for tool in TOOLS:
        if name == tool.name or name in [binary for _, binary in tool.binaries]:
            return tool
    raise ClusterError(f"no tool {name!r}; there are: {', '.join(BY_NAME)}")


def module_version(go_mod: str, module: str) -> str:
    """Return the version that a go.mod requires of a module; empty without one."""
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    return found.group(1) if found else ""


def linker_flags(tool: Tool, go_mod: str) -> str:
    """Return the linker's flags: no symbol table, and the version if the tool's `stamp` is set."""
    if not tool.stamp:
        return "-s -w"
    version = module_version(go_mod, tool.version_module)
    major, minor = version.removeprefix("v").split(".")[:2]
    place = "k8s.io/component-base/version"
    return f"-s -w -X {place}.gitVersion={version} -X {place}.gitMajor={major} -X {place}.gitMinor={minor}"


def cache_key(tool: Tool, files: Iterable[tuple[str, bytes]], go_version: str) -> str:
    """Return a hash of all inputs of a build."""
    digest = hashlib.sha256()
    for part in (repr(tool), " ".join(FLAGS), repr(sorted(BUILD_ENV.items())), go_version, *tool.tags):
        digest.update(part.encode() + b"\0")
    for name, content in sorted(files):
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:16]


def source_files(layout: Layout, tool: Tool) -> list[tuple[str, bytes]]:
    """Return the names and contents of the files in the key: go.mod, go.sum and the folder's Go files."""
    folder = layout.tools / tool.name
    names = ["go.mod", "go.sum", *sorted(path.name for path in folder.glob("*.go"))]
    return [(name, (folder / name).read_bytes()) for name in names if (folder / name).exists()]


class Toolbox:
    """Builds tools on demand, and returns their paths."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self.layout = layout
        self.progress = progress
        self._go: Go | None = None

    @property
    def go(self) -> Go:
        """The toolchain, which is searched for on first use."""
        if self._go is None:
            with self._locked(self.layout.cache / "toolchains" / "go"):
                self._go = find_go(self.layout, self.progress)
        return self._go

    def folder(self, tool: Tool) -> Path:
        """Return the folder of a tool's programs, built or not."""
        key = cache_key(tool, source_files(self.layout, tool), self.go.version)
        return self.layout.cache / "bin" / f"{tool.name}-{key}"

    def binary(self, name: str) -> Path:
        """Return the path of a program."""
        return self.folder(tool_named(name)) / name

    def ensure(self, names: Sequence[str]) -> None:
        """Build missing tools, two at a time because linking uses one core only."""
        missing = [BY_NAME[name] for name in names if not self.folder(BY_NAME[name]).is_dir()]
        if not missing:
            return
        self.progress.say(f"to build with {self.go.version}: {', '.join(t.name for t in missing)}")
        with ThreadPoolExecutor(max_workers=2) as pool:
            jobs = [
                pool.submit(self._build, tool, f"{number} of {len(missing)}")
                for number, tool in enumerate(missing, start=1)
            ]
        for job in jobs:
            job.result()

    def path_folder(self, names: Sequence[str]) -> Path:
        """Return a folder of links to all programs of the named tools, for PATH."""
        folders = [self.folder(BY_NAME[name]) for name in names]
        digest = hashlib.sha256("\n".join(folder.name for folder in folders).encode())
        target = self.layout.cache / "bin" / f"path-{digest.hexdigest()[:16]}"
        target.mkdir(parents=True, exist_ok=True)
        for name, folder in zip(names, folders, strict=True):
            for _, binary in BY_NAME[name].binaries:
                link = target / binary
                if not link.is_symlink():
                    fresh = target / f".{binary}.{os.getpid()}"
                    fresh.symlink_to(folder / binary)
                    fresh.rename(link)
        return target

    def _build(self, tool: Tool, position: str) -> None:
        target = self.folder(tool)
        with self._locked(target), self.progress.step(f"building {tool.name} ({position})") as step:
            if target.is_dir():
                return
            work = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            try:
                if tool.binaries:
                    self._compile(tool, work, step)
                for module, path in tool.extra:
                    where = json.loads(self._run_go(tool, ["mod", "download", "-json", module]))["Dir"]
                    shutil.copytree(Path(where) / path, work / Path(path).name)
                    run(["chmod", "-R", "u+w", str(work)])
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def _compile(self, tool: Tool, work: Path, step: Step) -> None:
        folder = self.layout.tools / tool.name
        flags = linker_flags(tool, (folder / "go.mod").read_text(encoding="utf-8"))
        tags = ["-tags", ",".join(tool.tags)] if tool.tags else []
        count = 0

        def on_line(_: str) -> None:
            nonlocal count
            count += 1
            step.detail = f"{count} packages compiled"

        # A single package may have any output name; several packages keep the names of their folders.
        single = len(tool.binaries) == 1
        output = str(work / tool.binaries[0][1]) if single else f"{work}/"
        # Images are built at the same time, mostly wait for the network, and take precedence on the processor.
        run_logged(
            ["nice", "-n", "10", str(self.go.binary), "build", "-v", *FLAGS, *tags, "-ldflags", flags, "-o", output]
            + [package for package, _ in tool.binaries],
            self.layout.cache / "logs" / f"build-{tool.name}.log",
            what=f"building {tool.name}",
            env=self._env(),
            cwd=folder,
            on_line=on_line,
        )

    def _run_go(self, tool: Tool, args: Sequence[str]) -> str:
        return run([str(self.go.binary), *args], env=self._env(), cwd=self.layout.tools / tool.name)

    def _env(self) -> dict[str, str]:
        flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false".strip()
        return {**BUILD_ENV, "GOFLAGS": flags}

    @contextmanager
    def _locked(self, target: Path) -> Iterator[None]:
        """Prevent two callers, such as a demo and a lint run, from building the same at once."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".lock-{target.name}").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
