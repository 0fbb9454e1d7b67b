"""Draw the dashboard with what a Prometheus has, as an SVG.

    python -m hack.picture http://127.0.0.1:9090 NAMESPACE JOB FILE --seconds 300

It is no Grafana: each panel has its title, its lines, their names with the last values, and the range of the values.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from hack.dashboard import COLUMNS, ROWS, Panel
from hack.prometheus import Series, lately

COLUMN, HEIGHT, GAP, HEAD = 50, 190, 8, 30
"""Of the picture, in pixels: a column of the grid, a panel's height, what is between panels, the head of a row."""
COLOURS = ("#2f6fb2", "#d9822b", "#3a9e5c", "#b8423f", "#7a5aa6", "#8a6d3b", "#2aa1a1", "#999999")
LEGEND = 5
"""Lines with a name; the others are only drawn."""
Ask = Callable[[str], Sequence[Series]]


def filled(expression: str, variables: Mapping[str, str]) -> str:
    """An expression with the values of Grafana's variables."""
    return re.sub(r"\$(\w+)", lambda found: variables[found[1]], expression)


def picture(ask: Ask, variables: Mapping[str, str]) -> str:
    """The SVG; `ask` gives an expression's values over the time that is drawn."""
    drawn = {
        panel.title: [
            (_named(legend, series), series)
            for legend, expression in panel.queries
            for series in ask(filled(expression, variables))
        ]
        for panels in ROWS.values()
        for panel in panels
    }
    times = [at for lines in drawn.values() for _, series in lines for at, _ in series.values] or [0.0]
    parts, top = [], 0
    for title, panels in ROWS.items():
        parts.append(f'<text x="{GAP}" y="{top + 20}" class="row">{escape(filled(title, variables))}</text>')
        top += HEAD
        left = 0
        for panel in panels:
            parts.append(_panel(panel, drawn[panel.title], (min(times), max(times)), left * COLUMN, top))
            left = (left + panel.width) % COLUMNS
            top += 0 if left else HEIGHT
    style = (
        "text{font:11px sans-serif;fill:#333}.row{font-size:15px;font-weight:bold}.title{font-weight:bold}"
        ".range{font-size:9px;fill:#777}polyline{fill:none;stroke-width:1.4}rect{fill:#fff;stroke:#ddd}"
    )
    size = f'width="{COLUMNS * COLUMN}" height="{top}" viewBox="0 0 {COLUMNS * COLUMN} {top}"'
    back = '<rect width="100%" height="100%" style="fill:#f4f5f5;stroke:none"/>'
    body = "\n".join([f"<style>{style}</style>", back, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _highest(line: tuple[str, Series]) -> float:
    """Of many lines, those that are something get a name."""
    return max((value for _, value in line[1].values if math.isfinite(value)), default=-math.inf)


def _named(legend: str, series: Series) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)


def _panel(panel: Panel, lines: Sequence[tuple[str, Series]], span: tuple[float, float], left: int, top: int) -> str:
    width, height = panel.width * COLUMN - GAP, HEIGHT - GAP
    points = [value for _, series in lines for _, value in series.values if math.isfinite(value)]
    low, high = min(points, default=0.0), max(points, default=0.0)
    begin, end = span
    low = min(low, 0.0)
    plot_height = height - 44 - 13 * min(len(lines), LEGEND)

    def place(at: float, value: float) -> str:
        x = 34 + (width - 44) * (at - begin) / ((end - begin) or 1)
        return f"{x:.1f},{26 + plot_height * (1 - (value - low) / ((high - low) or 1)):.1f}"

    drawn = [f'<g transform="translate({left + GAP // 2} {top})">', f'<rect width="{width}" height="{height}" rx="3"/>']
    drawn.append(f'<text x="8" y="16" class="title">{escape(panel.title)}</text>')
    if not points:
        drawn.append(f'<text x="{width // 2 - 20}" y="{height // 2}">no data</text>')
    for value, y in ((high, 30), (low, 26 + plot_height)) if points else ():
        drawn.append(f'<text x="30" y="{y}" class="range" text-anchor="end">{escape(shown(value, panel.unit))}</text>')
    for number, (name, series) in enumerate(sorted(lines, key=_highest, reverse=True)):
        colour = COLOURS[number % len(COLOURS)]
        for known, run in groupby(series.values, key=lambda point: math.isfinite(point[1])):
            if known:
                path = " ".join(place(at, value) for at, value in run)
                drawn.append(f'<polyline points="{path}" stroke="{colour}"/>')
        if number < LEGEND:
            y = height - 6 - 13 * (min(len(lines), LEGEND) - 1 - number)
            text = f"{name}: {shown(series.values[-1][1], panel.unit)}"
            drawn.append(
                f'<text x="20" y="{y}">{escape(text)}</text><circle cx="12" cy="{y - 4}" r="3" fill="{colour}"/>'
            )
    return "\n".join([*drawn, "</g>"])


def shown(value: float, unit: str) -> str:
    """A value with its unit, short."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.0%}"
    suffix = {"s": " s", "bytes": "B", "Bps": "B/s"}.get(unit, "")
    for bound, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound and unit != "s":
            return f"{value / bound:.3g} {letter}{suffix}".rstrip()
    return f"{value:.3g}{suffix if unit == 's' or not suffix else ' ' + suffix}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a Prometheus")
    parser.add_argument("namespace")
    parser.add_argument("job")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="how far back (default: 300)")
    given = parser.parse_args()
    variables = {"namespace": given.namespace, "job": given.job, "__rate_interval": "1m"}
    drawn = picture(lambda expression: lately(given.url, expression, given.seconds), variables)
    given.file.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
