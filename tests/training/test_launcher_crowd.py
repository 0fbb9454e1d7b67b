"""The builtin parameter server survives the simultaneous connection of its first clients."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pstraining.launcher import contract, launch, probe
from tests.processes.pods import eventually
from tests.support.ports import free_neighbours
from tests.support.soak_marks import ALL

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
ROUNDS, CLIENTS = 10 if ALL else 5, 6
"""The numbers of rounds and of clients. A server without `hold_a_context` dies in three of eight rounds."""


def test_clients_that_connect_at_once_do_not_kill_the_server() -> None:
    for number in range(ROUNDS):
        address = f"127.0.0.1:{free_neighbours()}"
        config = {"cluster": {"ps": [address]}, "task": {"type": "ps", "index": 0}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"}
        ps = subprocess.Popen([sys.executable, str(Path(launch.__file__)), "serve"], env=environment)
        try:
            eventually(partial(_accepts, *contract.host_and_port(address)))
            crowd = [sys.executable, "-m", "tests.support.connection_storm", address, str(CLIENTS)]
            said = subprocess.run(crowd, check=True, capture_output=True, text=True, timeout=300).stdout
            assert ps.poll() is None, f"round {number}: the server ended with {ps.returncode}"
            assert said.split()[-1] == str(CLIENTS), f"round {number}: served {said}"
        finally:
            ps.kill()
            ps.wait()


def _accepts(host: str, port: int) -> bool:
    return probe.is_open(host, port)
