"""A parameter server's start time and memory, compared with TensorFlow's server in Python."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.usage import usage
from pstraining.runtime.config.server import launcher_file
from pstraining.runtime.local import hold_port
from pstraining.runtime.transport import http2_probe, sockets

ROUNDS: Final = 7
LIMIT: Final = 120.0
PYTHON: Final = """
import json, os
import tensorflow as tf
config = json.loads(os.environ["TF_CONFIG"])
tf.distribute.Server(config["cluster"], job_name="ps", task_index=0, protocol="grpc").join()
"""
KINDS: Final = {"ours": [str(launcher_file()), "serve"], "Python": ["-c", PYTHON]}
RATIO: Final = "PS start to serving: seconds, ours / Python"
SECONDS: Final = {kind: f"PS start to serving: seconds, {kind}" for kind in KINDS}
RESIDENT: Final = {kind: f"idle PS: resident MB, {kind}" for kind in KINDS}
PRIVATE: Final = {kind: f"idle PS: private dirty MB, {kind}" for kind in KINDS}


def starts(effort: Effort) -> Taken:
    """Measure the time from the process's start until its port accepts connections, for both kinds alternately."""
    rounds = [{kind: _start(command) for kind, command in KINDS.items()} for _ in range(1 if effort.small else ROUNDS)]
    found: dict[str, list[float]] = {RATIO: [row["ours"][0] / row["Python"][0] for row in rounds]}
    for kind in KINDS:
        for number, names in enumerate((SECONDS, RESIDENT, PRIVATE)):
            found[names[kind]] = [row[kind][number] for row in rounds]
    return found


def _start(command: list[str]) -> tuple[float, float, float]:
    """Return the seconds until the server is ready, and its MB: resident, and private ones."""
    with ExitStack() as stack:
        address = f"127.0.0.1:{hold_port(stack)}"
        config = {"cluster": {"ps": [address]}, "task": {"type": "ps", "index": 0}}
        process = stack.enter_context(_process(command, {**os.environ, "TF_CONFIG": json.dumps(config)}))
        started = time.monotonic()
        while not http2_probe.is_alive(sockets.split(address)):
            if process.poll() is not None or time.monotonic() - started > LIMIT:
                raise TimeoutError("the server does not come to serve")
            time.sleep(0.002)
        seconds = time.monotonic() - started
        return seconds, usage(process.pid).rss, _dirty(process.pid)


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _dirty(pid: int) -> float:
    """Return the megabytes of private data; mapped files may be shared with other processes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Private_Dirty"].split()[0]) / 1024


MEASUREMENTS: Final = (Measurement("start", (RATIO, *SECONDS.values(), *RESIDENT.values(), *PRIVATE.values()), starts),)
