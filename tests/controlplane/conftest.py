"""A real API server for tests: the one that KUBECONFIG and PSTRAINING_CONTEXT name, or the local cluster if it is up.

Every test has its own namespace. Operators run as separate processes, behind a proxy that records their requests.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from localcluster.layout import read_layout
from pstraining.core.actions import Kind
from pstraining.kube.client import APPLY, KubeClient
from pstraining.kube.connection import CONTEXT, KUBECONFIG, load_configuration
from pstraining.kube.errors import ApiError, Conflict, NotFound, Transient
from tests.campaign.judging import judge
from tests.contract.test_port_fake import job
from tests.support.api_proxy import ApiProxy, serving
from tests.support.ports import free_port

__all__ = ["judge"]

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml"
STAND_IN = "tests.support.fakekube_decisions"
REAL = "pstraining.controller.main"
CANARY_SECONDS = 2.0
BUSY_SECONDS = 90.0
"""Seconds within which a busy machine starts and ends an operator, and an operator acts."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> dict[str, str]:
    """Return the environment that names the cluster and the context; no other cluster is ever used."""
    path, context = os.environ.get(KUBECONFIG), os.environ.get(CONTEXT)
    if path:
        if not context:
            pytest.fail(f"{KUBECONFIG} is set: name the context that the tests may use in {CONTEXT}")
        return {KUBECONFIG: path, CONTEXT: context}
    layout = read_layout(os.environ)
    if not layout.kubeconfig.exists():
        pytest.fail(f"no cluster: run `python3 -m localcluster up`, or set {KUBECONFIG} and {CONTEXT}")
    return {KUBECONFIG: str(layout.kubeconfig), CONTEXT: layout.context}


@asynccontextmanager
async def _namespace(cluster: dict[str, str]) -> AsyncIterator[tuple[KubeClient, str]]:
    """Create a client and a new namespace, with the CRD installed."""
    client = KubeClient(await load_configuration(cluster))
    try:
        await _apply_crd(client)
        name = f"pstraining-test-{uuid.uuid4().hex[:8]}"
        await _repeated(client, "POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        try:
            yield client, name
        finally:
            await _repeated(client, "DELETE", f"/api/v1/namespaces/{name}")
    finally:
        await client.close()


@pytest_asyncio.fixture
async def place(cluster: dict[str, str]) -> AsyncIterator[tuple[KubeClient, str]]:
    """Return a client and a new namespace."""
    async with _namespace(cluster) as found:
        yield found


@pytest.fixture
def client(place: tuple[KubeClient, str]) -> KubeClient:
    """Return the product's client."""
    return place[0]


@pytest.fixture
def namespace(place: tuple[KubeClient, str]) -> str:
    """Return a new namespace."""
    return place[1]


@pytest_asyncio.fixture
async def proxy(client: KubeClient) -> AsyncIterator[ApiProxy]:
    """Return a proxy for operators."""
    async with serving(client.configuration) as made:
        yield made


@dataclass
class OperatorProcess:
    """One operator's process."""

    process: subprocess.Popen[bytes]
    log: Path
    health: int
    metrics: int

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of its log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def messages(self) -> list[str]:
        """Return the messages of its log so far."""
        return [str(line["message"]) for line in self.lines()]

    async def ready(self) -> None:
        """Wait until the operator is ready."""
        await eventually(lambda: self.answers("readyz"), self)

    async def answers(self, path: str) -> bool:
        """Whether a probe passes."""
        status, _ = await self._get(self.health, path)
        return status == 200

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        _, text = await self._get(self.metrics, "metrics")
        values = [line.split()[-1] for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(value) for value in values)

    async def passes(self) -> float:
        """Return the number of its passes so far."""
        return await self.metric("pstraining_reconcile_seconds_count")

    async def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for its end, and return the exit status."""
        return await asyncio.to_thread(self.process.wait, BUSY_SECONDS)

    async def _get(self, port: int, path: str) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            if self.process.poll() is not None:
                raise AssertionError(f"the operator has ended:\n{self.log.read_text()[-4000:]}") from None
            return 0, ""


@dataclass
class Operators:
    """Starts operators."""

    namespace: str
    folder: Path
    kubeconfig: Path
    started: list[OperatorProcess] = field(default_factory=list)

    def start(self, name: str = "operator-0", module: str = STAND_IN, **settings: str) -> OperatorProcess:
        """Start an operator for the test's namespace, behind the proxy."""
        health, metrics = free_port(), free_port()
        env = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}",
            KUBECONFIG: str(self.kubeconfig),
            CONTEXT: "proxy",
            "POD_NAME": name,
            "POD_NAMESPACE": self.namespace,
            "PSTRAINING_NAMESPACES": self.namespace,
            "PSTRAINING_LEASE_DURATION_SECONDS": "6",
            "PSTRAINING_HEALTH_PORT": str(health),
            "PSTRAINING_METRICS_PORT": str(metrics),
            **settings,
        }
        log = self.folder / f"{name}-{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", module], env=env, cwd=ROOT, stdout=out, stderr=out)
        made = OperatorProcess(process, log, health, metrics)
        self.started.append(made)
        return made


@pytest.fixture(scope="session")
def alone(cluster: dict[str, str]) -> None:
    """Demand that no other operator handles all namespaces, because two operators would revert each other's writes."""

    async def look() -> None:
        async with _namespace(cluster) as (client, name):
            await client.create(Kind.PS_TRAINING_JOB, name, job("canary"))
            await asyncio.sleep(CANARY_SECONDS)
            if (await client.get(Kind.PS_TRAINING_JOB, name, "canary")).get("status"):
                pytest.fail("another operator is at work in this cluster; uninstall it or stop it for these tests")

    asyncio.run(look())


@pytest.fixture
def operators(alone: None, namespace: str, proxy: ApiProxy, tmp_path: Path) -> Iterator[Operators]:
    """Start operators, and end those that are left."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(proxy.kubeconfig()))
    made = Operators(namespace, tmp_path, kubeconfig)
    yield made
    for operator in made.started:
        if operator.process.poll() is None:
            operator.process.kill()
            operator.process.wait()


async def eventually(condition: Any, operator: OperatorProcess | None = None, limit: float = BUSY_SECONDS) -> None:
    """Wait until an asynchronous condition holds."""
    end = asyncio.get_running_loop().time() + limit
    while not await condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError("not in time" + (f":\n{operator.log.read_text()[-4000:]}" if operator else ""))
        await asyncio.sleep(0.05)


async def _repeated(client: KubeClient, method: str, *request: Any, **body: Any) -> None:
    """Send a request until the API server answers it: on a busy machine, a single one may exceed the client's limit."""

    async def answered() -> bool:
        try:
            await client._request(method, *request, **body)
        except Transient:
            return False
        except ApiError as error:  # a request whose answer was lost has taken effect
            if not isinstance(error, {"POST": Conflict, "DELETE": NotFound}.get(method, ())):
                raise
        return True

    await eventually(answered)


async def _is_stored(client: KubeClient, path: str, crd: dict[str, Any]) -> bool:
    """Whether the API server serves these versions of the CRD."""
    try:
        found = await client._request("GET", path)
    except ApiError:
        return False
    conditions = (found.get("status") or {}).get("conditions") or ()
    is_established = any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
    is_going = "deletionTimestamp" in found["metadata"]
    return is_established and not is_going and bool(found["spec"]["versions"] == crd["spec"]["versions"])


async def _apply_crd(client: KubeClient) -> None:
    """Apply the CRD unless it exists: for each write, the API server compiles all of its rules."""
    crd = yaml.safe_load(CRD.read_text())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    if await _is_stored(client, path, crd):
        return
    query = {"fieldManager": "pstraining-tests", "force": "true"}
    await _repeated(client, "PATCH", path, query, crd, APPLY)

    async def served() -> bool:
        try:
            return await client.api_is_served()
        except ApiError:
            return False

    await eventually(served)
