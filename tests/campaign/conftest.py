"""The campaign's tests need a cluster, like those of the control plane."""

from pathlib import Path

import pytest

from tests.campaign.judging import judge
from tests.controlplane.conftest import cluster

__all__ = ["cluster", "judge"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
