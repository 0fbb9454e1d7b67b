"""The builtin parameter server's connections: its first clients connect at once, and absent peers are noticed."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pstraining.launcher import contract, launch, probe
from tests.processes.pods import eventually
from tests.support.ports import free_neighbours
from tests.support.soak_marks import THOROUGH

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
ROUNDS, CLIENTS = 10 if THOROUGH else 5, 6
"""The numbers of rounds and of clients. A server without `hold_a_context` dies in three of eight rounds."""


@contextmanager
def serving() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Yield the address and the process of a builtin server that accepts connections."""
    address = f"127.0.0.1:{free_neighbours()}"
    config = {"cluster": {"ps": [address]}, "task": {"type": "ps", "index": 0}}
    environment = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"}
    ps = subprocess.Popen([sys.executable, str(Path(launch.__file__)), "serve"], env=environment)
    try:
        eventually(partial(_accepts, *contract.host_and_port(address)))
        yield address, ps
    finally:
        ps.kill()
        ps.wait()


def test_connections_to_a_server_are_kept_alive() -> None:
    """The kernel probes a server's connections, so that no call waits forever for a worker whose node is gone."""
    with serving() as (address, _), socket.create_connection(contract.host_and_port(address)) as mine:
        pair = f"{address.rpartition(':')[2]} {mine.getsockname()[1]}"
        eventually(lambda: pair in kept_alive())


def kept_alive() -> set[str]:
    """Return the local and the remote port of each connection on which the kernel's keepalive timer runs."""
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[5].startswith("02:"):
                found.add(" ".join(str(int(end.rpartition(":")[2], 16)) for end in fields[1:3]))
    return found


def test_clients_that_connect_at_once_do_not_kill_the_server() -> None:
    for number in range(ROUNDS):
        with serving() as (address, ps):
            crowd = [sys.executable, "-m", "tests.support.connection_storm", address, str(CLIENTS)]
            said = subprocess.run(crowd, check=True, capture_output=True, text=True, timeout=300).stdout
            assert ps.poll() is None, f"round {number}: the server ended with {ps.returncode}"
            assert said.split()[-1] == str(CLIENTS), f"round {number}: served {said}"


def _accepts(host: str, port: int) -> bool:
    return probe.is_open(host, port)
