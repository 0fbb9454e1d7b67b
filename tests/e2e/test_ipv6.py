"""The operator and a training job on a cluster whose nodes, pods and Services only have IPv6 addresses."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from localcluster.layout import read_layout
from tests.support.soak_marks import in_all

ROOT = Path(__file__).parents[2]
INSTANCE = "61"
"""The instance of the cluster, which runs beside that of the other tests."""

pytestmark = [pytest.mark.cluster, pytest.mark.alone]


@pytest.fixture
def ipv6_cluster() -> Iterator[Mapping[str, str]]:
    """Return the environment for tests on such a cluster, which is deleted afterwards."""
    environment = {**os.environ, "PSTRAINING_INSTANCE": INSTANCE}
    layout = read_layout(environment)

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "localcluster", *arguments], cwd=ROOT, check=True, env=environment)

    try:
        run("up", "--ipv6", "--nodes", "1")
        run("load-image", "operator", "runtime")
        yield {**environment, "KUBECONFIG": str(layout.kubeconfig), "PSTRAINING_CONTEXT": layout.context}
    finally:
        run("down", "--purge")


@in_all("tests/unit/launcher/test_listener.py::test_every_listener_answers_both_ip_families")  # a cluster of its own
def test_digits_trains_on_an_ipv6_only_cluster(ipv6_cluster: Mapping[str, str]) -> None:
    """The chart's operator becomes ready, and Async and Sync jobs succeed."""
    tests = [f"tests/e2e/test_training.py::test_digits[{mode}]" for mode in ("Async", "Sync-Int8")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
    done = subprocess.run(command, cwd=ROOT, env=dict(ipv6_cluster), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "2 passed" in done.stdout
