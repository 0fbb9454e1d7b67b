"""The layers of the tests: their commands, requirements and time budgets. Data only."""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from hack.level import Level

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BIN = Path(PYTHON).parent
OWN = "not installed and not alone"
"""Selects the end-to-end tests with a separate operator."""
SITE = (str(BIN / "sphinx-build"), *["-c", "docs", "-W", "--keep-going", "-q", "-j", "auto", "-E", ".", "build/site"])
"""Sphinx checks every link, and a warning is an error. `-E` reads all pages again; known pages give no warnings."""
CHECKED = ("operator/pstraining", "hack", "localcluster", "tests", "examples", "bench")


@dataclass(frozen=True)
class Budget:
    """Seconds that a layer may take on a warm machine, with built programs and images and a running cluster."""

    quick: float
    all: float

    def at(self, level: Level) -> float | None:
        """Return the seconds at a level; None for a soak, which has no budget."""
        return {Level.QUICK: self.quick, Level.ALL: self.all}.get(level)


@dataclass(frozen=True)
class Part:
    """One run of pytest with a report."""

    name: str
    """Unique within the layer; the name of a single part is not shown."""
    paths: tuple[str, ...]
    """Folders or files."""
    options: tuple[str, ...] = ()
    """Further options of pytest, including the selection of tests: `("-m", "not alone", "-n", "3")`."""
    groups: int = 1
    """Number of runs for the files above the level `quick`, each with new processes."""

    def split(self) -> tuple["Part", ...]:
        """Return a part for each group of files; neighbors in the order of names are in different groups."""
        if self.groups == 1:
            return (self,)
        found = [ROOT / path for path in self.paths]
        files = sorted(file for path in found for file in ([path] if path.is_file() else path.rglob("test_*.py")))
        names = [str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file) for file in files]
        groups = [tuple(names[number :: self.groups]) for number in range(self.groups)]
        return tuple(
            replace(self, name=f"{self.name} {number} of {self.groups}", paths=own, groups=1)
            for number, own in enumerate(groups, start=1)
            if own
        )

    def only(self, files: Collection[str]) -> "Part":
        """Return the part, limited to these files."""
        chosen = (f for f in files if any(f == path or f.startswith(f"{path}/") for path in self.paths))
        return replace(self, paths=tuple(sorted(chosen)))


@dataclass(frozen=True)
class Layer:
    """A group of checks that run together."""

    name: str
    checks: tuple[tuple[str, ...], ...] = ()
    """Commands that pass or fail as a whole, each without the others: several run at the same time."""
    parts: tuple[Part, ...] = ()
    """Runs of pytest in sequence. Each test is in one part only."""
    budget_s: Budget = field(default=Budget(60, 60))
    cheap: bool = False
    """Whether a failure ends the whole run at once."""
    helm: bool = False
    tools: tuple[str, ...] = ()
    """Programs of localcluster/tools.py for the layer's tests; they are built before the tests are measured."""
    tools_of_all: tuple[str, ...] = ()
    """Further ones, for tests that `make test` skips."""
    programs: tuple[str, ...] = ()
    """Programs of Debian packages for the layer's tests; as root, they are installed before the tests."""
    browser: bool = False
    """Whether tests that only `make test-all` runs need Chromium; as root, it is installed before the tests."""
    cluster: bool = False
    images: bool = False
    """Whether the cluster's nodes need the project's images."""
    narrowed: bool = False
    """Whether only some of the files run, whose tests may all belong to another level."""

    @property
    def folders(self) -> tuple[str, ...]:
        """All paths of the parts, each once."""
        return tuple(dict.fromkeys(path for part in self.parts for path in part.paths))

    def at(self, level: Level) -> "Layer":
        """Return the layer as it runs at a level."""
        if level is Level.QUICK:
            return self
        parts = tuple(own for part in self.parts for own in part.split())
        return replace(self, tools=(*self.tools, *self.tools_of_all), parts=parts)

    def only(self, files: Collection[str]) -> "Layer":
        """Return the layer, limited to these test files."""
        parts = tuple(part for part in (part.only(files) for part in self.parts) if part.paths)
        return replace(self, parts=parts, narrowed=True)

    def report_name(self, part: Part) -> str:
        """Return the stem of the file name of a part's report."""
        return self.name if len(self.parts) == 1 else f"{self.name}-{part.name}".replace(" ", "-")


LAYERS = (
    Layer(
        "lint",
        cheap=True,
        budget_s=Budget(60, 60),
        # Several checks run at the same time, started in this order: the longest first, except for the short ones.
        checks=(
            (str(BIN / "mypy"), *CHECKED),
            (str(BIN / "ruff"), "check", "."),
            (str(BIN / "ruff"), "format", "--check", "."),
            (PYTHON, "hack/module_length.py"),
            SITE,
            (PYTHON, "hack/docs/prose.py"),
            (PYTHON, "hack/docs/links.py"),
            (str(BIN / "lint-imports"), "--no-logo"),
        ),
    ),
    Layer("drift", cheap=True, budget_s=Budget(10, 10), checks=((PYTHON, "hack/generate.py", "--check"),)),
    Layer(
        "unit",
        cheap=True,
        browser=True,
        budget_s=Budget(60, 60),
        parts=(Part("unit", ("tests/unit", "tests/contract"), ("-n", str(min(4, 1 + (os.cpu_count() or 1))))),),
    ),
    Layer(
        "property",
        cheap=True,
        budget_s=Budget(60, 300),
        parts=(Part("property", ("tests/property",), ("-n", "auto", "--maxprocesses", "4")),),
    ),
    Layer(
        "chart", helm=True, tools=("prometheus",), budget_s=Budget(30, 120), parts=(Part("chart", ("tests/chart",)),)
    ),
    # Two at a time, because tests wait for processes half of the time; the tests of a file share their servers. A test
    # that hangs in TensorFlow receives no signal: pytest-timeout needs a thread. xdist does not restart a lost process,
    # for whose tests it could wait forever. TensorFlow never releases a traced function: all tests in one process need
    # more than 10 GB, and servers and the other process as much.
    Layer(
        "training",
        programs=("ip", "iptables"),
        budget_s=Budget(420, 1500),
        parts=(
            Part(
                "training",
                ("tests/processes", "tests/training"),
                (
                    *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"),
                    *("--timeout-method=thread", "-o", "faulthandler_timeout=240"),
                ),
                groups=3,
            ),
        ),
    ),
    Layer(
        "controlplane",
        cluster=True,
        tools=("scheduler-plugins",),
        budget_s=Budget(90, 120),
        parts=(Part("controlplane", ("tests/controlplane",), ("-n", "3", "--dist", "loadfile")),),
    ),
    Layer(
        "e2e",
        cluster=True,
        images=True,
        helm=True,
        tools=("scheduler-plugins", "kwok", "prometheus-operator"),
        tools_of_all=("prometheus", "kueue"),
        budget_s=Budget(600, 2400),
        # tests/e2e/conftest.py describes the parts.
        parts=(
            Part("own", ("tests/e2e",), ("-m", f"not trains and {OWN}", "-n", "4", "--dist", "worksteal")),
            Part("trains", ("tests/e2e",), ("-m", f"trains and {OWN}", "-n", "2", "--dist", "worksteal")),
            Part(
                "installed",
                ("tests/e2e",),
                ("-m", "installed and not alone", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
            ),
            Part("alone", ("tests/e2e",), ("-m", "alone")),
        ),
    ),
)


def names() -> tuple[str, ...]:
    """Return the names of all layers, in the order of their runs."""
    return tuple(layer.name for layer in LAYERS)
