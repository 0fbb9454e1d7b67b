"""From figures to a verdict and to a page: every figure by name, with its value and what it is held to.

The names, in the order of the page, and the limits stand in thresholds.toml. A figure without a limit is reported.
"""

import os
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pstraining import __version__

LIMITS: Final = Path(__file__).parent / "thresholds.toml"
Taken = Mapping[str, float | Sequence[float]]
"""Values by the names of figures: one, or one for each round."""
Kept = dict[str, Any]
"""What the result file holds."""


@dataclass(frozen=True)
class Limit:
    """What a figure is held to: at least, at most, or nothing."""

    least: float | None = None
    most: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a value is within it; NaN is not."""
        above = self.least is None or value >= self.least - 1e-9
        below = self.most is None or value <= self.most + 1e-9
        return above and below and value == value  # noqa: PLR0124 - NaN is not itself

    def __str__(self) -> str:
        parts = [("≥", self.least), ("≤", self.most)]
        return ", ".join(f"{sign} {rounded(value)}" for sign, value in parts if value is not None)


@dataclass(frozen=True)
class Check:
    """One figure beside its limit."""

    name: str
    limit: Limit
    value: float | None
    """None: it was never taken."""

    @property
    def ok(self) -> bool:
        """Whether the figure is there and within its limit."""
        return self.value is not None and self.limit.allows(self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"missing: {self.name}"
        return f"beyond its limit: {self.name}: {rounded(self.value)}, not {self.limit}"


def limits(text: str | None = None) -> dict[str, Limit]:
    """The committed names and thresholds.

    Raises:
        TypeError: a figure has a word that is neither `least` nor `most`.
    """
    found = tomllib.loads(LIMITS.read_text() if text is None else text)
    return {name: Limit(**words) for name, words in found.items()}


def add(kept: Kept, taken: Taken) -> Kept:
    """The result file's content with some figures taken again; of several rounds the median counts.

    Figures that are no longer expected are left out.

    Raises:
        KeyError: a figure has no place in thresholds.toml.
    """
    expected = limits()
    unknown = taken.keys() - expected.keys()
    if unknown:
        raise KeyError(f"not in {LIMITS.name}: {', '.join(sorted(unknown))}")
    figures = {name: found for name, found in kept.get("figures", {}).items() if name in expected}
    for name, found in taken.items():
        each = list(found) if isinstance(found, Sequence) else [found]
        figures[name] = {
            "value": statistics.median(each),
            **({"each": each} if len(each) > 1 else {}),
            "taken": datetime.now(UTC).date().isoformat(),
        }
    return {"version": __version__, "cores": os.cpu_count(), "figures": figures}


def checks(kept: Kept, held_to: Mapping[str, Limit] | None = None) -> Iterator[Check]:
    """Every figure that there should be, beside its limit."""
    figures = kept.get("figures", {})
    for name, limit in (limits() if held_to is None else held_to).items():
        yield Check(name, limit, figures[name]["value"] if name in figures else None)


def page(kept: Kept) -> str:
    """The figures as a page."""
    lines = ["<!-- Written by `python -m bench.training`. -->", "# Figures of the training runtime", ""]
    lines += [f"Taken with {kept.get('cores')} cores, pstraining {kept.get('version')}.", ""]
    lines += ["| figure | value | rounds | limit | | taken |", "|---|---|---|---|---|---|"]
    for check in checks(kept):
        found = kept.get("figures", {}).get(check.name, {})
        value = "-" if check.value is None else rounded(check.value)
        each = ", ".join(rounded(one) for one in found.get("each", ()))
        verdict = "" if check.ok else ("**missing**" if check.value is None else "**beyond**")
        lines.append(f"| {check.name} | {value} | {each} | {check.limit} | {verdict} | {found.get('taken', '')} |")
    return "\n".join(lines) + "\n"


def rounded(value: float) -> str:
    """Three digits, or all of those before the point."""
    if value != value:  # noqa: PLR0124 - NaN is not itself
        return "NaN"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
