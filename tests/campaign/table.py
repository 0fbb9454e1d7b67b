"""The campaign's results as a page with a row per fault class and a column per workload; parts of a campaign add up."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.faults import OnWatch, OnWrite
from tests.campaign.oracle import Run

HEAD = """# Crash and stale-view campaign

Written by `make campaign`; [how it works](../campaign.md). Each cell: plans / plans that diverge from the
undisturbed run.

"""


@dataclass
class Results:
    """The verdicts of plans."""

    plans: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By fault class and workload."""
    diverged: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    seed: int = 0
    thin: int = 1
    """One of this number of plans was run, not counting plain crashes."""
    points: dict[str, int] = field(default_factory=dict)
    """The number of writes of each workload; a crash is tried at every one of them."""
    struck: dict[str, set[str]] = field(default_factory=dict)
    """The writes of each workload at which a fault happened."""
    leaked: Counter[str] = field(default_factory=Counter)
    """By workload: objects that remained when their job was deleted."""

    def add(self, run: Run, problems: Sequence[str]) -> None:
        """Count a plan."""
        key = (run.plan.fault, run.plan.workload)
        self.plans[key] += 1
        self.diverged[key] += bool(problems)
        self.leaked[run.plan.workload] += run.leaked
        if run.plan.at is not None and run.fired:
            self.struck.setdefault(run.plan.workload, set()).add(str(run.plan.at))

    def save(self, path: Path) -> None:
        """Save the results of a part for the next part."""
        cells = [[*key, count, self.diverged[key]] for key, count in sorted(self.plans.items())]
        struck = {name: sorted(points) for name, points in self.struck.items()}
        reported = {
            "cells": cells,
            "seconds": self.seconds,
            "points": self.points,
            "struck": struck,
            "leaked": self.leaked,
        }
        path.write_text(json.dumps({"seed": self.seed, **reported}, indent=1))

    def take(self, path: Path) -> None:
        """Add the saved results of an earlier part, if there is one; a repeated workload's counts restart."""
        if not path.exists():
            return
        reported = json.loads(path.read_text())
        for fault, workload, count, bad in reported["cells"]:
            if workload not in self.points:
                self.plans[fault, workload] += count
                self.diverged[fault, workload] += bad
        self.struck = {**{name: set(points) for name, points in reported["struck"].items()}, **self.struck}
        self.points = {**reported["points"], **self.points}
        self.leaked = Counter({**reported["leaked"], **self.leaked})
        self.seconds += reported["seconds"]

    def page(self) -> str:
        """Return the page."""
        workloads = list(self.points)
        struck = [len(self.struck.get(w, ())) for w in workloads]
        classes = [*map(str, OnWrite), *(f"watch {w}" for w in OnWatch)]
        rows = [
            ["fault", *workloads, "all"],
            ["---"] * (len(workloads) + 2),
            *([name, *(self._cell(name, w) for w in workloads), self._sum(name)] for name in classes),
            ["writes", *(str(self.points[w]) for w in workloads), str(sum(self.points.values()))],
            ["struck", *(str(n) for n in struck), str(sum(struck))],
        ]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        total, bad = sum(self.plans.values()), sum(self.diverged.values())
        share = "" if self.thin == 1 else f"; every crash, and one in {self.thin} of the other plans"
        tail = (
            f"\n{total} plans, {bad} diverge, {self.leaked.total()} objects left behind; seed {self.seed}; "
            f"{self.seconds / 60:.0f} minutes{share}.\n"
        )
        return HEAD + table + tail

    def write(self, path: Path) -> None:
        """Write the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.page())

    def _cell(self, name: str, workload: str) -> str:
        return f"{self.plans[name, workload]} / {self.diverged[name, workload]}"

    def _sum(self, name: str) -> str:
        found = [k for k in self.plans if k[0] == name]
        return f"{sum(self.plans[k] for k in found)} / {sum(self.diverged[k] for k in found)}"
