"""The layers of the tests: what they run, what they need, how long they may take. Data, and nothing else."""

import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from hack.level import Level

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BIN = Path(PYTHON).parent
OWN = "not installed and not alone"
"""Selects the end-to-end tests with an operator of their own."""
SITE = (str(BIN / "sphinx-build"), *["-c", "docs", "-W", "--keep-going", "-q", "-j", "auto", "-E", ".", "build/site"])
"""Sphinx follows every link; a warning is an error. `-E` reads all pages again: else it is silent on those it knows."""
CHECKED = ("operator/pstraining", "hack", "localcluster", "tests", "examples", "bench")


@dataclass(frozen=True)
class Budget:
    """Seconds that a layer may take on a warm machine: built programs, images and cluster are there."""

    quick: float
    all: float

    def at(self, level: Level) -> float | None:
        """The seconds at a level; a soak has no budget."""
        return {Level.QUICK: self.quick, Level.ALL: self.all}.get(level)


@dataclass(frozen=True)
class Part:
    """One run of pytest, with its own report."""

    name: str
    """Different for each part of a layer; the name of an only part is not shown."""
    paths: tuple[str, ...]
    """Folders or files."""
    options: tuple[str, ...] = ()
    """Further options of pytest, also those that select tests: `("-m", "not alone", "-n", "3")`."""

    def only(self, files: Collection[str]) -> "Part":
        """The same part, limited to these files."""
        chosen = (f for f in files if any(f == path or f.startswith(f"{path}/") for path in self.paths))
        return replace(self, paths=tuple(sorted(chosen)))


@dataclass(frozen=True)
class Layer:
    """A group of checks that are run together."""

    name: str
    checks: tuple[tuple[str, ...], ...] = ()
    """Commands that pass or fail as a whole, each without the others: several run at the same time."""
    parts: tuple[Part, ...] = ()
    """Runs of pytest, one after the other. A test may be in one of them only."""
    budget_s: Budget = field(default=Budget(60, 60))
    cheap: bool = False
    """A failure ends the run at once."""
    helm: bool = False
    tools: tuple[str, ...] = ()
    """Programs of localcluster/tools.py that its tests run: built before, not while others are measured."""
    programs: tuple[str, ...] = ()
    """Programs of Debian packages that its tests run as root: installed before, with those of the cluster."""
    browser: bool = False
    """Its tests that only `make test-all` runs look at pages in Chromium: as root, its package is installed before."""
    cluster: bool = False
    images: bool = False
    """The project's images must be on the cluster's nodes."""
    narrowed: bool = False
    """Only some of its files are run: it may be that all tests in them are for another level."""

    @property
    def folders(self) -> tuple[str, ...]:
        """All paths of its parts, each once."""
        return tuple(dict.fromkeys(path for part in self.parts for path in part.paths))

    def only(self, files: Collection[str]) -> "Layer":
        """The same layer, limited to these test files."""
        parts = tuple(part for part in (part.only(files) for part in self.parts) if part.paths)
        return replace(self, parts=parts, narrowed=True)

    def report_name(self, part: Part) -> str:
        """The stem of the file of a part's report."""
        return self.name if len(self.parts) == 1 else f"{self.name}-{part.name}"


LAYERS = (
    Layer(
        "lint",
        cheap=True,
        budget_s=Budget(60, 60),
        # Several run at the same time, and are started in this order: the longest first, but for the short ones.
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
        parts=(
            # The longest tests come first: at the end no process waits for another one.
            Part("unit", ("tests/property", "tests/unit", "tests/contract"), ("-n", "auto", "--maxprocesses", "4")),
        ),
    ),
    Layer(
        "chart", helm=True, tools=("prometheus",), budget_s=Budget(30, 120), parts=(Part("chart", ("tests/chart",)),)
    ),
    # Two at a time: they wait for processes as much as they compute; the tests of a file share their servers. A test
    # that hangs in TensorFlow hears no signal; once a process is lost, xdist may wait for ever for what it should have
    # run.
    Layer(
        "training",
        programs=("ip", "iptables"),
        budget_s=Budget(420, 1500),
        parts=(
            Part(
                "training",
                ("tests/processes", "tests/training"),
                (
                    *("-n", "2", "--dist", "loadfile", "--max-worker-restart=0"),
                    *("--timeout-method=thread", "-o", "faulthandler_timeout=240"),
                ),
            ),
        ),
    ),
    Layer(
        "controlplane",
        cluster=True,
        budget_s=Budget(90, 120),
        parts=(Part("controlplane", ("tests/controlplane",), ("-n", "3", "--dist", "loadfile")),),
    ),
    Layer(
        "e2e",
        cluster=True,
        images=True,
        helm=True,
        tools=("scheduler-plugins", "kwok"),
        budget_s=Budget(600, 2400),
        # See tests/e2e/conftest.py for what is in which part.
        parts=(
            Part("own", ("tests/e2e",), ("-m", f"not trains and {OWN}", "-n", "4", "--dist", "worksteal")),
            Part("trains", ("tests/e2e",), ("-m", f"trains and {OWN}", "-n", "2", "--dist", "worksteal")),
            Part("installed", ("tests/e2e",), ("-m", "installed and not alone", "-n", "2", "--dist", "loadfile")),
            Part("alone", ("tests/e2e",), ("-m", "alone")),
        ),
    ),
)


def names() -> tuple[str, ...]:
    """The names of all layers, in the order in which they are run."""
    return tuple(layer.name for layer in LAYERS)
