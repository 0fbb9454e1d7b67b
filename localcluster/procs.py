"""The cluster's daemons: their start, identification and stop.

Invariant: a process is signalled only after a check of its identity (id, start time and boot). A
reused process id is never signalled. A running daemon is kept if its command, configuration files
and network namespace are unchanged; otherwise it is replaced.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.layout import Layout
from localcluster.shell import system_path

NETNS_FOLDER = Path("/run/netns")
# The shell joins the tracking group first: all descendants are then in the group.
LAUNCH = 'echo $$ > "$1" && shift && exec "$@"'
KILLED_S = 60.0
"""Maximum seconds until a killed process is gone on a busy machine."""


@dataclass(frozen=True)
class Record:
    """The record of a started daemon."""

    name: str
    pid: int
    start: int
    boot: str
    digest: str
    netns: str
    netns_inode: int
    log: str


@dataclass(frozen=True)
class Daemon:
    """A daemon that should run.

    Attributes:
        inputs: files that cause a restart if their content changes.
        netns: the name of the network namespace, or an empty string for the host's.
    """

    name: str
    argv: tuple[str, ...]
    netns: str
    inputs: tuple[Path, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def parse_start_time(stat: str) -> int | None:
    """Return the start time in a ``/proc/<pid>/stat`` text, in clock ticks since boot; None for a zombie.

    The command's name (field 2) may contain blanks and brackets: fields are counted after its last bracket.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def boot_id() -> str:
    """Return the id of the machine's boot; empty if it is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def inode(path: Path) -> int:
    """Return a path's inode number, which identifies a namespace; 0 if the path does not exist."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def is_alive(record: Record) -> bool:
    """Return whether the recorded process runs, and not a later one with its id."""
    return record.boot == boot_id() and start_time(record.pid) == record.start


def digest_of(daemon: Daemon) -> str:
    """Return a hash of the command, its environment and the content of its input files."""
    digest = hashlib.sha256(json.dumps([daemon.argv, daemon.env]).encode())
    for path in daemon.inputs:
        digest.update(path.read_bytes() if path.exists() else b"-")
    return digest.hexdigest()[:16]


class Supervisor:
    """Starts and stops the daemons of one instance, and records them in a folder."""

    def __init__(self, layout: Layout, procs_file: Path) -> None:
        self.layout = layout
        self.procs_file = procs_file

    def record(self, name: str) -> Record | None:
        """Return a daemon's record; None without one."""
        return read_record(self.layout.records / f"{name}.json")

    def ensure(self, daemon: Daemon) -> bool:
        """Start the daemon unless it runs unchanged; return whether it was started."""
        record = self.record(daemon.name)
        if record is not None and self._is_current(record, daemon):
            return False
        if record is not None:
            stop([record])
        self._start(daemon)
        return True

    def alive(self, name: str) -> bool:
        """Return whether the daemon runs."""
        record = self.record(name)
        return record is not None and is_alive(record)

    def log(self, name: str) -> Path:
        """Return the path of a daemon's log."""
        return self.layout.logs / f"{name}.log"

    def stop(self, names: Iterable[str]) -> None:
        """Stop daemons and delete their records."""
        records = [record for name in names if (record := self.record(name)) is not None]
        stop(records)
        for record in records:
            (self.layout.records / f"{record.name}.json").unlink(missing_ok=True)

    def _is_current(self, record: Record, daemon: Daemon) -> bool:
        namespace = inode(NETNS_FOLDER / daemon.netns) if daemon.netns else 0
        return is_alive(record) and record.digest == digest_of(daemon) and record.netns_inode == namespace

    def _start(self, daemon: Daemon) -> None:
        self.layout.records.mkdir(parents=True, exist_ok=True)
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        command = ["/bin/sh", "-c", LAUNCH, "sh", str(self.procs_file)]
        if daemon.netns:
            # "ip netns exec" would mount a new /sys without the cgroups.
            command += ["nsenter", f"--net={NETNS_FOLDER / daemon.netns}"]
        log = self.log(daemon.name)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*command, *daemon.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={"PATH": system_path(), "HOME": str(self.layout.run), **dict(daemon.env)},
            )
        record = Record(
            name=daemon.name,
            pid=process.pid,
            start=start_time(process.pid) or -1,
            boot=boot_id(),
            digest=digest_of(daemon),
            netns=daemon.netns,
            netns_inode=inode(NETNS_FOLDER / daemon.netns) if daemon.netns else 0,
            log=str(log),
        )
        write_record(self.layout.records, record)
        # The daemon outlives this process; a return code prevents Python's warning about a running child.
        process.returncode = 0


def write_record(folder: Path, record: Record) -> None:
    """Write a record atomically."""
    fresh = folder / f".{record.name}.new"
    fresh.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    fresh.rename(folder / f"{record.name}.json")


def read_record(path: Path) -> Record | None:
    """Read a record; None if it is missing or damaged."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_records(folder: Path) -> list[Record]:
    """Return all readable records of a folder, in the order of their names."""
    found = (read_record(path) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def stop(records: Sequence[Record], *, grace_s: float = 5.0) -> None:
    """Send SIGTERM to all recorded processes, and SIGKILL after the grace time to those that still run.

    All have then ended, and successors can use their ports.
    """
    waiting = [record for record in records if send(record, signal.SIGTERM)]
    end = time.monotonic() + grace_s
    while waiting and time.monotonic() < end:
        time.sleep(0.02)
        waiting = [record for record in waiting if is_alive(record)]
    for record in waiting:
        send(record, signal.SIGKILL)
    end = time.monotonic() + KILLED_S
    while any(map(is_alive, waiting)) and time.monotonic() < end:
        time.sleep(0.02)


def send(record: Record, number: signal.Signals) -> bool:
    """Signal a recorded process; return False if it no longer runs."""
    if not is_alive(record):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, number)
    return True
