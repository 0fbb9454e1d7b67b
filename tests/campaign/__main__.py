"""The whole campaign: ``python -m tests.campaign``.

Runs every plan on the cluster that KUBECONFIG and PSTRAINING_CONTEXT name, or else on the local cluster with Kueue. The
local cluster is started if necessary, and then stopped afterwards. The exit status is 1 if any plan diverges.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import yaml

from hack.test_cluster import ClusterSession
from localcluster.progress import Progress
from tests.campaign.campaign import opened, run_all, say
from tests.campaign.faults import QUEUED, Plan, plans, thinned
from tests.campaign.oracle import Run
from tests.campaign.table import Results
from tests.campaign.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml"


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", default=[], help="only plans whose class contains this text")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    parser.add_argument("--thin", type=int, default=1, help="one in so many plans that are no mere crash")
    parser.add_argument("--at-once", type=int, default=8, help="plans at a time")
    parser.add_argument("--without", default="", help="switch a guard off, to see that its faults are found")
    parser.add_argument("--list", action="store_true", help="only run undisturbed, and list the writes")
    parser.add_argument("--table", type=Path, help="write the results here")
    parser.add_argument("--parts", type=Path, help="add the results to those that earlier parts kept in this file")
    parser.add_argument("--guards", action="store_true", help="then show that every fault class can be found")
    asked = parser.parse_args()
    session = ClusterSession(Progress())
    try:
        target = session.up(with_images=False)
        environment = target.environment()
        with _kueue(asked, session):
            status = asyncio.run(_campaign(asked, environment))
        if asked.guards:
            command = [sys.executable, "-m", "pytest", "-q", "tests/campaign"]
            status |= subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode
        return status
    finally:
        session.close()
        session.down()


@contextmanager
def _kueue(asked: argparse.Namespace, session: ClusterSession) -> Iterator[None]:
    """Start Kueue for workloads with a queue, unless the environment names a cluster, which then has Kueue."""
    if session.context is not None or not QUEUED & {*(asked.workload or WORKLOADS)}:
        yield
        return
    command = [sys.executable, "-m", "localcluster", "kueue"]
    subprocess.run([*command, "up"], cwd=ROOT, check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "down"], cwd=ROOT, check=True)


async def _campaign(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    started, results = time.monotonic(), Results(seed=asked.seed, thin=asked.thin)
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    with_queues = bool(QUEUED & {*(asked.workload or WORKLOADS)})
    crd = yaml.safe_load(CRD.read_text())
    async with opened(folder, dict(environment), crd, with_queues=with_queues) as campaign:
        found: list[Plan] = []
        for workload in asked.workload or WORKLOADS:
            before, own = await campaign.reference(workload)
            results.points[workload] = len(before) + len(own)
            say(f"{workload}: {len(before)} + {len(own)} writes")
            if asked.list:
                say("".join(f"  {p}\n" for p in (*before, "--", *own)))
            found += plans(workload, before, own, asked.seed)
        if asked.list:
            return 0
        found = [replace(p, without=asked.without) for p in found if _asked_for(p, asked.fault)]
        found = thinned(found, asked.thin, asked.seed) if asked.thin > 1 else found
        say(f"{len(found)} plans, seed {asked.seed}")

        def report(run: Run, problems: list[str]) -> None:
            results.add(run, problems)
            done, bad = sum(results.plans.values()), sum(results.diverged.values())
            if problems:
                say(f"DIVERGES {run.plan}\n" + "".join(f"    {line}\n" for line in problems))
            if done % 20 == 0:
                say(f"{done} of {len(found)}, {bad} diverge, {time.monotonic() - started:.0f} s")

        await run_all(campaign, found, asked.at_once, report)
    results.seconds = time.monotonic() - started
    bad, took = sum(results.diverged.values()), results.seconds
    if asked.parts is not None:
        results.take(asked.parts)
        results.save(asked.parts)
    if asked.table is not None:
        results.write(asked.table)
    say(f"{len(found)} plans, {bad} diverge, {took:.0f} s")
    return 1 if bad else 0


def _asked_for(plan: Plan, faults: list[str]) -> bool:
    return not faults or any(text in plan.fault for text in faults)


if __name__ == "__main__":
    sys.exit(main())
