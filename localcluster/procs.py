"""Our daemons: starting, recognising and stopping them.

Invariant: a process is signalled only after its identity was checked (id, start time and boot), so
a reused process id is never hit. A daemon is kept as it is when it still runs what we would start
(same command, same configuration files, same network namespace); otherwise it is replaced.
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
# Joins the tracking group before anything else, so that no descendant can escape it.
LAUNCH = 'echo $$ > "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Record:
    """What is remembered of a started daemon."""

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
    """What should run.

    Attributes:
        inputs: files whose content matters: a change means a restart.
        netns: the name of the network namespace, or an empty string for the host's.
    """

    name: str
    argv: tuple[str, ...]
    netns: str
    inputs: tuple[Path, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def parse_start_time(stat: str) -> int | None:
    """The start time in a ``/proc/<pid>/stat`` text, or None for a zombie.

    The command's name (field 2) may hold blanks and brackets, so fields count from the last one.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it does not live."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def boot_id() -> str:
    """Identifies one boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def inode(path: Path) -> int:
    """The inode behind a path, 0 when there is none: names a namespace exactly."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def is_alive(record: Record) -> bool:
    """Whether the recorded process itself (not a successor with its id) still runs."""
    return record.boot == boot_id() and start_time(record.pid) == record.start


def digest_of(daemon: Daemon) -> str:
    """A hash of the command and of the content of its input files."""
    digest = hashlib.sha256(json.dumps([daemon.argv, daemon.env]).encode())
    for path in daemon.inputs:
        digest.update(path.read_bytes() if path.exists() else b"-")
    return digest.hexdigest()[:16]


class Supervisor:
    """Starts and stops the daemons of one instance; its memory is a folder of records."""

    def __init__(self, layout: Layout, procs_file: Path) -> None:
        self.layout = layout
        self.procs_file = procs_file

    def record(self, name: str) -> Record | None:
        """What is remembered of a daemon."""
        return read_record(self.layout.records / f"{name}.json")

    def ensure(self, daemon: Daemon) -> bool:
        """Have the daemon running; returns whether it had to be started."""
        record = self.record(daemon.name)
        if record is not None and self._is_current(record, daemon):
            return False
        if record is not None:
            stop([record])
        self._start(daemon)
        return True

    def alive(self, name: str) -> bool:
        """Whether the daemon runs."""
        record = self.record(name)
        return record is not None and is_alive(record)

    def log(self, name: str) -> Path:
        """A daemon's log file."""
        return self.layout.logs / f"{name}.log"

    def stop(self, names: Iterable[str]) -> None:
        """Stop daemons and forget them."""
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
            # Not "ip netns exec": that mounts a new /sys, which hides the cgroups.
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
        # The process outlives us on purpose: keep Python from warning about it.
        process.returncode = 0


def write_record(folder: Path, record: Record) -> None:
    """Write a record whole or not at all."""
    fresh = folder / f".{record.name}.new"
    fresh.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    fresh.rename(folder / f"{record.name}.json")


def read_record(path: Path) -> Record | None:
    """Read a record; None when it is missing or spoilt."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name."""
    found = (read_record(path) for path in sorted(folder.glob("*.json")))
    return [record for record in found if record is not None]


def stop(records: Sequence[Record], *, grace_s: float = 5.0) -> None:
    """SIGTERM, then SIGKILL after the grace time, all at once."""
    waiting = [record for record in records if send(record, signal.SIGTERM)]
    end = time.monotonic() + grace_s
    while waiting and time.monotonic() < end:
        time.sleep(0.02)
        waiting = [record for record in waiting if is_alive(record)]
    for record in waiting:
        send(record, signal.SIGKILL)


def send(record: Record, number: signal.Signals) -> bool:
    """Signal a recorded process if it is still the same; returns whether it was."""
    if not is_alive(record):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, number)
    return True
