"""Asynchronous updates on both members of a shard: each member applies each update once, even if a reply is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import whole
from pstraining.runtime.config.settings import CheckpointSettings
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.telemetry.counters import total
from tests.support.servers import SESSION, Rig, batches, large, small
from tests.support.soak_marks import ALL, in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(400)]
SHARDS = 2 if ALL else 1
"""Number of shards, of which each applies updates by itself."""
CROSSED: Assignment = ((0,), (1,))
"""One member of each of two shards."""
PRIMARIES: Assignment = ((0,),) * SHARDS
STANDBYS: Assignment = ((1,),) * SHARDS
INT8 = {"compression": {"push": "Int8"}}


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def started(client: Any, build: Any = small, *, shards: int = SHARDS, **training: Any) -> Rig:
    rig = Rig(client, adam, ps=shards, members=2, build=build, mode="Async", **training)
    rig.start()
    return rig


def bind(rig: Rig, assignment: Assignment) -> Any:
    """Return the first worker, bound to these members."""
    updates = rig.workers[0].bind(rig.workers[0]._store.for_assignment(assignment))
    updates.start_session(SESSION)
    return updates


def differences(rig: Rig) -> list[str]:
    """Return the variables in which a standby differs from its primary."""
    import tensorflow as tf

    from pstraining.runtime.ps.saving.parts import ShardParts

    found = []
    for shard in range(SHARDS):
        members = [rig.store.member(shard, number) for number in (0, 1)]
        read = tf.function(lambda own: rig.control.client.to_local(ShardParts(own).snapshot()), autograph=False)
        (record, values), (other, others) = [rig.control.client.call(read, member) for member in members]
        if not np.array_equal(record, other):
            found.append(f"shard {shard}: record {record} and {other}")
        found += [
            f"shard {shard}: value {number}"
            for number, (a, b) in enumerate(zip(values, others, strict=True))
            if not np.array_equal(a, b)
        ]
    return found


def steps(rig: Rig) -> list[int]:
    """Return the steps of the primaries, and then of the standbys."""
    return [record.step for record in rig.store.read()]


@pytest.mark.parametrize(
    "training",
    some(
        [{}, INT8, {"localSteps": 2}],
        lambda training: training == INT8,
        in_all(
            "tests/training/test_runtime_async_pairs.py::test_standbys_equal_their_primaries_bit_for_bit"
        ),  # through a codec, too
    ),
    ids=["plain", "int8", "moves"],
)
def test_standbys_equal_their_primaries_bit_for_bit(client: Any, training: Any) -> None:
    rig = started(client, large, **training)
    for batch in batches(4):
        assert rig.workers[0].step([batch] * training.get("localSteps", 1)).session_valid
    assert steps(rig) == [4] * 2 * SHARDS
    assert not differences(rig)


def test_without_replication_standbys_differ_from_their_primaries(client: Any) -> None:
    rig = started(client)
    primaries = bind(rig, PRIMARIES)
    assert primaries.step(batches(1)).session_valid
    assert steps(rig) == [1] * SHARDS + [0] * SHARDS
    assert differences(rig)


@pytest.mark.parametrize(
    ("reached", "training"),
    some(
        [(reached, more) for reached in (PRIMARIES, STANDBYS, CROSSED) for more in ({}, INT8)],
        lambda reached, training: (reached, training) in ((PRIMARIES, INT8), (STANDBYS, {})),
        in_all(
            "tests/training/test_runtime_async_pairs.py::test_an_update_on_some_members_reaches_all_and_counts_once"
        ),  # one member of each shard
    ),
)
def test_an_update_on_some_members_reaches_all_and_counts_once(client: Any, reached: Assignment, training: Any) -> None:
    rig = started(client, large, **training)
    assert rig.workers[0].step(batches(1)).session_valid
    sent, some = batches(1, seed=1), bind(rig, reached)
    assert some.step(sent).session_valid
    assert rig.workers[0].step(sent).session_valid
    assert steps(rig) == [2] * 2 * SHARDS
    assert rig.workers[0].step(batches(1, seed=2)).session_valid
    assert steps(rig) == [3] * 2 * SHARDS


def test_the_last_save_has_an_update_that_was_under_way_in_the_save_before(client: Any, tmp_path: Path) -> None:
    """Both saves have the step of the first server, which has the update in both."""
    from pstraining.runtime.checkpoint.saver import Saver

    rig = started(client, shards=2)
    keeper = Saver(CheckpointSettings(path=str(tmp_path)), rig.store.layout, term=lambda: 1)
    sent = batches(1)
    assert bind(rig, CROSSED).step(sent).session_valid
    with rig.control.copied(fence=1, wait=list) as state:
        keeper.try_to_save(state)
    assert rig.workers[0].step(sent).session_valid
    with rig.control.copied(fence=1, wait=list) as state:
        keeper.save_last(state)
        newest = whole(state)
    assert newest.step == 1
    found = whole(keeper.checkpoints.load(1))
    for name, value in newest.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], value, name)


def test_a_worker_continues_with_only_the_standbys(client: Any) -> None:
    rig = started(client)
    for batch in batches(2):
        assert rig.step(batch).session_valid
    standbys = bind(rig, STANDBYS)
    standbys.trace(batches(1))
    standbys.dry_run(batches(1))
    assert steps(rig) == [2] * 2 * SHARDS, "a rehearsal has no effect"
    reply = standbys.step(batches(1))
    assert (reply.session_valid, reply.step) == (True, 3)
    assert steps(rig) == [2] * SHARDS + [3] * SHARDS


def test_a_worker_sends_its_update_once(client: Any) -> None:
    """A worker sends an update once, to the primary, which forwards it: the worker's link carries no more bytes than
    without standbys.
    """
    rig = started(client, large)
    both, alone = rig.workers[0], bind(rig, PRIMARIES)

    def sent(updates: Any) -> int:
        for batch in batches(2):
            assert updates.step([batch]).session_valid
        before = total(client.links.look()).sent
        for batch in batches(10):
            assert updates.step([batch]).session_valid
        return total(client.links.look()).sent - before

    assert sent(both) < 1.1 * sent(alone)


@in_all("tests/training/test_runtime_async_pairs.py::test_an_update_on_some_members_reaches_all_and_counts_once")
def test_a_worker_starts_while_a_member_is_down(client: Any) -> None:
    """A worker can start while a member is down, although the member's server is then no device on which variables
    could be created.
    """
    client._wait_for_servers()
    with client._exclusive():
        client.connected = frozenset(range(SHARDS))
        client._connect_all(first=False)
    try:
        Rig(client, adam, ps=SHARDS, members=2, build=large, mode="Sync")
    finally:
        client.reconnect_available()
    started(client)
