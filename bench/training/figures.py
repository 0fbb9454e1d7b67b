"""The comparison of figures with their limits, and the page of figures.

thresholds.toml has the names, in the page's order, and the limits. A figure without a limit is only reported.
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
"""Values by the figures' names: one value, or one for each round."""
Kept = dict[str, Any]
"""The content of the result file."""


@dataclass(frozen=True)
class Limit:
    """A figure's limit: a minimum, a maximum, or none."""

    least: float | None = None
    most: float | None = None

    def allows(self, value: float) -> bool:
        """Return whether a value is within the limit; NaN is not."""
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
    """The value; None if it was never measured."""

    @property
    def ok(self) -> bool:
        """Whether the figure was measured and is within its limit."""
        return self.value is not None and self.limit.allows(self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"missing: {self.name}"
        return f"beyond its limit: {self.name}: {rounded(self.value)}, not {self.limit}"


def limits(text: str | None = None) -> dict[str, Limit]:
    """Return the committed names and thresholds.

    Raises:
        TypeError: a figure has a key that is neither `least` nor `most`.
    """
    found = tomllib.loads(LIMITS.read_text() if text is None else text)
    return {name: Limit(**words) for name, words in found.items()}


def add(kept: Kept, taken: Taken) -> Kept:
    """Return the result file's content with newly measured figures, which are the medians of their rounds.

    Figures that are no longer expected are left out.

    Raises:
        KeyError: a figure is not in thresholds.toml.
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
    """Yield every expected figure with its limit."""
    figures = kept.get("figures", {})
    for name, limit in (limits() if held_to is None else held_to).items():
        yield Check(name, limit, figures[name]["value"] if name in figures else None)


def page(kept: Kept) -> str:
    """Return the page of the figures."""
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
    """Return a number with three digits, or with all digits before the point."""
    if value != value:  # noqa: PLR0124 - NaN is not itself
        return "NaN"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
