"""The campaign as a fixture."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.campaign.campaign import Campaign, opened, run_all
from tests.campaign.faults import Plan
from tests.campaign.oracle import Run

CRD = Path(__file__).resolve().parents[2] / "crds" / "pstraining.dev_pstrainingjobs.yaml"
T = TypeVar("T")
AT_ONCE = 6


class Judge:
    """Runs plans, several at once, and knows how each went."""

    def __init__(self, loop: asyncio.AbstractEventLoop, campaign: Campaign) -> None:
        self._loop, self.campaign = loop, campaign

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the campaign's loop."""
        return self._loop.run_until_complete(work)

    def judge(self, plans: Sequence[Plan]) -> list[tuple[Run, list[str]]]:
        """Run plans, some at a time, and compare each."""
        found: list[tuple[Run, list[str]]] = []
        self.do(run_all(self.campaign, plans, AT_ONCE, lambda run, divergences: found.append((run, divergences))))
        return found


@pytest.fixture(scope="session")
def judge(cluster: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """A campaign on a cluster with the CRD of this tree."""
    loop = asyncio.new_event_loop()
    opening = opened(tmp_path_factory.mktemp("campaign"), cluster, yaml.safe_load(CRD.read_text()))
    campaign = loop.run_until_complete(opening.__aenter__())
    try:
        yield Judge(loop, campaign)
    finally:
        loop.run_until_complete(opening.__aexit__(None, None, None))
        loop.close()
