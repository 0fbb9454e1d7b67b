"""The benchmark of the control plane works, and its counts hold for a few jobs; times are `make bench`'s business."""

import asyncio
from pathlib import Path

import pytest

from bench.controlplane.__main__ import measure, parser
from bench.controlplane.place import opened
from bench.controlplane.runs import Figures
from pstraining.kube.connection import CONTEXT, KUBECONFIG
from tests.e2e.conftest import hack
from tests.support.kube import Target

pytestmark = pytest.mark.cluster
SMALL = "--shapes 5x1+2 --rounds 1 --live 4 --idle 4 --reactions 2 --finished 3,6 --poisoned 20 --limit 90"


def test_a_few_jobs(target: Target, fake_nodes: int, tmp_path: Path) -> None:
    async def run() -> Figures:
        named = {KUBECONFIG: target.kubeconfig, CONTEXT: target.context}
        async with opened(named, Path(hack("audit")), tmp_path, 90) as bench:
            return await measure(bench, parser().parse_args(SMALL.split()))

    found = asyncio.run(run())
    shape = found["shapes"]["5 x (1+2)"]
    assert shape["creates"] == shape["children"]
    assert shape["other_writes"] == 0
    assert shape["status_writes_per_job"] <= 4
    life = found["life"]["4 x (1+2)"]
    assert (life["steady"]["writes"], life["restart"]["writes"]) == (0, 0)
    assert (life["reaction"]["told"], life["reaction"]["remade"]) == (2, 2)
    assert [point["writes"] for point in found["finished"]] == [0, 0]
    assert [found["poisoned"][poison]["unfinished"] for poison in ("500", "hang")] == [0, 0]
