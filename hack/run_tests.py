"""Run layers of the tests, the cheap ones first, and say how each went.

    python hack/run_tests.py            everything: what `make test` and CI run
    python hack/run_tests.py unit       one or several layers

A cluster that a layer needs is brought up with the project's images and taken down again at the end, also after a
failure or Ctrl-C; one that was up before, or that KUBECONFIG and PSTRAINING_CONTEXT name, is used and left as it is.
When a cheap layer fails the others are not run; after that a failure does not keep later layers from running.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack.cluster.errors import ClusterError  # noqa: E402 (the path comes first)
from hack.cluster.progress import Progress  # noqa: E402
from hack.stand import Stand  # noqa: E402

REPORTS = ROOT / "build" / "test-reports"
PYTHON = sys.executable
BIN = Path(PYTHON).parent
CLEAN_UP_S = 120
"""Seconds that an interrupted layer has for its own clean-up."""
LONGEST_S = (8 if os.environ.get("PSTRAINING_THOROUGH") else 1) * 60 * 60
"""Seconds for one command of a layer (a soak takes hours): a run that hangs is ended, and the next is run."""
CHECKED = ("operator/pstraining", "hack", "tests", "examples", "bench")


@dataclass(frozen=True)
class Layer:
    """A group of checks that are run together."""

    name: str
    checks: tuple[tuple[str, ...], ...] = ()
    """Commands that pass or fail as a whole."""
    tests: tuple[str, ...] = ()
    """Folders for pytest."""
    options: tuple[str, ...] = ()
    """Further options of pytest."""
    cheap: bool = False
    """A failure ends the run at once."""
    helm: bool = False
    cluster: bool = False
    images: bool = False
    """The project's images must be on the cluster's nodes."""


LAYERS = (
    Layer(
        "lint",
        cheap=True,
        checks=(
            (str(BIN / "ruff"), "check", "."),
            (str(BIN / "ruff"), "format", "--check", "."),
            (PYTHON, "hack/module_length.py"),
            (PYTHON, "hack/links.py"),
            (PYTHON, "hack/site.py"),
            (str(BIN / "lint-imports"), "--no-logo"),
            (str(BIN / "mypy"), *CHECKED),
        ),
    ),
    Layer("drift", cheap=True, checks=((PYTHON, "hack/generate.py", "--check"),)),
    Layer(
        "unit",
        cheap=True,
        tests=("tests/unit", "tests/property", "tests/contract"),
        options=("-n", "auto", "--maxprocesses", "4"),
    ),
    Layer("chart", helm=True, tests=("tests/chart",)),
    # Two at a time: they wait for processes as much as they compute. The tests of a file share their servers. Whoever
    # hangs in TensorFlow hears no signal; once a process is lost, xdist may wait for ever for what it should have run.
    Layer(
        "training",
        tests=("tests/processes", "tests/training"),
        options=("-n", "2", "--dist", "loadfile", "--timeout-method=thread", "--max-worker-restart=0"),
    ),
    Layer("controlplane", cluster=True, tests=("tests/controlplane",)),
    Layer("e2e", cluster=True, images=True, helm=True, tests=("tests/e2e",)),
)


@dataclass
class Outcome:
    """How a layer went."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""
    """What went wrong besides failed tests."""

    @property
    def good(self) -> bool:
        """Nothing failed, and something was run."""
        return not self.failed and not self.problem and self.passed > 0

    def line(self) -> str:
        """One line for the table at the end."""
        counts = f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")
        problem = f" ({self.problem})" if self.problem else ""
        return f"  {'ok' if self.good else 'FAILED':<7} {self.name:<13} {self.seconds:7.1f} s   {counts}{problem}"


@dataclass
class Surroundings:
    """What layers need besides the repository, made when first asked for."""

    progress: Progress
    images: bool
    """Some layer needs the images: they are built while the cluster comes up, and not while tests run."""
    stand: Stand = field(init=False)
    _cluster: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.stand = Stand(self.progress)

    def environment(self, layer: Layer) -> dict[str, str]:
        """The variables for a layer's tests.

        Raises:
            ClusterError: what it needs could not be made.
        """
        found = dict(os.environ)
        if layer.helm and not layer.cluster:
            found["HELM"] = self.stand.helm()
        if layer.cluster:
            if self._cluster is None:
                target = self.stand.up(with_images=self.images)
                if self.images:
                    self.stand.load_all()
                self._cluster = target.environment()
            found.update(self._cluster)
        return found

    def close(self) -> None:
        """Leave the machine as it was found."""
        self.stand.close()
        self.stand.down()


class EndlessError(Exception):
    """A command took too long, and was ended."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, but sent to us alone and not to what we run."""


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; when interrupted, let it clean up first. Its exit status.

    Raises:
        EndlessError: it took longer than LONGEST_S.
    """
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            end(process, tell=True)
            raise EndlessError(f"{Path(command[0]).name} was ended after {LONGEST_S:g} s") from None
        except KeyboardInterrupt as interrupt:
            end(process, tell=isinstance(interrupt, TerminatedError))
            raise


def end(process: subprocess.Popen[bytes], *, tell: bool) -> None:
    """Wait for a process that was interrupted, or is to be told so, and has some time to clean up."""
    if tell:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(CLEAN_UP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the numbers of a JUnit report."""
    suites = ET.parse(path).getroot().iter("testsuite")
    for suite in suites:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        outcome.failed += failed
        outcome.skipped += skipped
        outcome.passed += int(suite.get("tests", 0)) - failed - skipped


def run_pytest(layer: Layer, environment: Mapping[str, str], outcome: Outcome) -> None:
    """Run a layer's tests."""
    report = REPORTS / f"{layer.name}.xml"
    report.unlink(missing_ok=True)
    report.parent.mkdir(parents=True, exist_ok=True)
    folders = [folder for folder in layer.tests if any((ROOT / folder).rglob("test_*.py"))]
    if not folders:
        outcome.problem = "there are no tests"
        return
    command = [PYTHON, "-m", "pytest", "-q", *layer.options, f"--junitxml={report}", *folders]
    code = run_child(command, environment)
    if report.exists():
        read_report(report, outcome)
    if code and not outcome.failed:
        outcome.problem = f"pytest ended with {code}"


def run_layer(layer: Layer, surroundings: Surroundings) -> Outcome:
    """Run one layer, whatever happens in it."""
    outcome = Outcome(layer.name)
    print(f"\n== {layer.name}", flush=True)
    started = time.monotonic()
    try:
        environment = surroundings.environment(layer)
        for check in layer.checks:
            print(f"$ {' '.join([Path(check[0]).name, *check[1:]])}", flush=True)
            if run_child(check, environment):
                outcome.failed += 1
            else:
                outcome.passed += 1
        if layer.tests:
            run_pytest(layer, environment, outcome)
    except EndlessError as error:
        outcome.problem = str(error)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        outcome.problem = "what it needs could not be made"
    outcome.seconds = time.monotonic() - started
    return outcome


def run(layers: Sequence[Layer], surroundings: Surroundings) -> tuple[list[Outcome], str]:
    """Run layers in order; how they went, and why the rest was not run."""
    outcomes: list[Outcome] = []
    try:
        for layer in layers:
            outcomes.append(run_layer(layer, surroundings))
            if layer.cheap and not outcomes[-1].good and len(outcomes) < len(layers):
                return outcomes, f"{layer.name} failed"
    except KeyboardInterrupt:
        return outcomes, "interrupted"
    return outcomes, ""


def summarize(layers: Sequence[Layer], outcomes: Sequence[Outcome], why_not: str) -> int:
    """Print the table and the sum; the exit status."""
    print("\n== results")
    for outcome in outcomes:
        print(outcome.line())
    for layer in layers[len(outcomes) :]:
        print(f"  not run {layer.name:<13} ({why_not})")
    failed = sum(o.failed or int(not o.good) for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    tail = f", {skipped} skipped" if skipped else ""
    print(f"\n{sum(o.passed for o in outcomes)} passed, {failed} failed{tail}", flush=True)
    return 1 if failed or why_not else 0


def interrupted(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the run like Ctrl-C: with everything taken down."""
    raise TerminatedError


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [layer.name for layer in LAYERS]
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of {', '.join(names)}; all by default")
    asked = parser.parse_args().layers
    if unknown := set(asked) - set(names):
        parser.error(f"no layer {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    layers = [layer for layer in LAYERS if layer.name in asked or not asked]
    # Also where a shell without job control has switched Ctrl-C off for us and all that we run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        surroundings = Surroundings(Progress(), images=any(layer.images for layer in layers))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        outcomes, why_not = run(layers, surroundings)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        surroundings.close()
    return summarize(layers, outcomes, why_not)


if __name__ == "__main__":
    sys.exit(main())
