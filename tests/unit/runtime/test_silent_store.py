"""The last save to an object store that does not answer ends, and is reported, before the chief's pod is killed."""

import threading
import time

import pytest

from pstraining.runtime.checkpoint.errors import NotSavedError
from pstraining.runtime.checkpoint.objects.bucket import TIMEOUTS
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.chief.shutdown import REPORT_SECONDS, GracefulStop
from pstraining.runtime.config.settings import CheckpointSettings
from tests.support.fake_s3 import FakeS3, Request
from tests.unit.runtime.test_checkpoint import layout, state


@pytest.fixture(autouse=True)
def timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the variables that a process sets when it hurries."""
    for name in TIMEOUTS:
        monkeypatch.setenv(name, "30s")


def saver() -> Saver:
    return Saver(CheckpointSettings(path="s3://bucket/a"), layout(), term=lambda: 1)


def test_the_last_save_to_a_silent_store_fails_in_time_and_names_the_setting(
    s3: FakeS3, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests were repeated for a minute, and then others were, while the pod has 30 seconds by default."""
    saves, over = saver(), threading.Event()

    def silent(_: Request) -> None:
        over.wait(120)

    s3.fault = silent
    saves.hurry(2.0)
    began, before = time.monotonic(), len(s3.requests)
    try:
        with pytest.raises(NotSavedError, match="terminationGracePeriodSeconds"):
            saves.save_last(state(5))
    finally:
        over.set()
    assert time.monotonic() - began < 30.0
    assert len(s3.requests) == before + 1, "the other requests were not read, or not sent"
    assert "raise terminationGracePeriodSeconds" in capsys.readouterr().out


def test_a_hurried_save_to_a_store_that_answers_is_written(s3: FakeS3) -> None:
    saves = saver()
    saves.hurry(20.0)
    saves.save_last(state(5))
    assert saves.newest_step() == 5


def test_a_save_after_the_signal_has_what_is_left_of_the_grace_period() -> None:
    now, hurried = [100.0], list[float]()
    stop = GracefulStop(clock=lambda: now[0], grace=60)
    with stop.saving(hurried.append):
        pass
    assert not hurried, "a save for another layout is repeated"
    with pytest.raises(SystemExit):
        stop._received(15, None)
    now[0] = 110.0
    with stop.saving(hurried.append):
        pass
    assert hurried == [50.0 - REPORT_SECONDS]
