"""The campaign as a fixture."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.campaign.campaign import Campaign, opened, run_all
from tests.campaign.faults import OnWatch, OnWrite, Plan, plans
from tests.campaign.oracle import Run

CRD = Path(__file__).resolve().parents[2] / "crds" / "pstraining.dev_pstrainingjobs.yaml"
T = TypeVar("T")
AT_ONCE = 6
SEED = 7
SKIPPED = {str(OnWrite.BROKEN), str(OnWrite.HANGS)} | {
    f"watch {fault}" for fault in (OnWatch.CLOSED, OnWatch.SILENT, OnWatch.DELAYED, OnWatch.REORDERED)
}
"""Fault classes that are slow, or similar to another one."""


class Judge:
    """Runs plans, several at a time, and keeps their verdicts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, campaign: Campaign) -> None:
        self._loop, self.campaign = loop, campaign

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the campaign's event loop."""
        return self._loop.run_until_complete(work)

    def judge(self, plans: Sequence[Plan]) -> list[tuple[Run, list[str]]]:
        """Run plans, some at a time, and compare each."""
        found: list[tuple[Run, list[str]]] = []
        self.do(run_all(self.campaign, plans, AT_ONCE, lambda run, divergences: found.append((run, divergences))))
        return found

    def one_of_each_kind(self, workload: str) -> dict[str, list[str]]:
        """Run one plan of each kind; return the diverging ones with their divergences."""
        before, own = self.do(self.campaign.reference(workload))
        by_class: dict[str, list[Plan]] = {}
        for plan in plans(workload, before, own, SEED):
            by_class.setdefault(plan.fault, []).append(plan)
        dice = {name: random.Random(f"{SEED} {name}") for name in by_class}
        chosen = [dice[name].choice(found) for name, found in by_class.items() if name not in SKIPPED]
        assert len(chosen) >= 12
        return {str(run.plan): problems for run, problems in self.judge(chosen) if problems}


@contextmanager
def judging(cluster: dict[str, str], folder: Path, *, with_queues: bool = False) -> Iterator[Judge]:
    """Run a campaign on a cluster with the CRD of this tree, and with queues if Kueue is there."""
    loop = asyncio.new_event_loop()
    opening = opened(folder, cluster, yaml.safe_load(CRD.read_text()), with_queues=with_queues)
    campaign = loop.run_until_complete(opening.__aenter__())
    try:
        yield Judge(loop, campaign)
    finally:
        loop.run_until_complete(opening.__aexit__(None, None, None))
        loop.close()


@pytest.fixture(scope="session")
def judge(cluster: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Return a campaign without queues."""
    with judging(cluster, tmp_path_factory.mktemp("campaign")) as found:
        yield found
