"""Draw the package's layers as an SVG, from the import contracts in pyproject.toml.

import-linter enforces the contracts, and the picture therefore matches the code. `make generate` writes the picture.
"""

import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH, ROW, GAP, COLUMN, MIDDLE = 960, 46, 8, 440, 500
"""In pixels: the width of the picture, the height of a row, the space between boxes, a column, the second's left."""

WORDS = {
    "client": "from Python, without YAML",
    "cli": "kubectl pstraining",
    "controller": "watches, queue, status",
    "kube": "calls of the API server",
    "core": "observe, plan, status: pure",
    "resources": "builders of children",
    "api": "models of the CRD, names, conditions, the contract with training pods",
    "trainer": "the public object",
    "local": "a job on one machine",
    "task_context": "the inputs of a task",
    "chief": "restore, save, report",
    "worker": "pull, compute, push",
    "history": "summary and logs",
    "tracking": "runs of MLflow",
    "replication": "views, failover, state transfer",
    "updates": "Async, Sync, Hybrid",
    "compression": "codecs, residuals",
    "data": "sources, splits",
    "ps": "parameters, record, ledger",
    "checkpoint": "storage, interval",
    "transport": "connections, probes",
    "model": "Keras, slices",
    "telemetry": "events, metrics",
    "allreduce": "the ring",
    "config": "settings",
    "errors": "what another run cannot mend",
    "launcher": "standard library only",
}
"""The contents of each package in a few words; each package must have an entry."""


def layers(pyproject: str, container: str = "") -> list[list[str]]:
    """Return the layers of the package, or of a package in it, from the top; siblings are in one layer."""
    for contract in tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract.get("containers", [""]) == [container]:
            rows = ([name.strip() for name in layer.split("|")] for layer in contract["layers"])
            return [[name.removeprefix("pstraining.") for name in row] for row in rows]
    raise ValueError(f"pyproject.toml has no contract of layers for {container or 'the package'}")


def picture(pyproject: str) -> str:
    """Return the SVG."""
    outer, inner = layers(pyproject), layers(pyproject, "pstraining.runtime")
    *upper, lowest = outer
    height = 60 + (len(inner) + 1) * (ROW + GAP) + 24
    bottom = height - 24 - ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="20" y="30" fill="#222222">operator and command line</text>',
        f'<text x="{MIDDLE}" y="30" fill="#222222">runtime, in training pods</text>',
        f'<text x="20" y="{height - 8}" fill="#555555">Each layer may import the layers below it; packages in one row '
        "import nothing of each other.</text>",
    ]
    for number, row in enumerate(upper):
        parts += _row(row, 20, 44 + number * (ROW + GAP), "#dbe9f6")
    parts += _row(["launcher"], 20, bottom - 2 * (ROW + GAP), "#eeeeee")
    for number, row in enumerate(inner):
        parts += _row(row, MIDDLE, 44 + number * (ROW + GAP), "#e2f0d9")
    parts += _row(lowest, 20, bottom, "#dbe9f6", WIDTH - 40)
    return "\n".join([*parts, "</svg>", ""])


def _row(names: Sequence[str], left: int, top: int, fill: str, width: int = COLUMN) -> Iterator[str]:
    """Yield one layer's boxes."""
    each = (width - GAP * (len(names) - 1)) // len(names)
    for number, name in enumerate(names):
        x = left + number * (each + GAP)
        yield f'<rect x="{x}" y="{top}" width="{each}" height="{ROW}" rx="4" fill="{fill}" stroke="#888888"/>'
        at = f'x="{x + each // 2}" text-anchor="middle"'
        yield f'<text {at} y="{top + 19}" font-weight="bold" fill="#222222">{escape(name)}</text>'
        yield f'<text {at} y="{top + 36}" font-size="11" fill="#444444">{escape(WORDS[name])}</text>'
