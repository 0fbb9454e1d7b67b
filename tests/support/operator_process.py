"""The operator as a process of this machine, for tests that kill it or put a proxy before the API server.

Operators of this checkout are forked from a parent that has imported them (tests/support/warm.py).
"""

import atexit
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from tests.support.kube import Target, wait_for
from tests.support.ports import free_port
from tests.support.warm import Parent, WarmProcess

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", "pstraining.controller.main")
ENDS_SECONDS = 90
"""Seconds within which a busy machine ends an operator."""


@cache
def warm_parent() -> Parent:
    """Return this process's warm parent of operators, which ends with this process."""
    parent = Parent("operator", PYTHONPATH=str(ROOT / "operator"))
    atexit.register(parent.close)
    return parent


class OperatorProcess:
    """One operator, for one namespace."""

    def __init__(self, target: Target, namespace: str, folder: Path) -> None:
        self.target, self.namespace = target, namespace
        self.log = folder / "operator.log"
        self.health_port, self.metrics_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | WarmProcess | None = None

    def start(
        self, *, wait: bool = True, root: Path = ROOT, settings: dict[str, str] | None = None, warm: bool = True
    ) -> None:
        """Start it; `root` is the checkout to run, `settings` further environment variables.

        Another checkout is run in a new process, as is this one without `warm`.
        """
        # The operator refuses unknown variables of its prefix, and the tests have some of their own.
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PSTRAINING_")},
            "PYTHONPATH": str(root / "operator"),
            "KUBECONFIG": self.target.kubeconfig,
            "PSTRAINING_CONTEXT": self.target.context,
            "POD_NAME": "operator-under-test",
            "POD_NAMESPACE": self.namespace,
            "PSTRAINING_NAMESPACES": self.namespace,
            "PSTRAINING_HEALTH_PORT": str(self.health_port),
            "PSTRAINING_METRICS_PORT": str(self.metrics_port),
            **(settings or {}),
        }
        with self.log.open("ab") as log:
            if warm and root == ROOT:
                self.process = warm_parent().spawn(PROGRAM, environment, log.fileno())
            else:
                self.process = subprocess.Popen([sys.executable, *PROGRAM], env=environment, stdout=log, stderr=log)
        if wait:
            wait_for(self.ready, f"the operator is ready; its log: {self.log}", 60)

    def ready(self) -> bool:
        """Whether its readiness probe answers 200."""
        assert self.process is not None
        assert self.process.poll() is None, f"the operator ended: {self.log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(ENDS_SECONDS)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(ENDS_SECONDS)
