"""`status` prints what its page shows."""

from collections.abc import Mapping
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

from pstraining.cli import overview
from pstraining.cli.status.picture import table, tree
from tests.support.builders import NOW, stamp
from tests.support.cli_cluster import WithJobs
from tests.support.simulation import running

PAGE = Path(__file__).parents[3] / "docs" / "users" / "watch-a-job.md"
USUAL_NAMES: Final[Mapping[str, str]] = {
    "digits-chief-1-1-12": "digits-chief-1-7xk2p",
    "digits-worker-0-0-15": "digits-worker-0-6c9d4f8b7d-q5wzn",
    "digits-worker-1-0-16": "digits-worker-1-7f8b6d5c46-2hk9x",
}
"""The names of simulated pods, and names that Kubernetes' controllers would give them."""


def rendered(found: RenderableType) -> str:
    console = Console(file=StringIO(), width=110, highlight=False)
    console.print(found)
    assert isinstance(console.file, StringIO)
    shown = "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
    for simulated, usual in USUAL_NAMES.items():
        shown = shown.replace(simulated, usual)
    return shown


def test_a_job_in_trouble_as_the_docs_show_it() -> None:
    world = running(ps={"replicas": 1, "standby": {"mode": "Warm"}})
    assert world.job is not None
    world.end("worker", 1, 137, "loading\nKilled", member=0)
    failed = next(p for name, p in world.pods.items() if name.startswith("digits-worker-1"))
    ended = failed["status"]["containerStatuses"][0]["lastState"]["terminated"]
    ended["finishedAt"] = stamp(world.now + timedelta(seconds=20))
    world.pods["digits-standby-0"]["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient memory.",
            }
        ],
    }
    world.pods["digits-standby-0"]["spec"].pop("nodeName")
    world.now += timedelta(seconds=40)
    world.settle()
    cluster = WithJobs(world.job, pods=list(world.pods.values()))
    posted = next(e for e in world.reported if "digits-standby-0" in e.message)
    cluster.there_events[world.job["metadata"]["uid"]] = [
        {
            "metadata": {"name": "digits.1", "creationTimestamp": stamp(NOW)},
            "type": posted.type,
            "reason": posted.reason,
            "message": posted.message,
            "eventTime": stamp(world.now),
        }
    ]
    cluster.there_metrics = {
        name: 'pstraining_compute_devices{type="%s"} 1' % ("CPU" if "chief" in name else "GPU")
        for name in world.pods
        if "ps" not in name and "standby" not in name
    }
    found = overview.look(cluster, "default", "digits")
    shown = rendered(tree(found, world.now + timedelta(seconds=30)))
    assert shown in PAGE.read_text(), shown
    table_shown = rendered(table([overview.summary(world.job)], world.now, namespaces=False))
    assert table_shown in PAGE.read_text(), table_shown
