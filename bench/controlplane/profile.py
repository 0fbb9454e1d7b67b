"""The operator's CPU time by package: one load under cProfile.

    python -m bench.controlplane.profile 100x1+2

cProfile itself about doubles the operator's CPU time: only the shares are meaningful.
"""

import asyncio
import os
import pstats
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.controlplane.__main__ import shape
from bench.controlplane.namespace import Bench, opened
from bench.controlplane.runs import QUIET, all_run
from bench.controlplane.workloads import Shape
from localcluster.layout import read_layout
from pstraining.kube.connection import CONTEXT, KUBECONFIG

OURS = tuple(f"pstraining/{part}" for part in ("core", "resources", "controller", "kube", "api"))
THEIRS = ("kopf", "aiohttp", "kubernetes", "pydantic", "asyncio", "logging", "json", "ssl", "prometheus_client", "yarl")
PACKAGES = (*OURS, *THEIRS)


async def run(bench: Bench, load: Shape, profile: Path) -> None:
    """Run the load under the profiler."""
    async with bench.namespace("profile") as namespace:
        program = await bench.starter.operator(namespace, profile=profile)
        await bench.create_jobs(namespace, load.manifests(namespace))
        await all_run(bench, namespace, load.jobs)
        await bench.audit.quiet(namespace, QUIET, bench.limit)
        await program.stop()


def shares(profile: Path) -> list[tuple[str, float]]:
    """Return each package's own time, without waits for the network."""
    own: Counter[str] = Counter()
    stats = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    for (file, _, function), (_, _, total, _, callers) in stats.items():
        if "epoll" in function or "'select'" in function:
            continue
        if file == "~":
            # A built-in belongs to its caller.
            for (caller, _, _), (_, _, part, _) in callers.items():
                own[_package(caller)] += part
        else:
            own[_package(file)] += total
    whole = sum(own.values())
    return [(package, seconds / whole) for package, seconds in own.most_common()]


def _package(file: str) -> str:
    return next((p for p in PACKAGES if f"/{p}" in file), "the rest")


def main() -> None:
    """Profile and print."""
    layout = read_layout(os.environ)
    target = {KUBECONFIG: str(layout.kubeconfig), CONTEXT: layout.context}

    async def work(folder: Path, profile: Path) -> None:
        async with opened(target, layout.audit_log, folder, 300) as bench:
            await run(bench, shape(sys.argv[1]), profile)

    with tempfile.TemporaryDirectory() as folder:
        profile = Path(sys.argv[2] if len(sys.argv) > 2 else f"{folder}/profile")
        asyncio.run(work(Path(folder), profile))
        for package, share in shares(profile):
            print(f"{share:6.1%} {package}")


if __name__ == "__main__":
    main()
