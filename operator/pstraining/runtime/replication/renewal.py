"""A process runs its program again in place, so that what TensorFlow keeps of every connection goes with its memory.

Of a function with parts on servers TensorFlow never releases the part that is here, and functions are made ready anew
with every connection. With hot standbys a process lives through any number of them: one for each server that comes
back. So after some it lets go of all that is its own and replaces itself (`execve`): the number, the parent, the group
and the streams of the process stay as they are, nobody sees an end, and no failure is counted. What its successor must
not have forgotten it hands on (`Kept`).

Knows no TensorFlow.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

from pstraining.runtime.replication.witness import Json, Witness
from pstraining.runtime.telemetry.events import event

EACH: Final = 3
"""A worker's connections from one renewal to the next. Measured: a small model's worker of 430 MB grows by 7 MB with
each; none is to grow by more than 5 %."""
CHIEF_EACH: Final = 8
"""The chief's, which grows by 2 MB."""
QUIET_SECONDS: Final = 60.0
"""How long nobody must have come back: while servers are lost one after the other nobody is to be away as well."""
TURN_SECONDS: Final = 15.0
"""From one worker's turn to the next one's."""
TURNS: Final = 32
LATEST: Final = 8
"""Times as many connections are not waited for quiet after."""
ENV_KEPT: Final = "PSTRAINING_KEPT"
"""What a process hands on to itself, as JSON; of another process it says nothing."""

LONGEST: Final = 100_000
"""Maximum characters of a witness's status that is handed on: Linux limits a variable to 128 KiB."""


class RenewalDueError(Exception):
    """Nothing of this process is under way: it may run its program again.

    Args:
        epoch: see `Kept`.
    """

    def __init__(self, *, epoch: int = 0) -> None:
        super().__init__("TensorFlow has kept something of enough connections")
        self.epoch = epoch


@dataclass(frozen=True)
class Kept:
    """What a process knows of itself before it was renewed."""

    times: int = 0
    """How often it was."""
    left: float = 0.0
    """When, on the machine's monotonic clock."""
    epoch: int = 0
    """The highest that it has used as the chief of its term: none may be used twice."""
    witness: Json | None = None
    """The worker's status as a witness, see `replication.witness`: to the chief it is the same incarnation."""


def is_due(connections: int, *, each: int, turn: int, quiet: float, whole: bool = True) -> bool:
    """Whether a process is to be renewed after so many connections.

    Args:
        connections: that it has made anew since it was renewed.
        each: after so many it is, as soon as there is quiet.
        turn: whose it is: the chief's the first, and then one worker's after the other.
        quiet: seconds since the last one.
        whole: whether nobody is missing. If somebody is, it waits for a better moment, though not for ever.
    """
    latest = LATEST * each - turn % each
    if connections >= (latest if whole else 2 * latest):
        return True
    return whole and connections >= each and quiet >= QUIET_SECONDS + turn % TURNS * TURN_SECONDS


class Program:
    """What this process was started with; make it before TensorFlow is loaded."""

    def __init__(self) -> None:
        self._process, self._folder = os.getpid(), ""
        with suppress(FileNotFoundError):
            self._folder = str(Path.cwd())
        self._inherited = _inheritable()

    def why_not_again(self) -> str:
        """Why it cannot be run again in place; empty if it can."""
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
        """Replace this process by its program's next run; only the main thread may, as the kernel keeps its settings.

        Args:
            kept: for the next run.
            blocked: signals that are to wait until it is ready for them.

        Raises:
            OSError: the interpreter cannot be run.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for descriptor in _inheritable() - self._inherited - {0, 1, 2}:
            with suppress(OSError):  # it is closed by now
                os.set_inheritable(descriptor, False)
        if self._folder:
            os.chdir(self._folder)
        sys.stdout.flush()
        sys.stderr.flush()
        told = json.dumps({"process": self._process, **asdict(kept)})
        os.execve(sys.executable, sys.orig_argv, {**_first_environment(), ENV_KEPT: told})  # noqa: S606


class Renewal:
    """When this process is renewed.

    Args:
        chief: whether it has nothing but the chief's duty.
        index: a worker's.
        enabled: whether it ever is.
        clock: seconds that only grow.
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
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._told, self._refused_at = "", 0
        self.kept = taken()
        self.witness: Witness | None = None
        """This process's, if it is a worker's."""
        self._leave: Callable[[], None] = lambda: None

    def is_due(self, connections: int, *, whole: bool) -> bool:
        """Whether it is to be renewed now; says why, if that is impossible."""
        if connections != self._connections:
            self._connections, self._since = connections, self._clock()
        quiet = self._clock() - self._since
        now = is_due(connections, each=self._each, turn=self._turn, quiet=quiet, whole=whole)
        if not (self._enabled and now) or connections == self._refused_at:
            return False
        why_not = PROGRAM.why_not_again()
        self._refused_at = connections if why_not else 0  # it is asked between any two steps, and looks at every thread
        if why_not and why_not != self._told:
            self._told = why_not
            event("not_renewed", reason=why_not)
        return not why_not

    def renew(self, due: RenewalDueError, *, blocked: Collection[signal.Signals] = ()) -> NoReturn:
        """Run the program again."""
        event("renews", times=self.kept.times + 1)
        self._leave()
        witness = self.witness.hand_on() if self.witness else None
        if len(json.dumps(witness)) > LONGEST:
            witness = None  # then it is another incarnation, which has promised nothing and is admitted again
        kept = Kept(self.kept.times + 1, time.monotonic(), max(due.epoch, self.kept.epoch), witness)
        PROGRAM.run_again(kept, blocked=blocked)

    def connected(self, leave: Callable[[], None]) -> None:
        """This process is connected, and takes leave of the servers so; say that it was renewed, if it was."""
        self._leave = leave
        if self.kept.times:
            event("renewed", times=self.kept.times, seconds=round(time.monotonic() - self.kept.left, 3))


def taken() -> Kept:
    """What this process has handed on to itself; programs that it starts do not inherit it."""
    told = json.loads(os.environ.pop(ENV_KEPT, "{}"))
    return Kept(**told) if told.pop("process", None) == os.getpid() else Kept()


def _inheritable() -> frozenset[int]:
    """What a process in this one's place would find open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is closed by now
            if os.get_inheritable(int(name)):
                found.add(int(name))
    return frozenset(found)


def _has_children() -> bool:
    """Whether this process has started others that it has not waited for."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended, or the kernel does not tell
            if Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii").strip():
                return True
    return False


def _first_environment() -> dict[str, str]:
    """What this process was started with: what its program has changed since, it changes again."""
    entries = [entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0")]
    found = {os.fsdecode(name): os.fsdecode(value) for name, is_given, value in entries if is_given}
    return found if "TF_CONFIG" in found else dict(os.environ)  # else somebody has written over it


PROGRAM: Final = Program()
"""This process's, from when the first of this package is imported."""
