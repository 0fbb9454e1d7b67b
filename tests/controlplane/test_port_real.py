"""The port's contract on a real API server."""

import pytest

from pstraining.kube.client import KubeClient
from tests.contract.test_port_fake import PortContract

MERGE = "application/merge-patch+json"


@pytest.mark.asyncio
class TestRealPort(PortContract):
    @pytest.fixture
    def port(self, client: KubeClient) -> KubeClient:
        return client

    async def let_go(self, port: KubeClient, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/configmaps/digits"
        await port._request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE)
