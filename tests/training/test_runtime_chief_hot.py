"""A chief of hot standbys, on real servers: what it does while its view and its fence change."""

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint import manifest
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings
from tests.support.servers import Rig, batches, small

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

REPORTS = {"checkpoint_unreadable": 2, "steps_may_be_lost": 1}
"""The events of a member that may lack steps, and of its only checkpoint, which is damaged, with their steps."""


class LedPair:
    """A chief of one shard of two members in mode Sync, and a worker; the chief is asked to stop by `stop`.

    Args:
        client: of two servers or more.
        patch: ends with the test.
        folder: the folder of the checkpoints.
        tend: called in every loop of the chief.
        renew_seconds: seconds between the chief's renewals of the view.
    """

    def __init__(
        self, client: Any, patch: pytest.MonkeyPatch, folder: Path, tend: Callable[[], None], *, renew_seconds: float
    ) -> None:
        import keras

        from pstraining.runtime.chief import membership
        from pstraining.runtime.chief.options import ChiefOptions
        from pstraining.runtime.history.recorder import HistoryRecorder
        from pstraining.runtime.ps import member

        history = HistoryRecorder()
        patch.setattr(history, "tend", tend)
        patch.setattr(client, "cluster", replace(client.cluster, members=2, addresses={"ps": client.cluster.ps[:2]}))
        patch.setattr(member, "LEASE_SECONDS", 4000.0)  # functions are traced in between
        patch.setattr(membership, "RENEW_SECONDS", renew_seconds)
        self.rig = Rig(client, keras.optimizers.SGD, ps=1, members=2, build=small, mode="Sync")
        checkpoint = CheckpointSettings(path=str(folder), interval_seconds=3600)
        self._client, self._patch = client, patch
        self._options = ChiefOptions(TrainingSettings(steps=10), checkpoint, None, history=history)
        self.lead(client.cluster.term)

    def lead(self, term: int) -> None:
        """Begin a chief of a term, which is the next one after the first."""
        from pstraining.runtime.chief.chief import Chief
        from pstraining.runtime.chief.shutdown import GracefulStop

        self._patch.setattr(self._client, "cluster", replace(self._client.cluster, term=term))
        self._stop = GracefulStop()
        self.chief = Chief(self._client, self.rig.store, self._options, stop=self._stop)

    def train(self, number: int) -> None:
        """Let the worker train a number of steps."""
        from pstraining.runtime.ps.record import Session

        found = self.rig.store.read()[0]
        assert self.rig.store.register(0, 1)
        self.rig.workers[0].start_session(Session(found.fence, found.generation))
        assert all(self.rig.workers[0].step([batch]).applied for batch in batches(number))

    def stop(self) -> None:
        """Do what SIGTERM does."""
        self._stop._asked = True

    def handle_signals(self) -> None:
        """Let this process's SIGTERM stop the chief."""
        self._stop.install()


def test_a_long_last_save_lets_no_update_in(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved state has every acknowledged update, also if the save lasts longer than the interval of renewals."""

    def tend() -> None:
        led.train(2)
        led.stop()

    led = LedPair(client, monkeypatch, tmp_path, tend, renew_seconds=-1.0)
    with pytest.raises(SystemExit, match="143"):
        led.chief.run()
    assert Checkpoints(tmp_path, keep=1).steps() == [2]
    following = led.rig.workers[0].step(batches(1))
    assert not following.session_valid, "a step that the checkpoint lacks was acknowledged"


def test_a_late_call_of_the_chief_itself_does_not_supersede_it(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was stopped carries a request to promise out late, when the chief leads with another view."""
    from pstraining.runtime.replication import encoding
    from pstraining.runtime.replication.view import Ballot, Process

    calls: list[Ballot] = []

    def tend() -> None:
        changer = led.chief._members.view_changer
        assert changer is not None
        used = encoding.ballot(changer.fence)
        if not calls:
            incarnation = changer._monitor.poll_members()["ps-1"].incarnation  # type: ignore[union-attr]
            changer._calls.prepare(Process("ps-1", incarnation), Ballot(used.term, used.epoch + 1))
        else:
            led.stop()
        calls.append(used)

    led = LedPair(client, monkeypatch, tmp_path, tend, renew_seconds=3600.0)
    with pytest.raises(SystemExit, match="143"):
        led.chief.run()
    assert calls[1] > calls[0], "the next view has a higher ballot"


@pytest.mark.parametrize("is_damaged", [False, True], ids=["readable", "damaged"])
def test_a_newer_checkpoint_replaces_a_state_that_may_lack_steps(
    client: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_damaged: bool,
) -> None:
    """The side of a cut that trained on has saved a checkpoint before it was evicted; the member here is older.

    If no checkpoint is readable, the chief continues with what the member has, and reports both.
    """
    from pstraining.runtime.replication import view_decisions
    from pstraining.runtime.replication.view import Accept

    def tend() -> None:
        if not trained:
            led.train(2)
            trained.append(2)
        led.stop()

    trained: list[int] = []
    led = LedPair(client, monkeypatch, tmp_path, tend, renew_seconds=3600.0)
    with pytest.raises(SystemExit, match="143"):
        led.chief.run()
    decide, doubts = view_decisions.next_action, [1]

    def doubtful(*given: Any, **named: Any) -> Any:
        action = decide(*given, **named)
        return replace(action, uncertain=doubts.pop()) if doubts and isinstance(action, Accept) else action

    monkeypatch.setattr(view_decisions, "next_action", doubtful)
    capsys.readouterr()
    for file in tmp_path.glob(f"*/{manifest.NAME}") if is_damaged else ():
        file.write_text("{")
    led.lead(led.chief._members.term + 1)
    with pytest.raises(SystemExit, match="143"):
        led.chief.run()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    found = [(one["event"], one["step"]) for one in events if one["event"] in {"restored", *REPORTS}]
    assert found == (list(REPORTS.items()) if is_damaged else [("restored", 2)])
    assert not doubts


def test_a_job_without_a_chief_waits_for_servers_that_do_not_answer(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 takes the next term once a process answers that knows the former one."""
    from pstraining.runtime.transport import http2_probe

    probe, silent = http2_probe.probe, list(client.cluster.ps[:2])

    def probed(endpoint: Any, patience: float) -> http2_probe.ProbeResult:
        return http2_probe.ProbeResult.NOTHING if silent and silent.pop() else probe(endpoint, patience)

    def tend() -> None:
        led.stop()

    monkeypatch.setattr(http2_probe, "probe", probed)
    led = LedPair(client, monkeypatch, tmp_path, tend, renew_seconds=3600.0)
    with pytest.raises(SystemExit, match="143"):
        led.chief.run()
    assert not silent, "no server has answered at first"


def test_sigterm_ends_the_wait_for_a_quorum(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends a chief that waits for a quorum, before the kubelet kills it."""
    from pstraining.runtime.chief import shutdown

    def establish(*, readmit: bool) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise AssertionError("the wait does not end")

    def tend() -> None:
        monkeypatch.setattr(led.chief._members, "establish", establish)

    monkeypatch.setattr(shutdown, "RECOVERY_SECONDS", 0.1)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    led = LedPair(client, monkeypatch, tmp_path, tend, renew_seconds=-1.0)
    try:
        led.handle_signals()
        with pytest.raises(SystemExit, match="143"):
            led.chief.run()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
