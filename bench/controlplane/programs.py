"""The programs under test, each in a process, and their cost from /proc."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.usage import Usage, usage
from pstraining.kube.connection import CONTEXT, KUBECONFIG
from pstraining.runtime.local import hold_port

ROOT = Path(__file__).parents[2]


@dataclass
class Program:
    """One process."""

    process: subprocess.Popen[bytes]
    log: Path

    def usage(self) -> Usage:
        """Return the process's present cost."""
        return usage(self.process.pid)

    async def idle(self, seconds: float, limit: float, share: float = 0.05) -> None:
        """Wait until the process has used less than a share of a core for a given time."""
        end = asyncio.get_running_loop().time() + limit
        while True:
            before = self.usage().cpu
            await asyncio.sleep(seconds)
            if self.usage().cpu - before < share * seconds or asyncio.get_running_loop().time() > end:
                return

    async def ended(self, limit: float) -> int:
        """Wait for the process's end."""
        return await asyncio.to_thread(self.process.wait, limit)

    async def stop(self) -> None:
        """Send SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            await self.ended(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Starter:
    """Starts programs against one cluster."""

    target: dict[str, str]
    """The environment variables KUBECONFIG and PSTRAINING_CONTEXT."""
    folder: Path
    started: list[Program] = field(default_factory=list)
    """All started processes, including ended ones."""

    def start(self, name: str, *arguments: str, **settings: str) -> Program:
        """Start a Python program by its arguments."""
        # The operator rejects unknown variables with its prefix.
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PSTRAINING_")}
        env = {**kept, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}", **self.target, **settings}
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, *arguments], env=env, cwd=ROOT, stdout=out, stderr=out)
        program = Program(process, log)
        self.started.append(program)
        return program

    async def stop(self) -> None:
        """Stop all running processes at the block's end, also after an error."""
        await asyncio.gather(*(p.stop() for p in self.started if p.process.poll() is None))

    async def operator(
        self, namespace: str, *others: str, profile: Path | None = None, progress_port: int | None = None
    ) -> Program:
        """Start the operator for one or more namespaces, and wait until it is ready.

        Args:
            namespace: the first namespace, which also has the operator's Lease.
            others: further namespaces.
            profile: the file for a profile of the operator's CPU time.
            progress_port: the port for progress; None if the operator accepts none.
        """
        with ExitStack() as held:
            port = hold_port(held)
            settings = {
                "POD_NAME": f"bench-{port}",
                "POD_NAMESPACE": namespace,
                "PSTRAINING_NAMESPACES": ",".join((namespace, *others)),
                "PSTRAINING_HEALTH_PORT": str(port),
                "PSTRAINING_METRICS_PORT": "0",
            }
            if progress_port is not None:
                settings["PSTRAINING_PROGRESS_URL"] = f"https://127.0.0.1:{progress_port}"
                settings["PSTRAINING_PROGRESS_PORT"] = str(progress_port)
            profiler = ["-m", "cProfile", "-o", str(profile)] if profile else []
            program = self.start(f"operator-{namespace}", *profiler, "-m", "pstraining.controller.main", **settings)
            await _until_ready(program, port)
        return program

    async def watcher(self, namespace: str) -> Program:
        """Start the watch-only program and wait until it has listed everything."""
        program = self.start(f"watcher-{namespace}", "-m", "bench.controlplane.watcher", namespace)
        await asyncio.sleep(2.0)
        await program.idle(1.0, 60)
        return program

    def behind(self, kubeconfig: Path, context: str) -> "Starter":
        """Return the programs for the same cluster through a proxy."""
        return replace(self, target={KUBECONFIG: str(kubeconfig), CONTEXT: context})


async def _until_ready(program: Program, port: int) -> None:
    for _ in range(1200):
        if program.process.poll() is not None:
            raise RuntimeError(f"the operator has ended: {program.log.read_text()[-2000:]}")
        if await asyncio.to_thread(_answers, port):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the operator is not ready: {program.log.read_text()[-2000:]}")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
