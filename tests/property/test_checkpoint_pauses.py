"""Two chiefs on one folder: no checkpoint of the newer one is lost, whenever the older one pauses and continues."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.soak_marks import ALL, in_all, some
from tests.support.stepping import Stepped, install
from tests.unit.runtime.test_checkpoint import layout, names, opened, state

OLD, NEW = Writer("job", 1), Writer("job", 2)
KEEP: Final = 2
INTERLEAVINGS: Final = 200 if ALL else 40


def old_chief(folder: Path, *steps: int) -> Callable[[], None]:
    """Has saved steps 100 and 200, and saves these."""
    old = opened(folder, keep=KEEP, writer=OLD)
    for step in (100, 200):
        old.save(state(step), term=1, layout=layout())

    def work() -> None:
        for step in steps:
            old.save(state(step), term=1, layout=layout())

    return work


def new_chief(folder: Path, saved: list[int]) -> Callable[[], None]:
    """Restore, and save three times; each time this is the newest checkpoint."""

    def work() -> None:
        new = opened(folder, keep=KEEP, writer=NEW)
        restored = new.newest()
        assert restored is not None
        for more in (1, 2, 3):
            saved.append(restored.step + more)
            new.save(state(saved[-1]), term=2, layout=layout())
            newest = new.newest()
            assert newest is not None
            assert newest.step == saved[-1]

    return work


def check(folder: Path, old: Stepped, new: Stepped, saved: list[int]) -> None:
    assert old.error is None or isinstance(old.error, SupersededError), old.error
    assert new.error is None, new.error
    theirs = {name for name in names(folder) if name.endswith("-term-2") and name.startswith("ckpt-")}
    assert theirs == {f"ckpt-{step:010d}-term-2" for step in saved[-KEEP:]}
    checkpoints = Checkpoints(folder, keep=KEEP)
    for step in saved[-KEEP:]:
        assert checkpoints.load(step).step == step
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == saved[-1]


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a folder in memory, if there is one, because these tests make a hundred thousand calls."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(params=[True, False], ids=["exchange", "two renames"])
def can_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    install(monkeypatch, can_exchange=request.param)
    return bool(request.param)


def test_random_interleavings_of_two_chiefs_lose_nothing_of_the_newer_one(can_exchange: bool, memory: Path) -> None:
    del can_exchange
    seed = random.randrange(2**32) if ALL else 0
    print(f"seed {seed}")
    drawn = random.Random(seed)
    superseded = 0
    for number in range(INTERLEAVINGS // 2):
        folder, saved = memory / str(number), list[int]()
        old, new = Stepped(old_chief(folder, 200, 300, 400)), Stepped(new_chief(folder, saved))
        share = drawn.random()
        while not (old.is_over and new.is_over):
            chosen = old if drawn.random() < share else new
            if chosen.is_over:
                continue
            for _ in range(drawn.choice((1, 1, 3, 20))):
                if not chosen.is_over:
                    chosen.step()
        check(folder, old, new, saved)
        superseded += old.error is not None
    assert 0 < superseded < INTERLEAVINGS // 2, "some interleavings meet, some do not"


def test_a_chief_that_is_paused_at_any_call_deletes_and_replaces_nothing_when_it_continues(
    can_exchange: bool, memory: Path
) -> None:
    del can_exchange
    stop_at = 0
    while True:
        folder, saved = memory / str(stop_at), list[int]()
        old = Stepped(old_chief(folder, 200, 300))  # an existing one, and a missing one
        while old.calls < stop_at and not old.is_over:
            old.step()
        if old.is_over:
            break
        new = Stepped(new_chief(folder, saved))
        new.finish()
        old.finish()
        check(folder, old, new, saved)
        stop_at += 1
    assert stop_at > 50


def test_a_chief_that_dies_at_any_call_keeps_the_previous_state(can_exchange: bool, memory: Path) -> None:
    """A chief that dies at any call keeps the previous state, also when it rewrites the only checkpoint."""
    del can_exchange
    die_at = 0
    while True:
        folder = memory / str(die_at)
        old = opened(folder, keep=1, writer=OLD)
        old.save(state(100), term=1, layout=layout())
        saving = Stepped(lambda own=old: own.save(state(100), term=1, layout=layout()))  # type: ignore[misc]
        while saving.calls < die_at and not saving.is_over:
            saving.step()
        if saving.is_over:
            break
        saving.kill()
        found = Checkpoints(folder, keep=1)
        assert found.steps() == [100]
        assert found.load(100).step == 100
        new = opened(folder, keep=2, writer=NEW)
        new.save(state(110), term=2, layout=layout())
        assert names(folder) == ["ckpt-0000000100-term-1", "ckpt-0000000110-term-2", "term-2"]
        assert new.load(100).step == 100
        die_at += 1
    assert die_at > 20


CHIEF: Final = """
import os, signal, sys
from pathlib import Path
from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.state import SupersededError
from tests.unit.runtime.test_checkpoint import layout, opened, state

folder, term, stop_in, *steps = sys.argv[1:]
chief = opened(Path(folder), keep=3, writer=Writer("job", int(term)))

def stopping(call):
    def stopped(*arguments, **options):
        os.kill(os.getpid(), signal.SIGSTOP)
        return call(*arguments, **options)
    return stopped

try:
    for step in steps:
        call = getattr(files, stop_in, None)
        if call and step == steps[-2]:
            setattr(files, stop_in, stopping(call))
        chief.save(state(int(step)), term=int(term), layout=layout())
        if call:
            setattr(files, stop_in, call)
except SupersededError:
    sys.exit(3)
"""


def chief_process(folder: Path, term: int, stop_in: str, *steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHIEF, str(folder), str(term), stop_in, *map(str, steps)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})


@pytest.mark.parametrize(
    "stop_in",
    some(
        ["write_durably", "replace_folder", "remove"],
        lambda stop_in: stop_in == "remove",  # after all checks
        in_all(
            "tests/property/test_checkpoint_pauses.py"
            "::test_a_chief_that_is_paused_at_any_call_deletes_and_replaces_nothing_when_it_continues"
        ),  # processes instead of threads
    ),
)
def test_a_process_that_is_paused_in_a_save_and_continues_later_is_superseded(tmp_path: Path, stop_in: str) -> None:
    old = chief_process(tmp_path, 1, stop_in, 500, 510, 520, 530, 540)
    while not os.WIFSTOPPED(os.waitpid(old.pid, os.WUNTRACED)[1]):
        pass
    assert chief_process(tmp_path, 2, "nothing", 600, 700, 800).wait() == 0
    before = {name for name in names(tmp_path) if name.endswith("-term-2")}
    assert len(before) == 3
    while old.poll() is None:
        old.send_signal(signal.SIGCONT)
    assert old.returncode == 3
    assert {name for name in names(tmp_path) if name.endswith("-term-2")} == before
    found = Checkpoints(tmp_path, keep=3)
    newest = found.newest()
    assert newest is not None
    assert newest.step == 800
    assert [found.load(step).step for step in (600, 700, 800)] == [600, 700, 800]
