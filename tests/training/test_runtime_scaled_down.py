"""Workers that left because the job was scaled down delay no step after a restore."""

import json
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE
from pstraining.runtime.updates.synchronous import accumulators
from tests.support.servers import Rig, batches, small
from tests.support.worker_threads import Crew
from tests.training import test_runtime_hybrid as hybrid
from tests.training.test_runtime_sync import SERVERS, optimizer

pytestmark = [pytest.mark.training, pytest.mark.timeout(120)]
rigs = hybrid.rigs


@pytest.fixture(autouse=True)
def scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cluster file list one of two workers."""
    (tmp_path / "cluster.json").write_text(json.dumps({"cluster": {"worker": ["a:1"]}}))
    monkeypatch.setenv(ENV_CLUSTER_FILE, str(tmp_path / "cluster.json"))
    monkeypatch.setattr(accumulators, "WAIT_SECONDS", 10.0)


def waits_until(rig: Rig) -> float:
    """Return the time until which rounds wait for workers; 0 once all have come."""
    import tensorflow as tf

    def read() -> Any:
        shard = rig.store.shards[0]
        with tf.device(shard.device):
            found = shard.mode_state.wait_until.read_value()
        return rig.control.client.to_local(found)

    return float(rig.control.client.call(tf.function(read, autograph=False)))


def test_no_round_waits_for_them(client: Any) -> None:
    rig = Rig(client, lambda: optimizer("SGD"), ps=SERVERS, build=small, workers=2, mode="Sync")
    rig.start()
    rig.store.deregister(1, rig.identities[1].incarnation)
    Crew(rig, [batches(2)]).join()
    assert (rig.control.snapshot(fence=1).step, waits_until(rig)) == (2, 0.0)


def test_no_ring_waits_for_them(rigs: Any) -> None:
    rig = rigs(hybrid.sgd, ps=1, build=small, workers=2)
    rig.workers[1].close()
    rig.store.deregister(1, rig.identities[1].incarnation)
    Crew(rig, [batches(2)]).join()
    assert (rig.snapshot().step, waits_until(rig)) == (2, 0.0)
