"""The campaign's results as a page: fault classes down, workloads across."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.faults import OnWatch, OnWrite
from tests.campaign.oracle import Run

HEAD = """# Crash and stale-view campaign

Written by `make campaign`; [how it works](../how-to/campaign.md). Each cell: plans / plans that diverge from the
undisturbed run.

"""


@dataclass
class Results:
    """How the plans went."""

    plans: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By fault class and workload."""
    diverged: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    seed: int = 0
    points: dict[str, int] = field(default_factory=dict)
    """Writes of each workload; every one is crashed at."""

    def add(self, run: Run, problems: Sequence[str]) -> None:
        """Count a plan."""
        key = (run.plan.fault, run.plan.workload)
        self.plans[key] += 1
        self.diverged[key] += bool(problems)

    def page(self) -> str:
        """The page."""
        workloads = list(self.points)
        classes = [*map(str, OnWrite), *(f"watch {w}" for w in OnWatch)]
        rows = [
            ["fault", *workloads, "all"],
            ["---"] * (len(workloads) + 2),
            *([name, *(self._cell(name, w) for w in workloads), self._sum(name)] for name in classes),
            ["writes", *(str(self.points[w]) for w in workloads), str(sum(self.points.values()))],
        ]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        total, bad = sum(self.plans.values()), sum(self.diverged.values())
        tail = f"\n{total} plans, {bad} diverge; seed {self.seed}; {self.seconds / 60:.0f} minutes.\n"
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
