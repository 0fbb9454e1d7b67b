"""A chief that is asked to stop loses no acknowledged update, whether or not the servers stop."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.local import LocalJob, LocalProcess
from tests.support.kube import wait_for
from tests.support.servers import SPREAD, Rig, batches, small
from tests.support.soak_marks import THOROUGH, in_all, in_soak, some
from tests.support.volumes import filled, small_disk
from tests.training.test_runtime_faults import PACED, finished, job, steps_of, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
RARELY = {"keep": 3, "intervalSeconds": 3600}


def rare(folder: Path, *, workers: int = 2, **more: Any) -> LocalJob:
    """Return a job whose chief saves only if it has to."""
    return LocalJob(PACED, workers=workers, training=SPREAD, checkpoint={"path": str(folder), **RARELY}, **more)


def stop(run: LocalJob, name: str) -> LocalProcess:
    """Send SIGTERM to a process, and wait for its end."""
    process = run.processes[name]
    process.popen.send_signal(signal.SIGTERM)
    process.popen.wait(120)
    return process


@pytest.mark.parametrize(
    ("chief", "leader"),
    some(
        [(True, "chief"), (False, "worker-0")],
        lambda chief, leader: chief,
        in_all("tests/training/test_runtime_stop.py::test_a_stopped_job_resumes_at_the_same_step"),  # with a chief
    ),
)
def test_a_stopped_job_resumes_at_the_same_step(tmp_path: Path, chief: bool, leader: str) -> None:
    with rare(tmp_path, ps=2 if THOROUGH else 1, chief=chief) as run:
        until(run, lambda: steps_of(run, "worker-0") > 20 and steps_of(run, "worker-1"), "steps of both")
        process = stop(run, leader)
        assert process.popen.returncode == 143, transcript(run)
        stopped = process.events("stopped")[0]["step"]
        assert stopped > 20
        assert Checkpoints(tmp_path, keep=3).steps() == [stopped]
        other = run.processes["worker-1"]
        refused = wait_for(lambda: other.events("refused"), "the other worker is shut out")
        assert refused[0]["step"] == stopped, "no update was taken after those that were saved"
    with rare(tmp_path, ps=3 if THOROUGH else 2, workers=1, chief=chief) as run:
        chiefs = run.processes[leader]
        restored = until(run, lambda: chiefs.events("restored"), "the saved state, on another number of servers")
        assert restored[0]["step"] == stopped
        until(run, lambda: steps_of(run, "worker-0") > stopped, "training that continues")


def ask(run: LocalJob, **fields: Any) -> None:
    """Change fields of the job's cluster file."""
    path = run._folder / contract.CLUSTER_FILE
    path.with_name("next").write_text(json.dumps({**run._file, **fields}))
    path.with_name("next").rename(path)


@in_all("tests/training/test_runtime_stop.py::test_a_stopped_job_resumes_at_the_same_step")  # the same save
def test_a_chief_that_ends_for_another_layout_has_saved_all_that_hot_standbys_hold(tmp_path: Path) -> None:
    with rare(tmp_path, ps=1, workers=1, standbys=1) as run:
        chief, worker = run.processes["chief"], run.processes["worker-0"]
        until(run, lambda: steps_of(run, "worker-0") > 20, "steps")
        ask(run, nextLayout=2)
        chief.popen.wait(60)
        assert chief.popen.returncode == contract.EXIT_SAVED, transcript(run)
        stopped = chief.events("stopped")[0]["step"]
        assert stopped > 20
        assert Checkpoints(tmp_path, keep=3).steps() == [stopped]
        refused = wait_for(lambda: worker.events("refused"), "the worker is shut out")
        assert refused[0]["step"] == stopped, "no update was taken after those that were saved"
        ask(run)  # the change is reverted
        run.start(chief.task)
        until(run, lambda: steps_of(run, "worker-0") > stopped, "training that continues")
        assert not chief.events("restored"), "the servers kept the state"


@in_all("tests/training/test_runtime_faults.py::test_the_next_chief_continues_with_the_servers_state")  # after a stop
def test_the_next_chief_lets_the_workers_continue_with_the_servers_state(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        chief, worker = run.processes["chief"], run.processes["worker-0"]
        until(run, lambda: steps_of(run, "worker-0") > 20, "steps")
        stop(run, "chief")
        stopped = chief.events("stopped")[0]["step"]
        until(run, lambda: worker.events("refused"), "the next chief, which fences the former session")
        until(run, lambda: steps_of(run, "worker-0") > stopped, "training that continues")
        assert chief.term == 2
        assert len(chief.events("initialized")) == 1
        assert not chief.events("restored"), "the servers kept the state: nothing is set back"


def test_a_stopped_chief_with_a_full_disk_reports_it_and_its_successor_continues(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk, rare(disk, ps=2, workers=1, restarts=1) as run:
        until(run, lambda: steps_of(run, "worker-0") > 20, "steps")
        with filled(disk):
            chief = stop(run, "chief")
            assert chief.popen.returncode == 143, transcript(run)
            (reported,) = chief.events("not_saved")
            assert "No space left" in reported["reason"]
            assert reported["newest"] is None
            assert not chief.events("stopped"), "no save is reported"
        until(run, lambda: steps_of(run, "worker-0") > reported["step"], "training that continues")
        assert chief.term == 2
        assert not chief.events("restored"), "the servers have kept the state: nothing is set back"
        assert len(chief.events("initialized")) == 1


@in_soak
def test_without_a_checkpoint_folder_no_worker_is_locked_out() -> None:
    with job(None, steps=6000) as run:
        until(run, lambda: steps_of(run, "worker-0") > 20, "steps")
        chief = stop(run, "chief")
        assert chief.popen.returncode == 143
        seen = steps_of(run, "worker-0")
        until(run, lambda: steps_of(run, "worker-0") > seen, "training that continues")
        assert finished(run) == 0, transcript(run)


def test_a_stopped_chief_does_not_read_its_checkpoint_back(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped chief does not read its checkpoint back: that would take time from the seconds that Kubernetes gives
    it.
    """
    import keras

    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.chief.options import ChiefOptions
    from pstraining.runtime.chief.shutdown import GracefulStop

    rig = Rig(client, keras.optimizers.SGD, ps=2, build=small)
    rig.start()
    rig.train(batches(2))
    stop, checkpoint = GracefulStop(), CheckpointSettings(path=str(tmp_path), interval_seconds=3600)
    chief = Chief(client, rig.store, ChiefOptions(TrainingSettings(steps=10), checkpoint, None), stop=stop)
    stop._asked = True
    read: list[Any] = []
    load = Checkpoints._load

    def noted(own: Any, key: Any, path: Path) -> Any:
        read.append(key)
        return load(own, key, path)

    monkeypatch.setattr(Checkpoints, "_load", noted)
    with pytest.raises(SystemExit, match="143"):
        chief.run()
    assert not read
    assert Checkpoints(tmp_path, keep=1).load(2).step == 2


def test_a_lost_connection_does_not_cost_the_last_save(client: Any, tmp_path: Path) -> None:
    """A lost connection does not prevent the last save: the connections break after SIGTERM, and the chief reconnects
    and saves the servers' state.
    """
    import keras

    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.chief.options import ChiefOptions
    from pstraining.runtime.chief.shutdown import GracefulStop
    from pstraining.runtime.history.recorder import HistoryRecorder
    from pstraining.runtime.transport import sockets
    from pstraining.runtime.transport.client import ShardLostError

    class CutOnce(HistoryRecorder):
        """Breaks the connections at the first attempt to save, whose call fails."""

        cuts = 0

        def stopping(self) -> None:
            if not self.cuts:
                self.cuts = sockets.cut_peers(sockets.peers(client.cluster.ps))
                raise ShardLostError("UNAVAILABLE: cut", client.connection)

    rig = Rig(client, keras.optimizers.SGD, ps=2, build=small)
    rig.start()
    rig.train(batches(2))
    stop, checkpoint = GracefulStop(), CheckpointSettings(path=str(tmp_path), interval_seconds=3600)
    history = CutOnce()
    options = ChiefOptions(TrainingSettings(steps=10), checkpoint, None, history=history)
    chief = Chief(client, rig.store, options, stop=stop)
    stop._asked = True
    connection = client.connection
    with pytest.raises(SystemExit, match="143"):
        chief.run()
    assert history.cuts
    assert client.connection > connection, "it has connected again"
    assert Checkpoints(tmp_path, keep=1).load(2).step == 2
