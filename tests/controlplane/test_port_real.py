"""The port's contract against a real API server."""

import pytest

from pstraining.kube.client import KubeClient
from tests.contract.test_port_fake import PortContract


@pytest.mark.asyncio
class TestRealPort(PortContract):
    @pytest.fixture
    def port(self, client: KubeClient) -> KubeClient:
        return client
