"""The operator finds out whether Kueue is installed by the resources that the API server lists."""

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from pstraining.kube.client import KubeClient
from pstraining.kube.errors import NotFound

READ = ["delete", "deletecollection", "get", "list", "watch"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([{"name": "workloads", "verbs": [*READ, "create", "patch", "update"]}], True),
        ([{"name": "workloads", "verbs": READ}, {"name": "localqueues", "verbs": ["create"]}], False),
        ([{"name": "localqueues", "verbs": ["create"]}], False),
        (None, False),
    ],
    ids=["installed", "its CRD is being deleted", "without the CRD", "absent"],
)
@pytest.mark.asyncio
async def test_kueue_is_installed_while_workloads_can_be_created(
    resources: list[dict[str, Any]] | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(*_: Any) -> dict[str, Any]:
        if resources is None:
            raise NotFound("404 page not found", status=404)
        return {"resources": resources}

    monkeypatch.setattr(KubeClient, "_send", send)
    kube = KubeClient(Configuration(host="http://127.0.0.1:1"))
    try:
        assert await kube.queues_are_served() is expected
    finally:
        await kube.close()
