"""Exit statuses: the statuses in a command's help are exactly those with which it can end, and each is tried."""

import copy
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.api import names
from pstraining.cli.command_table import COMMANDS
from pstraining.cli.doctor.checks import Check, CheckResult
from pstraining.cli.errors import RequestError
from pstraining.cli.exit_codes import ALWAYS, ExitCode
from pstraining.cli.logs.following import Follower
from pstraining.cli.main import main, program
from pstraining.cli.output import API_VERSION, PrintedKind
from tests.support.builders import job
from tests.support.cli_cluster import Nowhere, Object, WithJobs
from tests.support.simulation import World, running
from tests.support.tfjobs import tfjob

BY_NAME = {command.name: command for command in COMMANDS}
FILES = {"job": job(), "tfjob": tfjob(), "other": tfjob({"what": 1})}
MANIFESTS = {f"{name}.yaml": yaml.safe_dump(manifest) for name, manifest in FILES.items()}
FAST = ("digits", "--wait", "--timeout", "0")


class Raising(Nowhere):
    """Raises an error for every question."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        raise self._error


class Scripted(WithJobs):
    """Has a job with a sequence of states, the last of which stays; None once the job was deleted."""

    def __init__(
        self, *states: Object | None, pods: list[Object] | None = None, epochs: tuple[int, ...] = (0,)
    ) -> None:
        super().__init__(pods=pods)
        self.states, self.epochs = list(states), list(epochs)
        self.first = next(state for state in states if state)

    def job(self, namespace: str, name: str) -> Object | None:
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return found if found is None or found["metadata"]["name"] == name else None

    def jobs(self, namespace: str | None) -> list[Object]:
        return [state for state in self.states if state]

    def service(self, namespace: str, name: str) -> Object | None:
        epoch = self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]
        annotations = {names.ANNOTATION_EPOCH: str(epoch)}
        return {"metadata": {"annotations": annotations}, "spec": {"selector": {names.LABEL_STS_POD: "digits-ps-0"}}}

    def annotate(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        pass

    def apply(self, job: Object, *, dry_run: bool = False, force: bool = False) -> Object:
        return self.first

    def read(self, path: str) -> Any:
        return None

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        return iter(())

    def listed(self, path: str, **query: str) -> list[Object]:
        return []


class Served(Nowhere):
    """Serves its version."""

    def __init__(self, version: Object | None) -> None:
        self.version = version

    def read(self, path: str) -> Any:
        return self.version if path == "/version" else None

    def listed(self, path: str, **query: str) -> list[Object]:
        return []


def state(world: World) -> Object:
    world.settle()
    assert world.job is not None
    return copy.deepcopy(world.job)


def failed() -> Object:
    world = running()
    world.end("chief", code=78)
    return state(world)


def suspended() -> Object:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    return state(world)


def succeeded() -> Object:
    world = running()
    world.end("chief")
    return state(world)


WARM = running(ps={"replicas": 1, "standby": {"mode": "Warm"}})
RUNS, FAILED, SUSPENDED, ENDED = state(running()), failed(), suspended(), succeeded()
NEW = {**job(), "metadata": {**RUNS["metadata"], "generation": 99}}
NEW_SUSPENDED = {**NEW, "spec": SUSPENDED["spec"]}
PODS = list(running().pods.values())


@dataclass(frozen=True)
class Case:
    """A call with its exit status."""

    arguments: tuple[str, ...] = ()
    cluster: Callable[[], Nowhere] = Nowhere
    patches: Mapping[str, Any] = field(default_factory=dict)
    """Replacements in the command's module."""


def scripted(*states: Object | None, **more: Any) -> Callable[[], Nowhere]:
    return partial(Scripted, *states, **more)


def checked(result: CheckResult) -> dict[str, Any]:
    return {"_all": lambda *_: [Check("crd", result, "so")]}


READERS = {"validate": "documents", "plan": "documents", "submit": "documents", "convert": "read"}
"""Commands that read files, and the functions by which they do."""
FOLLOW = {"Follower": partial(Follower, every=0.01)}
SUCCESS: dict[str, Case] = {
    "validate": Case(("-f", "job.yaml")),
    "plan": Case(("-f", "job.yaml")),
    "submit": Case(("-f", "job.yaml", "--wait"), scripted(RUNS)),
    "status": Case((), scripted(RUNS)),
    "logs": Case(("digits", "-f"), scripted(ENDED)),
    "top": Case(("digits", "--interval", "100ms"), scripted(RUNS, pods=PODS)),
    "dashboard": Case(("digits",), scripted(RUNS), {"DashboardServer.serve_forever": lambda _: None}),
    "wait": Case(("digits",), scripted(RUNS, ENDED)),
    "scale": Case(("digits", "--workers", "2", "--wait"), scripted(RUNS)),
    "suspend": Case(FAST, scripted(SUSPENDED)),
    "resume": Case(FAST, scripted(RUNS)),
    "takeover": Case(("digits", "--shard", "0"), scripted(state(WARM), epochs=(0, 1))),
    "convert": Case(("-f", "tfjob.yaml")),
    "doctor": Case((), patches=checked(CheckResult.OK)),
    "version": Case((), partial(Served, {"gitVersion": "v1.34.1"})),
    "report": Case(("digits",), scripted(RUNS, pods=PODS)),
}
ERROR: dict[str, Case] = {
    **{name: Case(("-f", "none.yaml")) for name in READERS},
    "status": Case(("digit",), scripted(RUNS)),
    "logs": Case(("digit",), scripted(RUNS)),
    "top": Case(("digit",), scripted(RUNS)),
    "dashboard": Case(("digit",), scripted(RUNS)),
    "wait": Case(("digits", "--for", "condition=Failed"), scripted(ENDED)),
    "scale": Case(("digits", "--workers", "0"), scripted(RUNS)),
    "suspend": Case(("digit",), scripted(RUNS)),
    "resume": Case(("digit",), scripted(RUNS)),
    "takeover": Case(("digits", "--shard", "9"), scripted(state(WARM))),
    "doctor": Case((), patches=checked(CheckResult.FAIL)),
    "version": Case((), partial(Served, None)),
    "report": Case(("digit",), scripted(RUNS)),
}
WAITS: dict[tuple[str, ExitCode], Case] = {
    ("submit", ExitCode.JOB_FAILED): Case(("-f", "job.yaml", "--wait"), scripted(FAILED)),
    ("submit", ExitCode.TIMED_OUT): Case(("-f", "job.yaml", "--wait", "--timeout", "0"), scripted(NEW)),
    ("submit", ExitCode.JOB_DELETED): Case(("-f", "job.yaml", "--wait"), scripted(RUNS, None)),
    ("wait", ExitCode.JOB_FAILED): Case(("digits",), scripted(FAILED)),
    ("wait", ExitCode.TIMED_OUT): Case(("digits", "--timeout", "0"), scripted(RUNS)),
    ("wait", ExitCode.JOB_DELETED): Case(("digits",), scripted(RUNS, None)),
    ("scale", ExitCode.JOB_FAILED): Case(("digits", "--workers", "2", "--wait"), scripted(RUNS, FAILED)),
    ("scale", ExitCode.TIMED_OUT): Case(("digits", "--workers", "2", "--wait", "--timeout", "0"), scripted(NEW)),
    ("scale", ExitCode.JOB_DELETED): Case(("digits", "--workers", "2", "--wait"), scripted(RUNS, None)),
    ("suspend", ExitCode.TIMED_OUT): Case(FAST, scripted(NEW_SUSPENDED)),
    ("suspend", ExitCode.JOB_DELETED): Case(FAST, scripted(SUSPENDED, None)),
    ("resume", ExitCode.JOB_FAILED): Case(FAST, scripted(RUNS, FAILED)),
    ("resume", ExitCode.TIMED_OUT): Case(FAST, scripted(NEW)),
    ("resume", ExitCode.JOB_DELETED): Case(FAST, scripted(RUNS, None)),
    ("takeover", ExitCode.TIMED_OUT): Case(("digits", "--shard", "0", "--timeout", "0"), scripted(state(WARM))),
    ("logs", ExitCode.JOB_FAILED): Case(("digits", "-f"), scripted(FAILED)),
    ("logs", ExitCode.JOB_DELETED): Case(("digits", "-f"), scripted(RUNS, None), FOLLOW),
    ("convert", ExitCode.INCOMPLETE): Case(("-f", "other.yaml")),
}
LIVE = {"plan": ("--live",)}
DURABLE = state(running(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "c"}}}))
PRINTED = (
    *((n, SUCCESS[n]) for n in ("validate", "plan", "status", "top", "convert", "doctor", "version")),
    ("plan", Case(("-f", "job.yaml", "-f", "job.yaml"))),
    ("status", Case(("digits",), scripted(RUNS, pods=PODS))),
    ("doctor", Case(("digits",), scripted(DURABLE, pods=PODS), {"measure": lambda *_: {"job": None}})),
)
"""Options for machine-readable output."""


def cases() -> Iterator[tuple[str, ExitCode, Case]]:
    """Yield every call, with its exit status."""
    yield from ((name, ExitCode.SUCCESS, case) for name, case in SUCCESS.items())
    yield from ((name, ExitCode.ERROR, case) for name, case in ERROR.items())
    yield from ((name, code, case) for (name, code), case in WAITS.items())
    for name, command in BY_NAME.items():
        yield name, ExitCode.USAGE, Case(("--no-such-option",))
        arguments = (*SUCCESS[name].arguments, *LIVE.get(name, ()))
        # doctor reports it as a check, and commands without a cluster are interrupted while they read files.
        for code, error in ((ExitCode.INTERRUPTED, KeyboardInterrupt()), (ExitCode.UNREAD, BrokenPipeError())):
            stopped = partial(_raise, error)
            patches = {READERS[name]: stopped} if name in READERS else {"_all": stopped} if name == "doctor" else {}
            yield name, code, Case(arguments, partial(Raising, error), patches)
        if ExitCode.UNREACHABLE in command.codes:
            yield name, ExitCode.UNREACHABLE, Case(arguments, partial(Raising, RequestError("No answer.")))


def _raise(error: BaseException, *_: Any) -> None:
    raise error


CASES = list(cases())


def ended(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """Return the exit status of a call, and its output."""
    module, cluster = BY_NAME[name].run.__module__, case.cluster()
    for what, by in {"KubeconfigClient": lambda *_, **__: cluster, **case.patches}.items():
        monkeypatch.setattr(f"{module}.{what}", by, raising=what != "KubeconfigClient")
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", name, *case.arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return caught.value.code, said.out or said.err


@pytest.mark.parametrize(("name", "code", "case"), CASES, ids=[f"{n}-{c.name}" for n, c, _ in CASES])
def test_a_command_ends_with_the_status(
    name: str,
    code: ExitCode,
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in MANIFESTS.items():
        Path(file).write_text(text)
    status, said = ended(name, case, monkeypatch, capsys)
    assert status == code, said


@pytest.mark.parametrize("name", ["validate", "status", "logs"])
def test_output_without_a_reader_is_dropped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(MANIFESTS["job.yaml"])
    case = Case(("digits",), scripted(RUNS, pods=PODS)) if name == "logs" else SUCCESS[name]
    monkeypatch.setattr(Scripted, "log", lambda *_: iter(("a line",)))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert ended(name, case, monkeypatch, capsys) == (ExitCode.UNREAD, "")


@pytest.mark.parametrize(
    ("arguments", "stream"), [(["-h"], "stdout"), (["wait", "--help"], "stdout"), ([], "stderr"), (["?"], "stderr")]
)
def test_help_and_errors_without_a_reader_are_dropped(
    arguments: list[str], stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", *arguments])
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, stream, unread)
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == ExitCode.UNREAD


def test_exactly_the_documented_statuses_are_tested() -> None:
    documented = {(name, code) for name, command in BY_NAME.items() for code in command.exit_codes}
    assert {(name, code) for name, code, _ in CASES} == documented


def test_help_shows_examples_and_statuses_and_wraps_none_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in COMMANDS:
        assert command.examples
        shown = []
        for option in ("-h", "--help"):
            monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", command.name, option])
            with pytest.raises(SystemExit):
                main()
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1]
        lines = [line.strip() for line in shown[0].splitlines()]
        assert lines[0].startswith(f"Usage: kubectl pstraining {command.name} ")
        assert {command.example(given) for _, given in command.examples} <= {*lines}
        assert {f"{code:<4} {code.meaning}" for code in command.exit_codes} <= {*lines}
        assert {*ALWAYS} <= {*command.exit_codes}


@pytest.mark.parametrize(
    ("name", "given"), [(command.name, given) for command in COMMANDS for _, given in command.examples]
)
def test_every_example_is_accepted_by_its_command(name: str, given: str) -> None:
    """Every example is accepted by its command; text behind a pipe or a redirection is left to the shell."""
    arguments = list(itertools.takewhile(lambda word: word not in ("|", ">"), shlex.split(given)))
    group = program()
    command = group.commands[name]
    command.make_context(name, arguments)


def test_errors_are_plain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pstraining", "scale", "digits", "--replicas", "3"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == "Error: No such option: --replicas"
    assert said.isascii()
    assert "\x1b" not in said


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_machine_readable_output_has_an_api_version_and_a_kind(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in MANIFESTS.items():
        Path(file).write_text(text)
    kinds = set()
    for name, case in PRINTED:
        with monkeypatch.context() as patched:
            code, said = ended(name, replace(case, arguments=(*case.arguments, "-o", output)), patched, capsys)
        assert code == ExitCode.SUCCESS, said
        found = yaml.safe_load(said)
        kinds.add((found["apiVersion"], found["kind"].removesuffix("List")))
    manifest = names.API_VERSION, names.KIND
    elsewhere = (PrintedKind.CONVERSION, PrintedKind.REPORT)
    assert kinds == {*((API_VERSION, str(k)) for k in PrintedKind if k not in elsewhere), manifest}
    case = replace(SUCCESS["convert"], arguments=("-f", "tfjob.yaml", "--report", "-o", "json"))
    assert yaml.safe_load(ended("convert", case, monkeypatch, capsys)[1])["kind"] == PrintedKind.CONVERSION
    assert {name for name, _ in PRINTED} == {c.name for c in COMMANDS if "output" in signature(c.run).parameters}
