"""Operators as separate processes, forked within milliseconds from a parent that has imported all modules.

A killed operator is really dead, and its successor has no memory; a fork only saves the second that the import takes.
The parent is a process with one thread and no event loop, so that forking it is safe.
"""

import asyncio
import importlib
import json
import os
import select
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Forked:
    """One operator's process."""

    pid: int
    ended: "asyncio.Future[int]"
    """The exit status; negative for a signal."""

    def kill(self) -> None:
        """Send SIGKILL."""
        if not self.ended.done():
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Forks:
    """The campaign's handle on the parent of all operators."""

    process: asyncio.subprocess.Process
    _asked: "asyncio.Queue[asyncio.Future[Forked]]" = field(default_factory=asyncio.Queue)
    _living: dict[int, Forked] = field(default_factory=dict)
    _reader: "asyncio.Task[None] | None" = None

    @classmethod
    async def open(cls) -> "Forks":
        """Start the parent."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.campaign.forks", stdin=pipe, stdout=pipe, env=environment, cwd=ROOT
        )
        made = cls(process)
        made._reader = asyncio.create_task(made._read())
        return made

    async def start(self, environment: dict[str, str], log: Path, switched_off: str = "") -> Forked:
        """Fork an operator."""
        answer: asyncio.Future[Forked] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(answer)
        order = {"environment": environment, "log": str(log), "switched_off": switched_off}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return await answer

    async def close(self) -> None:
        """End the parent and all running operators."""
        for forked in list(self._living.values()):
            forked.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            reported = json.loads(line)
            if "started" in reported:
                ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                self._living[reported["started"]] = forked = Forked(reported["started"], ended)
                self._asked.get_nowait().set_result(forked)
            else:
                self._living.pop(reported["ended"]).ended.set_result(reported["status"])


def serve() -> None:
    """Serve as the parent: requests are lines on standard input, and answers are lines on standard output."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rest = b""
    while True:
        ready, _, _ = select.select([0, readable], [], [])
        if readable in ready:
            os.read(readable, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _say({"started": _fork(json.loads(line))})
        _reap()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _operate(order)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001 - a child must never continue as a second parent
        traceback.print_exc()
    os._exit(1)


def _operate(order: dict[str, Any]) -> None:
    from pstraining.controller import main
    from tests.campaign import guards

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    guards.hurry()
    if order["switched_off"]:
        guards.GUARDS[order["switched_off"]].switch_off()
    main.main()


if __name__ == "__main__":
    # Everything is imported before the first fork, so that all operators run the code of the campaign's beginning.
    for needed in ("pstraining.controller.main", "tests.campaign.guards"):
        importlib.import_module(needed)
    serve()
