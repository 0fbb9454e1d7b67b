"""Gangs against a real API server: the operator's writes, also while PodGroups are not an installed kind yet."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from pstraining.core.actions import Kind
from pstraining.kube.client import KubeClient
from pstraining.kube.errors import NotFound
from tests.controlplane.conftest import REAL, ROOT, Operators, eventually
from tests.controlplane.test_operator_core import condition, created, idle_job
from tests.controlplane.test_operator_process import quiet
from tests.support.api_proxy import ApiProxy
from tests.support.soak_marks import in_all, some

pytestmark = pytest.mark.asyncio

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMES = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
VOLCANO: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": NAMES,
        "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANYTHING}}],
    },
}
"""Volcano itself is not available here: a CRD with its names, and a schema that accepts everything."""
GANGS = {"SchedulerPlugins": Kind.POD_GROUP, "Volcano": Kind.VOLCANO_POD_GROUP}


def scheduler_plugins() -> dict[str, Any]:
    """Return the CRD of scheduler-plugins."""
    command = [sys.executable, "-m", "localcluster", "tool", "scheduler-plugins"]
    folder = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    file = Path(folder) / "bases" / "scheduling.x-k8s.io_podgroups.yaml"
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def definition(gang: str) -> dict[str, Any]:
    return VOLCANO if gang == "Volcano" else scheduler_plugins()


async def remove(client: KubeClient, name: str) -> None:
    async def gone() -> bool:
        try:
            await client._request("DELETE", f"{CRDS}/{name}")
        except NotFound:
            return True
        return False

    await eventually(gone)


@pytest_asyncio.fixture
async def gang(request: pytest.FixtureRequest, client: KubeClient) -> AsyncIterator[str]:
    """Return a scheduler whose CRD is not installed, and is deleted after the test."""
    name = definition(request.param)["metadata"]["name"]
    await remove(client, name)
    yield request.param
    await remove(client, name)


async def install(client: KubeClient, gang: str) -> None:
    made = await client._request("POST", CRDS, body=definition(gang))

    async def established() -> bool:
        found = await client._request("GET", f"{CRDS}/{made['metadata']['name']}")
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await eventually(established)


def gang_job(gang: str) -> dict[str, Any]:
    made = idle_job()
    made["spec"]["runPolicy"] = {"schedulingPolicy": {"gang": gang}}
    made["spec"]["ps"]["resources"] = {"requests": {"cpu": "2"}}
    return made


@pytest.mark.parametrize(
    "gang",
    some(
        GANGS,
        lambda gang: gang == "Volcano",
        in_all("tests/controlplane/test_gang.py::test_a_gang_waits_for_the_missing_kind_and_then_starts"),
    ),
    indirect=True,
)
async def test_a_gang_waits_for_the_missing_kind_and_then_starts(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy, gang: str
) -> None:
    operator = operators.start(module=REAL)
    await operator.ready()
    await client.create(Kind.PS_TRAINING_JOB, namespace, gang_job(gang))

    async def not_installed() -> bool:
        return (await condition(client, namespace, "Created")).get("reason") == "GangNotInstalled"

    await eventually(not_installed, operator)

    def asked() -> set[str]:
        return {s.path.rsplit("/", 1)[-1] for s in proxy.writes() if s.method == "POST"}

    async def reported() -> bool:
        return "events" in asked()  # follows the condition

    await eventually(reported, operator)
    assert asked() == {"podgroups", "events"}, "no child is created that could not run"
    await install(client, gang)
    await eventually(lambda: created(client, namespace), operator)
    posts = [s.path.rsplit("/", 1)[-1] for s in proxy.writes() if s.method == "POST" and not s.path.endswith("events")]
    last = len(posts) - 1 - posts[::-1].index("podgroups")
    assert {"deployments", "statefulsets", "jobs"} <= set(posts[last:])
    assert set(posts[:last]) <= {"podgroups"}, "the group is there before any pod"
    group = await client.get(GANGS[gang], namespace, "digits")
    job = await client.get(Kind.PS_TRAINING_JOB, namespace, "digits")
    assert group["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert group["spec"]["minMember"] == 1 + job["spec"]["worker"]["replicas"] + 1


@pytest.mark.parametrize(
    "gang",
    some(
        GANGS,
        lambda gang: gang == "SchedulerPlugins",
        in_all("tests/controlplane/test_gang.py::test_a_waiting_gang_and_an_operator_restart_cost_no_writes"),
    ),
    indirect=True,
)
async def test_a_waiting_gang_and_an_operator_restart_cost_no_writes(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy, gang: str
) -> None:
    await install(client, gang)
    first = operators.start(module=REAL)
    await client.create(Kind.PS_TRAINING_JOB, namespace, gang_job(gang))
    await eventually(lambda: created(client, namespace), first)
    await quiet(first)
    assert await first.stop() == 0
    proxy.seen.clear()
    second = operators.start(module=REAL)
    await second.ready()

    async def passed() -> bool:
        return await second.passes() > 0

    await eventually(passed, second)
    await quiet(second)
    assert proxy.writes() == []
    reads = [s for s in proxy.seen if "/podgroups" in s.path]
    assert [(s.method, s.path.rsplit("/", 1)[-1]) for s in reads] == [("GET", "digits")], "read once, never watched"


@pytest.mark.parametrize(
    "gang",
    some(
        GANGS,
        lambda gang: gang == "Volcano",
        in_all("tests/controlplane/test_gang.py::test_a_group_is_resized_and_is_deleted_during_a_suspension"),
    ),
    indirect=True,
)
async def test_a_group_is_resized_and_is_deleted_during_a_suspension(
    client: KubeClient, namespace: str, operators: Operators, gang: str
) -> None:
    await install(client, gang)
    operator = operators.start(module=REAL)
    made = await client.create(Kind.PS_TRAINING_JOB, namespace, gang_job(gang))
    await eventually(lambda: created(client, namespace), operator)
    before = (await client.get(GANGS[gang], namespace, "digits"))["spec"]["minMember"]

    async def edit(spec: dict[str, Any]) -> None:
        path = f"/apis/pstraining.dev/v1alpha1/namespaces/{namespace}/pstrainingjobs/digits"
        await client._request("PATCH", path, {}, {"spec": spec}, "application/merge-patch+json")

    async def asks_for(number: int | None) -> bool:
        try:
            found = await client.get(GANGS[gang], namespace, "digits")
        except NotFound:
            return number is None
        return bool(found["spec"]["minMember"] == number)

    await edit({"worker": {"replicas": made["spec"]["worker"]["replicas"] + 2}})
    await eventually(lambda: asks_for(before + 2), operator)
    await edit({"runPolicy": {"suspend": True}})
    await eventually(lambda: asks_for(None), operator)
    await edit({"runPolicy": {"suspend": False}})
    await eventually(lambda: asks_for(before + 2), operator)
