"""A save of a job with hot standbys takes the state from the standbys where they apply the same steps."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.state import State, whole
from tests.support.servers import Rig
from tests.support.soak_marks import ALL
from tests.training import test_runtime_checkpoint_parts as in_parts
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training.test_runtime_checkpoint_parts import checkpoints_of, momentum, save
from tests.training.test_runtime_checkpoint_pieces import assert_same, batches, kept, wait

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("pieces", "small_files")]
pieces, small_files = in_pieces.pieces, in_parts.small_files


def on_a_pair(shared: Callable[..., Rig]) -> Rig:
    """Return the rig that the tests of this file share."""
    return shared(momentum, ps=1, members=2, build=in_parts.model, loss="binary_crossentropy", mode="Sync")


def keepers(rig: Rig) -> list[bool]:
    """Return for each member of the only shard whether it holds a part of a copy, the primary first."""
    from pstraining.runtime.ps.saving.parts import ShardParts

    return kept(rig, [ShardParts(rig.store.member(0, number)) for number in range(2)])


def state_of(rig: Rig, member: int) -> State:
    """Return a member's state as a save by this member alone has it."""
    from pstraining.runtime.chief.store_admin import StoreAdmin

    return StoreAdmin(rig.store.for_assignment(((member,),))).snapshot(fence=1)


def test_the_standby_copies_and_writes_its_state_while_steps_change_it(
    shared: Callable[..., Rig], tmp_path: Path
) -> None:
    """With a step after every copied range, the checkpoint equals the primary's state at the copy's end."""
    rig = on_a_pair(shared)
    coming, checkpoints = itertools.cycle(batches(10, seed=0)), checkpoints_of(rig, tmp_path)
    with rig.control.copied(fence=1, wait=wait, between=lambda: rig.train([next(coming)])) as state:
        primary = state_of(rig, 0)
        assert keepers(rig) == [False, True]
        assert state.step == primary.step > 0
        rig.train([next(coming)])
        path = checkpoints.save(state, term=1, layout=rig.store.layout)
    assert list(path.glob("ps-*")), "the standby has written the table"
    stored = checkpoints.newest()
    assert stored is not None
    assert_same(whole(stored), primary)
    assert keepers(rig) == [False, False]


def test_a_primary_without_a_standby_saves_its_own_state(shared: Callable[..., Rig]) -> None:
    """After the loss of a standby the remaining member is the source."""
    from pstraining.runtime.chief.store_admin import StoreAdmin

    rig = on_a_pair(shared)
    rig.train(batches(2, seed=0))
    for left in (0, 1) if ALL else (0,):
        alone = StoreAdmin(rig.store.for_assignment(((left,),)))
        with alone.copied(fence=1, wait=wait) as state:
            assert keepers(rig) == [left == 0, left == 1]
            assert_same(whole(state), state_of(rig, 1 - left))


def test_every_member_of_a_shard_reads_the_files(shared: Callable[..., Rig], tmp_path: Path) -> None:
    from pstraining.runtime.chief.store_admin import StoreAdmin

    rig = on_a_pair(shared)
    rig.train(batches(4, seed=0))
    before = rig.control.snapshot(fence=1)
    checkpoints = checkpoints_of(rig, tmp_path)
    assert list(save(rig, checkpoints).glob("ps-*"))
    rig.train(batches(2, seed=1))
    rig.control.restore(checkpoints.newest(), fence=1, generation=9, fresh=False)
    for members in ((0, 1), (1, 0)):
        own = StoreAdmin(rig.store.for_assignment((members,)))
        assert_same(own.snapshot(fence=1), before)


def test_standbys_that_are_not_in_lockstep_save_nothing(client: Any) -> None:
    """In mode Async the members of a shard apply updates at different times: the primaries are the sources."""
    rig = Rig(client, momentum, ps=1, members=2, build=in_parts.model, loss="binary_crossentropy", mode="Async")
    assert [own.shard for own in rig.control.parts.sources] == rig.store.shards
