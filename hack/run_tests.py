"""Run layers of the tests, the cheap ones first, and report each result.

    python hack/run_tests.py              everything: what `make test` and CI run
    python hack/run_tests.py unit         one or several layers
    python hack/run_tests.py --changed    tests that a change may have broken: see hack/changed.py

PSTRAINING_TESTS sets the level of the tests (quick, all or soak). The output of layers is in build/test-reports; the
terminal shows progress and failures.

If a layer needs a cluster, one is started with the project's images, and removed at the end, also after a failure or
Ctrl-C. A cluster that ran before, or that KUBECONFIG and PSTRAINING_CONTEXT name, is used and kept. After a failure of
a cheap layer no further layer runs; other failures do not prevent later layers.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from hack import changed, processor, pytest_progress, quiet  # noqa: E402 (the path comes first)
from hack.children import Ended, EndlessError, interrupted, run_child, run_children  # noqa: E402
from hack.layers import LAYERS, PYTHON, Layer, Part, names  # noqa: E402
from hack.level import Level, LevelError, read_level  # noqa: E402
from hack.reports import Outcome, Summary, read_report  # noqa: E402
from hack.test_cluster import ClusterSession  # noqa: E402
from localcluster.errors import ClusterError  # noqa: E402
from localcluster.packages import ensure_browser, ensure_packages  # noqa: E402
from localcluster.progress import Progress  # noqa: E402

REPORTS = ROOT / "build" / "test-reports"
LONGEST_S: Mapping[Level, float] = {Level.QUICK: 60 * 60, Level.ALL: 2 * 60 * 60, Level.SOAK: 8 * 60 * 60}
"""Time limit for one command of a layer in seconds; a command that exceeds it is ended."""
BEGAN = "PSTRAINING_LAYER_BEGAN"
"""Environment variable with the start time of a layer, for its tests."""
NO_TESTS = 5
"""The exit status of pytest when it selects no test."""


@dataclass
class Surroundings:
    """The requirements of layers besides the repository, created when a layer first needs them."""

    progress: Progress
    images: bool
    """Whether a layer needs the images, which are built while the cluster starts, and not while tests run."""
    level: Level = Level.QUICK
    session: ClusterSession = field(init=False)
    _cluster: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.session = ClusterSession(self.progress)

    def environment(self, layer: Layer) -> dict[str, str]:
        """Provide a layer's requirements, and return the environment variables for its tests.

        Raises:
            ClusterError: a requirement could not be provided.
        """
        found = dict(os.environ)
        found.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the same modules
        if layer.tools and self.session.context is None:
            self.session.toolbox.ensure(layer.tools)
        if os.geteuid() == 0 and not all(map(shutil.which, layer.programs)):
            ensure_packages(self.session.layout, self.progress)
        if layer.browser and self.level is not Level.QUICK and os.geteuid() == 0:
            ensure_browser(self.session.layout, self.progress)
        if layer.helm and not layer.cluster:
            found["HELM"] = self.session.helm()
        if layer.cluster:
            if self._cluster is None:
                target = self.session.up(with_images=self.images)
                if self.images:
                    self.session.load_all()
                self._cluster = target.environment()
            found.update(self._cluster)
        return found

    def close(self) -> None:
        """Remove the requirements that were created."""
        self.session.close()
        self.session.down()


@dataclass
class Runner:
    """Runs layers."""

    surroundings: Surroundings
    level: Level = Level.QUICK
    reports: Path = REPORTS
    verbose: bool = False
    """Whether layers print on the terminal and write no log."""
    longest_s: float = LONGEST_S[Level.QUICK]
    line: quiet.Line = field(default_factory=quiet.Line)
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        self.summary = Summary(self.level)

    def run(self, layers: Sequence[Layer]) -> Summary:
        """Run layers in order, and return their outcomes with the layers that did not run."""
        outcomes = self.summary.outcomes
        try:
            for layer in layers:
                outcomes.append(self.run_layer(layer))
                self.line.say(outcomes[-1].line())
                if layer.cheap and not outcomes[-1].good and len(outcomes) < len(layers):
                    self.summary.why_not = f"{layer.name} failed"
                    break
        except KeyboardInterrupt:
            self.line.clear()
            self.summary.why_not = "interrupted"
        self.summary.not_run = tuple(layer.name for layer in layers[len(outcomes) :])
        return self.summary

    def run_layer(self, layer: Layer) -> Outcome:
        """Run one layer and return its outcome, which includes errors."""
        layer = layer.at(self.level)
        outcome = Outcome(layer.name, budget_s=layer.budget_s.at(self.level), narrowed=layer.narrowed)
        if self.verbose:
            print(f"\n== {layer.name}", flush=True)
        self.line.start()
        try:
            environment = self._environment(layer)
        except ClusterError as error:
            self.line.clear()
            print(f"error: {error}", file=sys.stderr, flush=True)
            outcome.problem = "what it needs could not be made"
            return outcome
        scratch = tempfile.mkdtemp(prefix="pst-")
        with _measured(outcome):
            try:
                LayerRun(self, layer, {**environment, "TMPDIR": scratch}, outcome).run()
            except EndlessError as error:
                outcome.problem = str(error)
        if outcome.good:  # TensorFlow leaves a file for each function of a killed process
            shutil.rmtree(scratch, ignore_errors=True)
        return outcome

    def _environment(self, layer: Layer) -> Mapping[str, str]:
        started = time.monotonic()
        try:
            return self.surroundings.environment(layer)
        finally:
            self.summary.preparation_s += time.monotonic() - started


@contextmanager
def _measured(outcome: Outcome) -> Iterator[None]:
    """Measure a layer's duration and its use of the cores."""
    started, before = time.monotonic(), processor.look()
    try:
        yield
    finally:
        outcome.seconds = time.monotonic() - started
        outcome.cores = processor.look().since(before)


class LayerRun:
    """One run of a layer whose requirements are provided."""

    def __init__(self, runner: Runner, layer: Layer, environment: Mapping[str, str], outcome: Outcome) -> None:
        """Create the layer's log, without a run."""
        self.runner, self.layer, self.outcome = runner, layer, outcome
        self.environment = {**environment, BEGAN: datetime.now(UTC).isoformat()}
        self.started = time.monotonic()
        self.log = None if runner.verbose else quiet.Log(runner.reports / f"{layer.name}.log")

    def run(self) -> None:
        """Run the layer's checks, and then its parts."""
        self._checks()
        parts = [part for part in self.layer.parts if _has_tests(part)]
        for part in parts:
            self._part(part)
        if self.layer.parts and not parts:
            self.outcome.problem = "there are no tests"
        elif parts and not (self.layer.narrowed or self.outcome.tests or self.outcome.failed or self.outcome.problem):
            self.outcome.problem = "no tests were selected"

    def _checks(self) -> None:
        """Run the checks at the same time, one per core; on the terminal, where their output would mix, run them in
        sequence.
        """
        checks = self.layer.checks
        if self.log is None:
            for check in checks:
                self._count(self._command(check, ""))
            return

        def look() -> None:
            ended = self.outcome.passed + self.outcome.failed
            self._show_progress(f"{ended}/{len(checks)} checks", pytest_progress.Count())

        run_children(
            checks,
            self.environment,
            self.runner.longest_s,
            at_once=os.cpu_count() or 1,
            report=self._checked,
            look=look,
        )

    def _checked(self, ended: Ended) -> None:
        """Write a check's output to the log, and show the end of it if the check failed."""
        assert self.log is not None
        start = self.log.begin(ended.command)
        self.log.add(ended.output)
        self._count(ended.code)
        if ended.code:
            self._show([f"$ {_shown(ended.command)}", *quiet.tail(self.log.since(start))])

    def _count(self, code: int) -> None:
        self.outcome.failed += bool(code)
        self.outcome.passed += not code

    def _show_progress(self, what: str, count: pytest_progress.Count) -> None:
        seconds = time.monotonic() - self.started
        self.runner.line.show(quiet.progress(self.layer.name, what, count, seconds))

    def _part(self, part: Part) -> None:
        """Run pytest, and read its report."""
        report = self.runner.reports / f"{self.layer.report_name(part)}.xml"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        command = [PYTHON, "-m", "pytest", "-q", *part.options, f"--junitxml={report}"]
        failed = self.outcome.failed
        what = "" if len(self.layer.parts) == 1 else part.name
        code = self._command([*command, *part.paths], what, report.with_suffix(".progress"))
        if report.exists():
            read_report(report, self.outcome)
        if code not in (0, NO_TESTS) and self.outcome.failed == failed:
            self.outcome.problem = f"pytest ended with {code}"

    def _command(self, command: Sequence[str], what: str, counted: Path | None = None) -> int:
        """Run a command and return its exit status; show the relevant output of a failure."""
        if self.log is None:
            print(f"$ {_shown(command)}", flush=True)
            return run_child(command, self.environment, self.runner.longest_s)
        environment = dict(self.environment)
        if counted:
            counted.unlink(missing_ok=True)
            # One line per test, to find the hung one in a log; figures that tests print are beside it.
            command = [*command, "-p", "hack.pytest_progress", "-o", "verbosity_test_cases=1"]
            environment[pytest_progress.FILE] = str(counted)

        def look() -> None:
            self._show_progress(what, pytest_progress.read(counted) if counted else pytest_progress.Count())

        start = self.log.begin(command)
        code = None
        try:
            look()
            with self.log.path.open("ab") as out:
                code = run_child(command, environment, self.runner.longest_s, out=out, look=look)
        except EndlessError:
            self._show(quiet.tail(self.log.since(start)))
            raise
        finally:
            if counted:
                self.outcome.lost += pytest_progress.read(counted).left
                counted.unlink(missing_ok=True)
        if code and not (counted and code == NO_TESTS):
            output = self.log.since(start)
            self._show([f"$ {_shown(command)}", *(quiet.failures(output) if counted else quiet.tail(output))])
        return code

    def _show(self, lines: Sequence[str]) -> None:
        """Print the failures, and the place of the complete output."""
        assert self.log is not None
        self.runner.line.say("\n".join(["", *lines, f"all of it: {_place(self.log.path)}", ""]))


def _has_tests(part: Part) -> bool:
    return any((ROOT / p).is_file() or any((ROOT / p).rglob("test_*.py")) for p in part.paths)


def _shown(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def chosen(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[Layer]:
    """Return the layers that the command line selects."""
    if given.changed:
        if given.layers:
            parser.error("--changed chooses the layers itself")
        try:
            plan = changed.plan(changed.changed_files(given.base), changed.Repository.read())
        except changed.ChangeError as error:
            parser.error(str(error))
        print(plan.text(), flush=True)
        return plan.layers()
    if unknown := set(given.layers) - set(names()):
        parser.error(f"no layer {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    return [layer for layer in LAYERS if layer.name in given.layers or not given.layers]


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of {', '.join(names())}; all by default")
    parser.add_argument("--changed", action="store_true", help="choose layers and test files by what was changed")
    parser.add_argument("--base", default="HEAD", metavar="REV", help="what to compare with (default: HEAD)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what the layers print, and write no logs")
    given = parser.parse_args()
    try:
        level = read_level(os.environ)
    except LevelError as error:
        parser.error(str(error))
    layers = chosen(parser, given)
    if given.changed and not layers:
        return 0
    # Also if a shell without job control has disabled Ctrl-C for this process and its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        surroundings = Surroundings(Progress(), images=any(layer.images for layer in layers), level=level)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    runner = Runner(surroundings, level, verbose=given.verbose, longest_s=LONGEST_S[level])
    try:
        runner.run(layers)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        started = time.monotonic()
        surroundings.close()
        runner.summary.clean_up_s = time.monotonic() - started
    runner.summary.write(runner.reports)
    print(f"\n{runner.summary.text()}", flush=True)
    return runner.summary.status


if __name__ == "__main__":
    sys.exit(main())
