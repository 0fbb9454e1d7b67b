"""Tables move to the servers of another layout while training changes them, and are bit-equal there."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import State
from tests.support.servers import Rig
from tests.support.soak_marks import in_all, some
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training.test_runtime_checkpoint_pieces import adam, assert_same, batches, model

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("pieces")]
pieces = in_pieces.pieces
BOTH_WAYS = in_all("tests/training/test_runtime_table_moves.py::test_rows_that_change_while_they_move_are_moved_again")
FENCE = 5
"""The fence of the next layout's servers."""


def rig_of(client: Any, ps: int, *, members: int = 1, mode: str = "Sync") -> Rig:
    return Rig(client, adam, ps=ps, members=members, build=model, loss="binary_crossentropy", mode=mode)


def next_admin(client: Any, rig: Rig, ps: int) -> Any:
    """Return the administration of another layout on the first servers, under FENCE."""
    from pstraining.runtime.chief.store_admin import StoreAdmin

    cluster = client.cluster
    addresses = {**cluster.addresses, "ps": cluster.ps[:ps]}
    servers = client.servers_of(replace(cluster, addresses=addresses, layout=2))
    found = StoreAdmin(rig.store.on(replace(servers, container=f"{client.container}.next"), 0))
    found.raise_fence(found.store.read(), FENCE)
    return found


def transfer_to(rig: Rig, target: Any) -> Any:
    from pstraining.runtime.chief.layout_transfer import LayoutTransfer

    transfer = LayoutTransfer(rig.control, target, FENCE)
    transfer.prepare(1, lambda: None)
    return transfer


def state_at(target: Any) -> State:
    state: State = target.snapshot(fence=FENCE)
    return state


def move_most(transfer: Any, rig: Rig, coming: Iterator[Any] | None = None) -> int:
    """Move rows until few are left, with a step after every turn if there is data; return the number of turns."""
    for turn in itertools.count():
        if transfer.advance(rig.control, 1):
            return turn
        if coming:
            rig.train([next(coming)])
    raise AssertionError


def read(admin: Any, variable: Any) -> Any:
    import tensorflow as tf

    return admin.client.call(tf.function(lambda: admin.client.to_local(variable.read_value()), autograph=False))


@pytest.mark.parametrize(("ps", "others"), some([(2, 3), (3, 2), (1, 4)], lambda ps, _: ps == 2, BOTH_WAYS))
def test_rows_that_change_while_they_move_are_moved_again(
    client: Any, monkeypatch: pytest.MonkeyPatch, ps: int, others: int
) -> None:
    """With a step after every turn of ranges, the next layout has the state at the standstill."""
    from pstraining.runtime.chief import layout_transfer

    monkeypatch.setattr(layout_transfer, "MOVE_SECONDS", 0.0)
    rig = rig_of(client, ps)
    rig.start()
    coming = itertools.cycle(batches(10, seed=0))
    rig.train([next(coming)])
    target = next_admin(client, rig, others)
    transfer = transfer_to(rig, target)
    assert transfer._moves.names == {f"{kind}/items" for kind in ("model", "slot/momentum", "slot/velocity")}
    assert move_most(transfer, rig, coming) > 3, "the table moves in several ranges"
    rig.train([next(coming), next(coming)])
    expected = rig.control.snapshot(fence=1)
    transfer.copy(rig.control, 1)
    transfer.write(target, FENCE)
    assert_same(state_at(target), expected)
    assert {record.generation for record in target.store.read()} == {-record.generation for record in rig.store.read()}
    transfer.end()


@in_all("tests/training/test_runtime_table_moves.py::test_rows_that_change_while_they_move_are_moved_again")
def test_rows_that_change_faster_than_they_move_are_given_up(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pstraining.runtime.chief import layout_transfer
    from pstraining.runtime.chief.state import table_moves
    from pstraining.runtime.replication.view import LayoutPostponedError

    monkeypatch.setattr(layout_transfer, "MOVE_SECONDS", 0.0)
    monkeypatch.setattr(table_moves, "STANDSTILL_SECONDS", 0.0)
    rig = rig_of(client, 2)
    rig.start()
    transfer = transfer_to(rig, next_admin(client, rig, 3))
    with pytest.raises(LayoutPostponedError, match="change faster than they move"):
        move_most(transfer, rig, itertools.cycle(batches(10, seed=0)))


@in_all("tests/training/test_runtime_table_moves.py::test_rows_that_change_while_they_move_are_moved_again")
def test_calls_of_a_former_attempt_change_nothing(client: Any) -> None:
    """A call that arrives after the next attempt has begun neither takes rows nor writes them."""
    from pstraining.runtime.chief.errors import FencedError

    rig = rig_of(client, 2)
    rig.start()
    rig.train(batches(2, seed=0))
    target = next_admin(client, rig, 3)
    former = transfer_to(rig, target)
    move_most(former, rig)
    rig.train(batches(1, seed=1))
    later = transfer_to(rig, target)
    missing = later._moves._counts()
    assert missing == [table.rows for table in later._moves._tables]
    (moved, *_) = next(former._moves._pass(missing))
    with pytest.raises(FencedError, match="no longer records"):
        former._moves._move((moved, 1, FENCE))
    assert later._moves._counts() == missing
    # The sources record under the former name, but the restore has the later one.
    former._moves.begin(1, former._name)
    with pytest.raises(FencedError, match="have refused rows"):
        former._moves._move((moved, 1, FENCE))
    for own in target.parts.sources:
        (table, *_) = [part.variable for part in own.parts if part.has_rows]
        assert not np.any(read(target, table)), "rows of a former attempt"


@in_all("tests/training/test_runtime_table_moves.py::test_rows_that_change_while_they_move_are_moved_again")
def test_another_source_begins_again(client: Any) -> None:
    """The record of missing rows is on one member: after its loss, the transfer is postponed."""
    from pstraining.runtime.chief.store_admin import StoreAdmin
    from pstraining.runtime.replication.view import LayoutPostponedError

    rig = rig_of(client, 1, members=2)
    rig.start()
    transfer = transfer_to(rig, next_admin(client, rig, 2))
    move_most(transfer, rig)
    alone = StoreAdmin(rig.store.for_assignment(((0,),)))
    with pytest.raises(LayoutPostponedError, match="another member"):
        transfer.advance(alone, 1)
    with pytest.raises(LayoutPostponedError, match="another member"):
        transfer.copy(alone, 1)


@pytest.mark.parametrize("outcomes", ["postponed " * 2 + "lost postponed", "postponed " * 2 + "lost " * 10])
def test_after_some_attempts_the_programs_restart(client: Any, monkeypatch: pytest.MonkeyPatch, outcomes: str) -> None:
    """The programs restart after three postponed attempts, or after ten that lost a server.

    The attempts for another layout are counted separately.
    """
    from pstraining.runtime.chief.live_layout import LayoutChanger
    from pstraining.runtime.config import cluster as clusters
    from pstraining.runtime.replication.view import LayoutPostponedError
    from pstraining.runtime.transport.client import ShardLostError

    monkeypatch.setattr(clusters, "next_layout", lambda cluster: replace(cluster, layout=2))
    store = rig_of(client, 1).store
    unused: dict[str, Any] = dict.fromkeys(("make", "restore", "hold"), pytest.fail)
    changer = LayoutChanger(client, store, **unused)
    errors = {"postponed": LayoutPostponedError("late"), "lost": ShardLostError("lost", 0)}
    found = [errors[outcome] for outcome in outcomes.split()]

    def attempt() -> None:
        for error in found:
            assert changer.is_wanted
            changer._give_up(error)
        assert not changer.is_wanted

    attempt()
    assert changer._why_not == f"{len(found)} attempts without a restart have failed; the last one: {found[-1]}"
    monkeypatch.setattr(clusters, "next_layout", lambda cluster: None)
    assert not changer.is_wanted
    monkeypatch.setattr(clusters, "next_layout", lambda cluster: replace(cluster, layout=3))
    attempt()
