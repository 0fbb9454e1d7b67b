"""A process runs its program again in place, and passes state to its next run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pstraining
from pstraining.runtime.replication import renewal
from pstraining.runtime.replication.renewal import ENV_KEPT, Kept, Renewal, is_another_away, is_due, taken

PROGRAM = """
import json, os, signal, socket, sys
from pstraining.runtime.replication import renewal

kept = renewal.taken()
if not kept.times:
    os.environ["ADDED"], os.environ["GIVEN"] = "1", "changed"
    os.chdir("/")
    signal.signal(signal.SIGTERM, lambda *_: None)
    left_open = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(left_open.fileno(), True)
    print(json.dumps({"process": os.getpid()}))
    renewal.PROGRAM.run_again(renewal.Kept(1, 2.5, 3, {"life": 4}), blocked={signal.SIGTERM})
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
print(json.dumps({
    "process": os.getpid(), "argv": sys.argv[1:], "folder": os.getcwd(), "kept": vars(kept),
    "environment": [os.environ.get(name) for name in ("ADDED", "GIVEN", "PSTRAINING_KEPT")],
    "given": os.read(int(sys.argv[1]), 5).decode(), "unbuffered": "-u" in sys.orig_argv,
    "blocked": signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "open": [os.readlink(link) for link in links if os.path.lexists(link)],
}))
"""


@pytest.mark.parametrize(
    ("connections", "turn", "quiet", "settled", "due"),
    [
        (2, 1, 999.0, True, False),
        (3, 1, 60.0, True, False),
        (3, 1, 75.0, True, True),
        (3, 2, 75.0, True, False),
        (3, 2, 90.0, True, True),
        (3, 0, 60.0, True, True),
        (3, 33, 75.0, True, True),
        (3, 1, 999.0, False, False),
        (22, 1, 0.0, True, False),
        (23, 1, 0.0, True, True),
        (22, 2, 0.0, True, True),
        (23, 1, 0.0, False, False),
        (46, 1, 0.0, False, True),
    ],
)
def test_processes_take_turns_when_it_is_quiet_and_not_too_late(
    connections: int, turn: int, quiet: float, settled: bool, due: bool
) -> None:
    assert is_due(connections, each=3, turn=turn, quiet=quiet, settled=settled) is due


def test_no_two_of_twelve_workers_stop_waiting_for_a_quiet_job_at_once() -> None:
    """In mode Sync, they end a step in the same moment, in which none is away yet."""
    for settled, most in ((True, 24), (False, 48)):
        due = [[is_due(n, each=3, turn=turn, quiet=0.0, settled=settled) for n in range(49)] for turn in range(1, 13)]
        first = [own.index(True) for own in due]
        assert len(set(first)) == 12
        assert (min(first), max(first)) == (most // 24 * 13, most)


def test_quiet_is_since_the_last_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal.PROGRAM, "why_not_again", lambda: "")
    now = [0.0]
    own = Renewal(clock=lambda: now[0])
    assert not own.is_due(0, settled=True)
    assert not own.is_due(3, settled=True)
    now[0] = 74.0
    assert not own.is_due(4, settled=True)
    now[0] = 75.0
    assert not own.is_due(4, settled=True)
    now[0] = 74.0 + 75.0
    assert own.is_due(4, settled=True)


def test_connections_before_the_first_step_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that connected three times while its servers started trains on; it has traced its step once."""
    monkeypatch.setattr(renewal.PROGRAM, "why_not_again", lambda: "")
    now = [0.0]
    own = Renewal(clock=lambda: now[0])
    assert not own.is_due(3, settled=True)
    now[0] = 1000.0
    assert not own.is_due(5, settled=True)
    now[0] = 2000.0
    assert not own.is_due(6, settled=True)
    now[0] = 3000.0
    assert own.is_due(6, settled=True)


def test_a_worker_is_not_renewed_while_another_one_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for another turn, and asks again then. At last it waits no longer."""
    monkeypatch.setattr(renewal.PROGRAM, "why_not_again", lambda: "")
    now, away, asked = [0.0], [True], list[float]()

    def is_another_away() -> bool:
        asked.append(now[0])
        return away[0]

    def due_at(moment: float, connections: int) -> bool:
        now[0] = moment
        return own.is_due(connections, settled=True, is_another_away=is_another_away)

    own = Renewal(clock=lambda: now[0])
    assert not any(due_at(moment, 0 if not moment else 3) for moment in (0.0, 1.0, 75.0, 76.0, 77.0))
    assert asked == [76.0]
    away[0] = False
    assert not due_at(76.0 + 74.0, 3)
    assert due_at(76.0 + 75.0, 3)
    away[0], asked[:] = True, []
    assert not any(due_at(moment, 24) for moment in (200.0, 201.0, 214.0, 215.0))
    assert asked == [200.0, 215.0]
    away[0] = False
    assert due_at(230.0, 24)
    away[0] = True
    assert due_at(231.0, 48)


@pytest.mark.parametrize(
    ("registered", "away"), [([5, 6, 7, 0], False), ([5, 0, 7, 0], True), ([5, 6, 0, 8], True), ([5, 6, 7], False)]
)
def test_a_worker_of_the_job_that_has_deregistered_is_away(registered: list[int], away: bool) -> None:
    assert is_another_away(registered, 3) is away


def test_handed_over_state_is_only_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = {"times": 2, "left": 1.5, "epoch": 7, "witness": {"life": 4}}
    monkeypatch.setenv(ENV_KEPT, json.dumps({"process": os.getpid(), **reported}))
    assert taken() == Kept(2, 1.5, 7, {"life": 4})
    assert ENV_KEPT not in os.environ
    assert taken() == Kept()
    monkeypatch.setenv(ENV_KEPT, json.dumps({"process": os.getppid(), **reported}))
    assert taken() == Kept()


def test_the_next_run_is_as_the_first_was_in_the_same_process(tmp_path: Path) -> None:
    """The next run is like the first one, in the same process: arguments, folder and environment are equal, and only
    inherited descriptors are open.
    """
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    ours, theirs = os.pipe()
    os.write(theirs, b"given")
    first, second = _run(["-u", "program.py", str(ours)], tmp_path, pass_fds=(ours,))
    assert (second["process"], second["argv"]) == (first["process"], [str(ours)])
    assert (second["folder"], second["environment"]) == (str(tmp_path), [None, "as it was", None])
    assert second["kept"] == {"times": 1, "left": 2.5, "epoch": 3, "witness": {"life": 4}}
    assert (second["given"], second["unbuffered"], second["blocked"]) == ("given", True, True)
    assert not [name for name in second["open"] if name.startswith("socket:")]


@pytest.mark.parametrize(
    ("arguments", "text", "reason"),
    [
        (["-"], "", "no file"),
        (["-c", "{}"], "", ""),
        (["-c", "import subprocess; child = subprocess.Popen(['sleep', '60']); {}; child.kill()"], "", "processes"),
        (["-c", "import os; os.fork() or os._exit(({}) or 0); os.wait()"], "", "forked"),
    ],
)
def test_a_program_that_cannot_be_rerun_reports_the_reason(arguments: list[str], text: str, reason: str) -> None:
    asked = "print('{\"why\": ' + repr(renewal.PROGRAM.why_not_again()).replace(chr(39), chr(34)) + '}', flush=True)"
    imported = "from pstraining.runtime.replication import renewal; "
    program = [imported + argument.format(asked) if "{}" in argument else argument for argument in arguments]
    (reported,) = _run(program, Path.cwd(), text=imported + asked if arguments == ["-"] else text)
    assert reason in reported["why"]
    assert bool(reported["why"]) == bool(reason)


def test_a_program_that_cannot_be_rerun_is_reported_once_and_checked_once_per_connection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def why_not() -> str:
        asked.append("it has children")
        return asked[-1]

    monkeypatch.setattr(renewal.PROGRAM, "why_not_again", why_not)
    monkeypatch.setattr(renewal, "QUIET_SECONDS", -renewal.TURN_SECONDS)
    own = Renewal()
    own.is_due(0, settled=True)
    assert not any(own.is_due(connections, settled=True) for connections in (0, 1, 2, 3, 3, 3, 4))
    assert len(asked) == 2
    assert capsys.readouterr().out.count("not_renewed") == 1
    monkeypatch.setattr(renewal.PROGRAM, "why_not_again", lambda: "")
    assert own.is_due(5, settled=True)
    for other in (Renewal(enabled=False), Renewal(chief=True)):
        assert not any(other.is_due(connections, settled=True) for connections in (0, 5))


def _run(arguments: list[str], folder: Path, *, text: str = "", pass_fds: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Return the JSON lines of a Python program that has this package."""
    source = str(Path(pstraining.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": source, "TF_CONFIG": "{}", "GIVEN": "as it was"},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        pass_fds=pass_fds,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]
