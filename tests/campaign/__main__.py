"""The whole campaign: ``python -m tests.campaign``.

Brings the local cluster up if no other is named, runs every plan, and writes the table.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.campaign.campaign import opened, run_all, say
from tests.campaign.faults import Plan, plans, thinned
from tests.campaign.oracle import Run
from tests.campaign.workloads import WORKLOADS


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; may be repeated")
    parser.add_argument("--fault", action="append", default=[], help="only plans whose class contains this text")
    parser.add_argument("--seed", type=int, default=1, help="of what is random")
    parser.add_argument("--thin", type=int, default=1, help="one in so many plans, each write point at least once")
    parser.add_argument("--at-once", type=int, default=8, help="plans at a time")
    parser.add_argument("--without", default="", help="switch a guard off, to see that its faults are found")
    parser.add_argument("--list", action="store_true", help="only run undisturbed, and list the writes")
    asked = parser.parse_args()
    environment = {k: os.environ[k] for k in ("KUBECONFIG", "PSTRAINING_CONTEXT")}
    return asyncio.run(_campaign(asked, environment))


async def _campaign(asked: argparse.Namespace, environment: dict[str, str]) -> int:
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    async with opened(folder, environment) as campaign:
        found: list[Plan] = []
        for workload in asked.workload or WORKLOADS:
            before, own = await campaign.reference(workload)
            say(f"{workload}: {len(before)} + {len(own)} writes")
            if asked.list:
                say("".join(f"  {p}\n" for p in (*before, "--", *own)))
            found += plans(workload, before, own, asked.seed)
        if asked.fault:
            found = [p for p in found if any(text in p.fault for text in asked.fault)]
        found = thinned(found, asked.thin, asked.seed) if asked.thin > 1 else found
        if asked.list:
            return 0
        found = [replace(p, without=asked.without) for p in found]
        say(f"{len(found)} plans, seed {asked.seed}")
        bad: list[tuple[Plan, list[str]]] = []
        times: list[float] = []

        def tell(run: Run, divergences: list[str]) -> None:
            times.append(run.seconds)
            if divergences:
                bad.append((run.plan, divergences))
                say(f"DIVERGES {run.plan}\n" + "".join(f"    {d}\n" for d in divergences))
            if len(times) % 20 == 0:
                rate = (time.monotonic() - started) / len(times)
                say(f"{len(times)} of {len(found)}, {len(bad)} diverge, {rate:.2f} s each")

        await run_all(campaign, found, asked.at_once, tell)
    say(f"{len(found)} plans, {len(bad)} diverge, {time.monotonic() - started:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
