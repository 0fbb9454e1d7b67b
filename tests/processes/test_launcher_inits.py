"""The launcher and a program behind an init, such as `tini` and `dumb-init`, which are in the entrypoints of images."""

import os
import signal
import sys
from collections.abc import Callable

from tests.processes.pods import FakePs, Pod, children, is_alive

NEVER = 600.0  # a grace period that the test does not wait for
INIT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:], start_new_session=True))"


def test_the_program_of_a_killed_init_does_not_run_beside_the_next_one(pod: Callable[..., Pod], ps: FakePs) -> None:
    """A killed init forwards nothing. Its program is in another process group, and a server would keep its port."""
    cluster = {"chief": ["127.0.0.1:1"], "ps": [ps.up().address]}
    chief = pod("chief", cluster, PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(sys.executable, "-c", INIT, *chief.puppet)
    program = chief.started()
    (init,) = children(chief.pid)
    ps.boot_id = "boot-2"
    os.kill(init, signal.SIGKILL)
    chief.started(2)
    assert not is_alive(program)
