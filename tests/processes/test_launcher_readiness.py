"""A pod's readiness: the launcher's status port reports whether the program runs."""

import json
import socket
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.processes.pods import FakePs, eventually
from tests.processes.test_launcher_program import MakePod, chief_of
from tests.support.ports import free_port


def readiness(port: int) -> tuple[int, str]:
    """Return the response of the launcher's status port: the code of /readyz, and the state."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return answer.status, json.load(answer)["state"]
    except HTTPError as refused:
        return refused.code, json.load(refused)["state"]
    except URLError:
        return 0, ""


def test_a_pod_is_ready_while_its_program_runs(pod: MakePod, ps: FakePs) -> None:
    port = free_port()
    chief = pod("chief", chief_of(ps), PSTRAINING_STATUS_PORT=str(port))
    chief.start(*chief.puppet)
    eventually(lambda: readiness(port) == (503, "Waiting"))
    ps.up()
    chief.started()
    eventually(lambda: readiness(port) == (200, "Running"))


def test_a_pod_that_idles_is_not_ready(pod: MakePod, ps: FakePs) -> None:
    port = free_port()
    chief = pod("chief", chief_of(ps.up()), PSTRAINING_STATUS_PORT=str(port))
    (chief.run_dir / "failed").write_text("1")
    chief.start(*chief.puppet)
    eventually(lambda: readiness(port) == (503, "Waiting"))
    chief.kill()
    assert chief.wait() == 143


def test_an_occupied_status_port_costs_only_readiness(pod: MakePod, ps: FakePs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("::", 0), family=socket.AF_INET6):
        chief = pod("chief", chief_of(ps.up()), PSTRAINING_STATUS_PORT=str(taken.getsockname()[1]))
        chief.start(*chief.puppet)
        chief.started()
        assert f"port {taken.getsockname()[1]} is taken" in chief.log()
