"""The benchmark of the control plane works, and its counts hold for a few jobs; only `make bench` judges the times."""

import asyncio
from pathlib import Path

import pytest

from bench.controlplane.__main__ import measure, parser
from bench.controlplane.namespace import opened
from bench.controlplane.runs import Figures
from pstraining.kube.connection import CONTEXT, KUBECONFIG
from tests.e2e.conftest import cluster_command
from tests.support.kube import Target
from tests.support.soak_marks import in_soak

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
SMALL = (
    "--shapes 5x1+2 --rounds 1 --live 4 --idle 4 --reactions 2 --finished 3,6 --poisoned 0 --flood 0 "
    "--progress 4 --progress-seconds 4 --progress-period 2 --limit 90"
)
POISONED = "--shapes= --live 0 --finished= --rounds 1 --poisoned 20 --flood 0 --progress 0 --limit 90"
FLOODED = "--shapes= --live 0 --finished= --rounds 1 --poisoned 0 --flood 1000 --flood-jobs 3 --progress 0 --limit 90"


def measured(target: Target, folder: Path, options: str) -> Figures:
    async def run() -> Figures:
        named = {KUBECONFIG: target.kubeconfig, CONTEXT: target.context}
        async with opened(named, Path(cluster_command("audit")), folder, 90) as bench:
            return await measure(bench, parser().parse_args(options.split()))

    return asyncio.run(run())


@in_soak
def test_a_few_jobs(target: Target, fake_nodes: int, tmp_path: Path) -> None:
    found = measured(target, tmp_path, SMALL)
    shape = found["shapes"]["5 x (1+2)"]
    assert shape["creates"] == shape["children"]
    assert shape["other_writes"] == 0
    assert shape["status_writes_per_job"] <= 4
    life = found["life"]["4 x (1+2)"]
    assert (life["steady"]["writes"], life["restart"]["writes"]) == (0, 0)
    assert (life["reaction"]["reported"], life["reaction"]["recreated"]) == (2, 2)
    assert [point["writes"] for point in found["finished"]] == [0, 0]
    reporting = found["progress"]
    assert (reporting["refused"], reporting["other_writes"]) == (0, 0)
    assert (reporting["reports"], reporting["writes"]) == (8, 0), "a minute has not passed since the first report"


@in_soak
def test_poisoned_jobs_delay_no_other_job(target: Target, fake_nodes: int, tmp_path: Path) -> None:
    found = measured(target, tmp_path, POISONED)
    assert [found["poisoned"][poison]["unfinished"] for poison in ("500", "hang")] == [0, 0]


@in_soak
def test_a_flooded_namespace_costs_the_operator_no_memory(target: Target, fake_nodes: int, tmp_path: Path) -> None:
    """A flooded namespace costs the operator no memory: 80 MB of events, and of ConfigMaps and StatefulSets with the
    labels of a job.
    """
    assert measured(target, tmp_path, FLOODED)["flood"]["rss_ratio"] <= 1.2
