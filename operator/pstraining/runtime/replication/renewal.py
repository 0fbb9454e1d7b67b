"""Renewal of a process: it runs its program again in place, which frees memory that TensorFlow leaks per connection.

TensorFlow never releases the local part of a function that has parts on servers, and every connection traces the
functions again. With hot standbys a process connects once for each server that returns. After some connections it
replaces itself (`execve`). Process number, parent, group and streams stay, so no exit is seen and no failure is
counted. The next run receives the state that must outlive the renewal (`Kept`).

Imports no TensorFlow.
"""

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from pstraining.runtime.replication.witness import Json, Witness
from pstraining.runtime.telemetry.events import event

EACH: Final = 3
"""A worker's connections between two renewals. Measured: a small model's worker of 430 MB grows by 7 MB per connection;
the limit is 5 % of growth."""
CHIEF_EACH: Final = 8
"""The chief's connections between two renewals; it grows by 2 MB per connection."""
QUIET_SECONDS: Final = 60.0
"""Seconds without a new connection before a renewal: while servers fail in sequence, no task restarts."""
TURN_SECONDS: Final = 15.0
"""Seconds between the turns of two workers."""
TURNS: Final = 32
"""Number of turns; workers with higher indices share them."""
LATEST: Final = 8
"""Multiple of the usual connections between renewals after which a process no longer waits for a quiet job.

Workers do so after different numbers of connections, down to half of it: in mode Sync, all end a step at once, and none
would see that another one is about to leave. Of more than twelve workers, some share a number."""
ENV_KEPT: Final = "PSTRAINING_KEPT"
"""The environment variable with `Kept` as JSON, and the number of the process that it belongs to."""

LONGEST: Final = 100_000
"""Maximum characters of a witness's status that is kept: Linux limits a variable to 128 KiB."""


class RenewalDueError(Exception):
    """The process is to be renewed, and has no request under way.

    Args:
        epoch: see `Kept`.
    """

    def __init__(self, *, epoch: int = 0) -> None:
        super().__init__("the process has connected often enough to be renewed")
        self.epoch = epoch


@dataclass(frozen=True)
class Kept:
    """State that a process keeps over a renewal."""

    times: int = 0
    """Number of renewals so far."""
    left: float = 0.0
    """When the former run ended, in seconds on the machine's monotonic clock."""
    epoch: int = 0
    """The highest epoch that the process has used as chief in its term: no ballot may be used twice."""
    witness: Json | None = None
    """The worker's status as a witness, see `replication.witness`: for the chief the incarnation is unchanged."""


def is_due(connections: int, *, each: int, turn: int, quiet: float, settled: bool = True) -> bool:
    """Return whether a process is to be renewed.

    Args:
        connections: number of connections since the last renewal.
        each: number of connections after which the process is renewed as soon as the job is quiet.
        turn: the process's turn: 0 for the chief, then one for each worker.
        quiet: seconds since the last connection.
        settled: whether all members are in sync, and the process prepares no functions for a failure: it would train
            nothing until the function under way is prepared, and prepare all of them again. Otherwise, twice as many
            connections are allowed.
    """
    latest = LATEST * each - turn % (LATEST * each // 2)
    if connections >= (latest if settled else 2 * latest):
        return True
    return settled and connections >= each and quiet >= QUIET_SECONDS + turn % TURNS * TURN_SECONDS


def is_another_away(registered: Sequence[int], workers: int) -> bool:
    """Return whether a worker of the job has deregistered, as one that is being renewed has.

    Args:
        registered: the incarnation of each index's registered process; 0: none.
        workers: the job's number of workers.
    """
    return not all(registered[:workers])


class Program:
    """The program, environment and open files that this process was started with; create it before TensorFlow loads."""

    def __init__(self) -> None:
        self._process, self._folder = os.getpid(), ""
        with suppress(FileNotFoundError):
            self._folder = str(Path.cwd())
        self._inherited = _inheritable()

    def why_not_again(self) -> str:
        """Return the reason why the program cannot be run again in place; empty if it can."""
        if os.getpid() != self._process or multiprocessing.parent_process():
            return "this process was forked from the one that runs the program"
        file = getattr(sys.modules["__main__"], "__file__", None) or "<"
        if file.startswith("<") and "-c" not in sys.orig_argv:
            return "the program is no file that could be run again"
        if not os.access(sys.executable, os.X_OK):
            return f"there is no interpreter {sys.executable!r}"
        if _has_children():
            return "the program has started processes, which would not know its successor"
        return ""

    def run_again(self, kept: Kept, *, blocked: Collection[signal.Signals] = ()) -> NoReturn:
        """Replace this process by its program's next run. Only the main thread may: the kernel keeps its signal mask.

        Args:
            kept: state for the next run.
            blocked: signals that wait until the next run handles them.

        Raises:
            OSError: the interpreter cannot be run.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for descriptor in _inheritable() - self._inherited - {0, 1, 2}:
            with suppress(OSError):  # the file is already closed
                os.set_inheritable(descriptor, False)
        if self._folder:
            os.chdir(self._folder)
        sys.stdout.flush()
        sys.stderr.flush()
        encoded = json.dumps({"process": self._process, **asdict(kept)})
        os.execve(sys.executable, sys.orig_argv, {**_first_environment(), ENV_KEPT: encoded})  # noqa: S606


class Renewal:
    """Decides when this process is renewed, and renews it.

    Args:
        chief: whether the process is a chief that does not train.
        index: the worker's index.
        enabled: whether the process may be renewed at all.
        clock: returns seconds on a monotonic clock.
    """

    def __init__(
        self,
        *,
        chief: bool = False,
        index: int = 0,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._each, self._turn = (CHIEF_EACH, 0) if chief else (EACH, index + 1)
        self._clock, self._connections, self._since = clock, 0, clock()
        self._at_start: int | None = None
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._reported, self._refused_at, self._postponed_until = "", 0, -math.inf
        self.kept = taken()
        self.witness: Witness | None = None
        """The worker's witness, whose status is kept; None on a chief."""
        self._leave: Callable[[], None] = lambda: None

    def is_due(self, connections: int, *, settled: bool, is_another_away: Callable[[], bool] = lambda: False) -> bool:
        """Return whether the process is to be renewed now; report a reason that prevents it once.

        Connections before the first call do not count: a process that waits for its servers has traced no step.

        Args:
            connections: number of connections of this process.
            settled: see `renewal.is_due`.
            is_another_away: returns whether another worker trains nothing now; called if this one is to be renewed,
                which then waits for another turn. Twice the latest number of connections ends that wait.
        """
        if self._at_start is None:
            self._at_start = connections
        connections -= self._at_start
        if connections != self._connections:
            self._connections, self._since = connections, self._clock()
        quiet = self._clock() - self._since
        now = is_due(connections, each=self._each, turn=self._turn, quiet=quiet, settled=settled)
        if not (self._enabled and now) or connections == self._refused_at or self._clock() < self._postponed_until:
            return False
        if connections < 2 * LATEST * self._each and is_another_away():
            self._since = self._clock()
            self._postponed_until = self._since + TURN_SECONDS
            return False
        why_not = PROGRAM.why_not_again()
        self._refused_at = connections if why_not else 0  # the check reads every thread, and is called between steps
        if why_not and why_not != self._reported:
            self._reported = why_not
            event("not_renewed", reason=why_not)
        return not why_not

    def renew(self, due: RenewalDueError, *, blocked: Collection[signal.Signals] = ()) -> NoReturn:
        """Run the program again."""
        event("renews", times=self.kept.times + 1)
        self._leave()
        witness = self.witness.hand_on() if self.witness else None
        if len(json.dumps(witness)) > LONGEST:
            witness = None  # the next run is another incarnation without promises, and is admitted again
        kept = Kept(self.kept.times + 1, time.monotonic(), max(due.epoch, self.kept.epoch), witness)
        PROGRAM.run_again(kept, blocked=blocked)

    def connected(self, leave: Callable[[], None]) -> None:
        """Note how this process leaves the servers, now that it is connected; report a renewal."""
        self._leave = leave
        if self.kept.times:
            event("renewed", times=self.kept.times, seconds=round(time.monotonic() - self.kept.left, 3))


def taken() -> Kept:
    """Take the state of the former run from the environment, so that child processes do not inherit it."""
    fields = json.loads(os.environ.pop(ENV_KEPT, "{}"))
    return Kept(**fields) if fields.pop("process", None) == os.getpid() else Kept()


def _inheritable() -> frozenset[int]:
    """Return the descriptors that the next run would inherit."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the file is already closed
            if os.get_inheritable(int(name)):
                found.add(int(name))
    return frozenset(found)


def _has_children() -> bool:
    """Return whether this process has children that it has not waited for."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended, or the kernel lacks that file
            if Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii").strip():
                return True
    return False


def _first_environment() -> dict[str, str]:
    """Return the environment that this process was started with; the next run repeats its program's changes."""
    entries = [entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0")]
    found = {os.fsdecode(name): os.fsdecode(value) for name, is_given, value in entries if is_given}
    return found if "TF_CONFIG" in found else dict(os.environ)  # otherwise it was overwritten in memory


PROGRAM: Final = Program()
"""This process's program, created when this module is imported."""
