"""The shipped operator against a real API server, whose validation and defaults its decisions must satisfy."""

from typing import Any

import pytest

from pstraining.core.actions import Kind
from pstraining.kube.client import KubeClient
from tests.contract.test_port_fake import job
from tests.controlplane.conftest import REAL, Operators, eventually
from tests.controlplane.test_operator_process import quiet
from tests.support.api_proxy import ApiProxy
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.asyncio

CHILDREN = ("configmaps", "services", "statefulsets", "deployments", "jobs")
API = {"configmaps": "api/v1", "services": "api/v1", "jobs": "apis/batch/v1"}


def idle_job(**container: Any) -> dict[str, Any]:
    """Create a job whose pods can never be scheduled, so that no kubelet changes them."""
    made = job("digits")
    template = made["spec"]["worker"]["template"] = {
        "spec": {
            "nodeSelector": {"pstraining.dev/no-such-node": "true"},
            "containers": [{"name": "tensorflow", "image": "img:1", "command": ["python"], **container}],
        }
    }
    made["spec"]["ps"]["template"] = template
    return made


async def children(client: KubeClient, namespace: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for plural in CHILDREN:
        path = f"/{API.get(plural, 'apis/apps/v1')}/namespaces/{namespace}/{plural}"
        listed = await client._request("GET", path, {"labelSelector": "pstraining.dev/job-uid"})
        found |= {f"{plural}/{o['metadata']['name']}": o["metadata"]["uid"] for o in listed["items"]}
    return found


async def condition(client: KubeClient, namespace: str, kind: str) -> dict[str, Any]:
    stored = await client.get(Kind.PS_TRAINING_JOB, namespace, "digits")
    return next((c for c in stored.get("status", {}).get("conditions", ()) if c["type"] == kind), {})


async def created(client: KubeClient, namespace: str) -> bool:
    return (await condition(client, namespace, "Created")).get("status") == "True"


async def test_a_restart_writes_nothing(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    first = operators.start(module=REAL)
    await client.create(Kind.PS_TRAINING_JOB, namespace, idle_job())
    await eventually(lambda: created(client, namespace), first)
    await eventually(lambda: _waits_for_a_node(client, namespace), first)
    await quiet(first)
    assert set(await children(client, namespace)) >= {"statefulsets/digits-ps", "deployments/digits-worker-0"}
    assert await first.stop() == 0
    proxy.seen.clear()
    second = operators.start(module=REAL)
    await second.ready()
    await eventually(lambda: _passed(second), second)
    await quiet(second)
    assert proxy.writes() == []


@pytest.mark.parametrize(
    ("container", "message", "tries"),
    [
        pytest.param({"imagePullPolcy": "Always"}, "imagePullPolcy", 1, id="rejected"),
        pytest.param(
            *({"resources": "1Gi"}, "containers[0].resources must be a valid dictionary", 0),
            id="unreadable",
            marks=in_all("tests/property/test_wrong_types.py::test_the_status_names_the_field"),  # no request is sent
        ),
    ],
)
async def test_a_rejected_template_is_reported_once_and_not_retried(
    client: KubeClient,
    namespace: str,
    operators: Operators,
    proxy: ApiProxy,
    container: dict[str, Any],
    message: str,
    tries: int,
) -> None:
    operator = operators.start(module=REAL)
    await client.create(Kind.PS_TRAINING_JOB, namespace, idle_job(**container))

    async def reported() -> bool:
        return (await condition(client, namespace, "InvalidTemplate")).get("status") == "True"

    await eventually(reported, operator)
    await quiet(operator)
    assert message in (await condition(client, namespace, "InvalidTemplate"))["message"]
    assert len([s for s in proxy.writes() if s.status == 400]) == tries
    assert await children(client, namespace) == {}


async def test_the_next_job_of_a_name_starts_at_once(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start(module=REAL)
    await client.create(Kind.PS_TRAINING_JOB, namespace, idle_job())
    await eventually(lambda: created(client, namespace), operator)
    first = await children(client, namespace)
    old = await client.get(Kind.PS_TRAINING_JOB, namespace, "digits")
    await client.delete(Kind.PS_TRAINING_JOB, namespace, "digits", old["metadata"]["uid"])
    await client.create(Kind.PS_TRAINING_JOB, namespace, idle_job())

    async def renewed() -> bool:
        second = await children(client, namespace)
        return second.keys() == first.keys() and not set(second.values()) & set(first.values())

    await eventually(renewed, operator, 20)
    await eventually(lambda: created(client, namespace), operator)
    assert not (await condition(client, namespace, "NameConflict"))


async def _waits_for_a_node(client: KubeClient, namespace: str) -> bool:
    """Whether the job reports its first pod, as the operator does after half a minute."""
    found = await condition(client, namespace, "Running")
    return found.get("reason") == "Unschedulable" and "digits-ps-0" in found["message"]


async def _passed(operator: Any) -> bool:
    return bool(await operator.passes() >= 1)
