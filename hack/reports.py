"""Results of the tests: read from JUnit reports, and written as tables and as JSON."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.layers import ROOT
from hack.level import Level
from hack.processor import NOTHING, Cores
from localcluster.progress import format_grid

SLOWEST = 20
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Test:
    """One test of a report."""

    __test__ = False
    layer: str
    name: str
    """The test's name, as `tests/.../test_file.py::test_name`."""
    seconds: float
    processor_s: float | None = None
    """CPU seconds of the test's process and its ended children; None without the counter of tests/conftest.py."""


@dataclass
class Outcome:
    """The result of a layer."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0
    """Number of collected tests that never ran, because pytest ended early, as after the crash of a test process."""
    seconds: float = 0.0
    """Duration without that of the layer's requirements, such as the cluster."""
    problem: str = ""
    """A problem besides failed tests; empty without one."""
    budget_s: float | None = None
    narrowed: bool = False
    """Whether only some of the layer's files ran, whose tests may all belong to another level."""
    cores: Cores = NOTHING
    tests: list[Test] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing failed, and all collected tests ran."""
        return not self.failed and not self.problem and not self.lost and (self.passed > 0 or self.narrowed)

    @property
    def over_budget(self) -> bool:
        """Whether the layer exceeded its budget, which is not a failure."""
        return self.budget_s is not None and self.seconds > self.budget_s

    def counts(self) -> str:
        """Return the numbers of tests and checks as text."""
        others = ((self.skipped, "skipped"), (self.lost, "never run"))
        counts = ", ".join([f"{self.passed} passed, {self.failed} failed", *(f"{n} {what}" for n, what in others if n)])
        return counts + (f" ({self.problem})" if self.problem else "")

    def line(self) -> str:
        """Return one line on the layer's end."""
        mark = "  over budget" if self.over_budget else ""
        return f"  {'ok' if self.good else 'FAILED':<7} {self.name:<13} {self.seconds:7.1f} s   {self.counts()}{mark}"

    def row(self) -> list[str]:
        """Return the layer's row in the final table."""
        used, busy = ("-", "-") if self.cores == NOTHING else (f"{self.cores.busy_s:.0f}", f"{self.cores.share:.0%}")
        budget = "-" if self.budget_s is None else f"{self.budget_s:.0f}"
        mark = "over budget" if self.over_budget else ""
        cells = [self.name, f"{self.seconds:.1f}", budget, used, busy, self.counts(), mark]
        return ["ok" if self.good else "FAILED", *cells]

    def data(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "layer": self.name,
            "good": self.good,
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "lost": self.lost,
            "problem": self.problem,
            "seconds": round(self.seconds, 1),
            "budget_s": self.budget_s,
            "over_budget": self.over_budget,
            "processor_s": None if self.cores == NOTHING else round(self.cores.busy_s, 1),
            "cores_busy": None if self.cores == NOTHING else round(self.cores.share, 3),
        }


@dataclass
class Summary:
    """The result of a whole run."""

    level: Level
    outcomes: list[Outcome] = field(default_factory=list)
    not_run: tuple[str, ...] = ()
    why_not: str = ""
    preparation_s: float = 0.0
    clean_up_s: float = 0.0

    @property
    def failed(self) -> int:
        """Number of failed tests and checks, and of layers that failed without a failed test."""
        return sum(o.failed or int(not o.good) for o in self.outcomes)

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.failed or self.why_not else 0

    def slowest(self) -> list[Test]:
        """Return the slowest tests."""
        tests = (test for outcome in self.outcomes for test in outcome.tests)
        return sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]

    def text(self) -> str:
        """Return the tables, with the totals in the last line."""
        lines = [f"== results of {self.level}"]
        if self.outcomes:
            header = ["", "layer", "seconds", "budget", "processor s", "cores busy", "tests and checks", ""]
            lines += _indented(format_grid(header, [outcome.row() for outcome in self.outcomes]))
        lines += [f"  not run {name:<13} ({self.why_not})" for name in self.not_run]
        lines.append(f"  preparation (cluster, images): {self.preparation_s:.1f} s; clean-up: {self.clean_up_s:.1f} s")
        if slowest := self.slowest():
            rows = [[f"{t.seconds:.1f}", _seconds(t.processor_s), t.layer, t.name] for t in slowest]
            lines += ["", f"== the slowest tests ({len(rows)})"]
            lines += _indented(format_grid(["seconds", "processor s", "layer", "test"], rows))
        skipped = sum(o.skipped for o in self.outcomes)
        tail = f", {skipped} skipped" if skipped else ""
        return "\n".join([*lines, "", f"{sum(o.passed for o in self.outcomes)} passed, {self.failed} failed{tail}"])

    def write(self, folder: Path) -> None:
        """Write the result as JSON."""
        found: Mapping[str, Any] = {
            "level": self.level,
            "status": self.status,
            "preparation_s": round(self.preparation_s, 1),
            "clean_up_s": round(self.clean_up_s, 1),
            "layers": [outcome.data() for outcome in self.outcomes],
            "not_run": list(self.not_run),
            "why_not": self.why_not,
            "slowest": [
                {"seconds": t.seconds, "processor_s": t.processor_s, "layer": t.layer, "test": t.name}
                for t in self.slowest()
            ],
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the numbers and the tests of a JUnit report."""
    for suite in ET.parse(path).getroot().iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        outcome.failed += failed
        outcome.skipped += skipped
        outcome.passed += int(suite.get("tests", 0)) - failed - skipped
        for case in suite.iter("testcase"):
            name = place(case.get("classname", ""), case.get("name", ""))
            properties = {p.get("name"): p.get("value", "") for p in case.iter("property")}
            used = properties.get("processor_s")
            outcome.tests.append(Test(outcome.name, name, float(case.get("time", 0)), float(used) if used else None))


def place(classname: str, name: str, root: Path = ROOT) -> str:
    """Return pytest's name of a test, from the dotted name in a JUnit report."""
    words = classname.split(".")
    for count in range(len(words), 0, -1):
        file = "/".join(words[:count]) + ".py"
        if (root / file).is_file():
            return "::".join([file, *words[count:], name])
    return "::".join(word for word in (classname, name) if word)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"
