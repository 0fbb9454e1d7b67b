"""The comparison of figures with their limits, and the page of figures."""

import math
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.controlplane.runs import Figures

LIMITS = Path(__file__).parent / "thresholds.toml"
SMALL = "(1+2)"


@dataclass(frozen=True)
class Check:
    """One figure and its limit."""

    what: str
    value: float
    limit: float

    @property
    def ok(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= self.limit + 1e-9


def limits() -> dict[str, float]:
    """Return the committed thresholds."""
    return {name: float(value) for name, value in tomllib.loads(LIMITS.read_text()).items()}


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of every figure over the rounds; ratios are computed within a round."""
    found: Figures = {"rounds": len(rounds)}
    for key in rounds[0]:
        values = [r[key] for r in rounds if isinstance(r.get(key), (int, float))]
        if values:
            found[key] = statistics.median(values)
    return found


def exponent(points: list[tuple[float, float]]) -> float:
    """Return the slope of log(cost) against log(size), by least squares."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(max(y, 1e-9)) for _, y in points]
    return statistics.linear_regression(xs, ys).slope


def growth(points: list[Figures]) -> Figures:
    """Return the exponents of CPU and memory in the number of jobs, above the cost of the process without jobs."""
    return {
        what: exponent([(p["jobs"], p[what]) for p in points])
        for what in ("cpu", "rss", "writes")
        if _told(points, what)
    }


def checks(found: Figures) -> Iterator[Check]:
    """Yield every figure that has a limit."""
    limit = limits()

    def check(what: str, value: Any, name: str) -> Iterator[Check]:
        if value is not None:
            yield Check(what, float(value), limit[name])

    def memory(what: str, figures: Figures) -> Check:
        allowed = limit["memory_mb"] + limit["memory_kb_per_object"] * figures["objects"] / 1024
        return Check(f"{what}: memory, MB", figures["rss"], allowed)

    for name, shape in found.get("shapes", {}).items():
        yield from check(f"{name}: T_children / floor", shape.get("children_ratio"), "children_ratio")
        yield from check(f"{name}: CPU / watch-only", shape.get("cpu_ratio"), "cpu_ratio")
        yield from check(f"{name}: creates - children", shape["creates"] - shape["children"], "creates_beyond_children")
        yield from check(f"{name}: other writes", shape["other_writes"], "other_writes")
        yield from check(f"{name}: failed writes", shape["failed_writes"], "failed_writes")
        yield memory(name, shape)
        if name.endswith(SMALL):
            yield from check(f"{name}: CPU-ms per job", shape["cpu_ms_per_job"], "cpu_ms_per_small_job")
            yield from check(
                f"{name}: status writes per job", shape["status_writes_per_job"], "status_writes_per_small_job"
            )
    for name, life in found.get("life", {}).items():
        yield from check(f"{name}: writes while nothing happens", life["steady"]["writes"], "steady_writes")
        yield from check(f"{name}: writes at restart", life["restart"]["writes"], "restart_writes")
        for what, key in (("pod failed", "reported"), ("Deployment deleted", "recreated")):
            yield from check(f"{name}: {what} -> write, p99 s", life["reaction"][f"{key}_p99"], "reaction_p99")
    for what, value in found.get("growth", {}).items():
        yield from check(f"growth exponent of {what}", value, "growth_exponent")
    for point in found.get("finished", ()):
        yield from check(f"{point['jobs']} finished jobs: writes at restart", point["writes"], "restart_writes")
        per_job = point["objects"] / point["jobs"]
        yield from check(f"{point['jobs']} finished jobs: objects per job", per_job, "objects_per_finished_job")
        yield memory(f"{point['jobs']} finished jobs", point)
    if hostile := found.get("flood"):
        yield from check("a flooded namespace: memory / clean", hostile["rss_ratio"], "flood_rss_ratio")
        about = "a flooded namespace: other jobs' p99 / the same flood in a namespace that is not watched"
        yield from check(about, hostile["own_p99_ratio"], "flood_own_p99_ratio")
    if reporting := found.get("progress"):
        about = f"{reporting['jobs']} jobs report progress"
        yield from check(f"{about}: share of a core", reporting["share"], "progress_share")
        yield from check(f"{about}: writes per second", reporting["writes_per_second"], "progress_writes_per_second")
        yield from check(f"{about}: refused reports", reporting["refused"], "progress_refused")
        yield from check(f"{about}: other writes", reporting["other_writes"], "other_writes")
        yield from check(f"{about}: age of the oldest status, s", reporting["age"], "progress_age")
    for poison in ("500", "hang"):
        sick = found.get("poisoned", {}).get(poison)
        if sick:
            yield from check(f"poisoned by {poison}: p99 / clean", sick["p99_ratio"], "poisoned_p99_ratio")
            yield from check(f"poisoned by {poison}: unfinished", sick["unfinished"], "poisoned_unfinished")


def page(found: Figures) -> str:
    """Return the page of the figures."""
    lines = ["<!-- Written by `make bench`. -->", "# Figures of the control plane", ""]
    lines += [f"Taken on {found['taken']} with {found['cores']} cores, pstraining {found['version']}.", ""]
    lines += ["| check | figure | limit | |", "|---|---|---|---|"]
    lines += [
        f"| {c.what} | {_round(c.value)} | {_round(c.limit)} | {'' if c.ok else '**above**'} |" for c in checks(found)
    ]
    heads = ("shape", "rounds", "T_children, s", "floor, s", "CPU, s", "watch-only CPU, s", "RSS, MB", "objects")
    lines += ["", "| " + " | ".join((*heads, "status writes, events per job")) + " |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name, s in found.get("shapes", {}).items():
        cells = [
            name,
            s["rounds"],
            s["seconds"],
            s.get("floor_seconds"),
            s["cpu"],
            s.get("watch_cpu"),
            s["rss"],
            s["objects"],
        ]
        reported = f"{_round(s['status_writes_per_job'])}, {_round(s['events_per_job'])}"
        lines.append("| " + " | ".join([*(_round(c) for c in cells), reported]) + " |")
    return "\n".join(lines) + "\n"


def _told(points: list[Figures], what: str) -> bool:
    return len(points) > 1 and all(p.get(what) for p in points)


def _round(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, (str, int)) else f"{value:.3g}"
