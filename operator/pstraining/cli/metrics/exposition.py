"""Prometheus' text format, as far as the tasks' metrics use it: a small, strict reader.

prometheus_client belongs to processes that are scraped; a command that reads a few numbers does without it.
"""

import re
from dataclasses import dataclass
from typing import Final

_LABEL = re.compile(r'\s*(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|$)')
_SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*'
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True)
class Samples:
    """What one scrape has told: values by name and labels."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str) -> float | None:
        """The value of a metric without labels; None if it is not told."""
        return self.values.get((name, ()))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by its one label."""
        return {
            labels[0][1]: value
            for (found, labels), value in self.values.items()
            if found == name and [key for key, _ in labels] == [label]
        }


def read(text: str) -> Samples:
    """All samples of a scrape.

    Raises:
        ValueError: a line is not in the format; says which.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line)
        try:
            if sample is None:
                raise ValueError
            found[sample["name"], _labels(sample["labels"] or "")] = float(sample["value"])
        except ValueError:
            raise ValueError(f"line {number} is no metric: {line[:80]!r}") from None
    return Samples(found)


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    found, at = {}, 0
    while at < len(text.rstrip()):
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError
        found[label["name"]] = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), label["value"])
        at = label.end()
    return tuple(sorted(found.items()))
