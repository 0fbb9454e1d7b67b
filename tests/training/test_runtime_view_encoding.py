"""Views encoded as acceptors' vectors and decoded, and the other fields of a member's status."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.acceptor_ops import AcceptorOps
from pstraining.runtime.replication.messages import MemberReply
from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, ProcessStatus, View
from tests.support.servers import Rig, small

pytestmark = pytest.mark.training
PLACES = ["ps-0", "ps-1", "ps-2", "ps-3"]
ballots = st.builds(Ballot, st.integers(1, 2**20), st.integers(0, 2**20 - 1))


@given(ballots, ballots)
def test_ballots_are_ordered_as_their_numbers(one: Ballot, other: Ballot) -> None:
    assert (one < other) == (encoding.number(one) < encoding.number(other))
    assert encoding.ballot(encoding.number(one)) == one


def _told(
    view: View, record: list[int], *, transferred_in: int = 0, leased: bool = True, draining: bool = False
) -> ProcessStatus:
    head = [7, 1, transferred_in, encoding.number(view.ballot), 5]
    entries = encoding.encode(view, PLACES, 2)
    acceptor = np.asarray([*head, *entries, *[0] * (encoding.size(2, 2) - len(head) - len(entries))], np.int64)
    reply = MemberReply(np.asarray(record, np.int64), acceptor, leased, draining)
    return reply.status(PLACES, shards=len(view.shards), members=2)


@pytest.mark.parametrize(
    "shards",
    [
        ((Process("ps-0", 5), Process("ps-2", 6)), (Process("ps-3", 8),)),
        ((Process("ps-2", 6),), (Process("ps-3", 8), Process("ps-1", 9))),
        ((Process("ps-2", 6),),),
    ],
)
@pytest.mark.parametrize("learners", [(), ("ps-0",), ("ps-0", "ps-1")])
def test_a_view_survives_encoding(shards: tuple[tuple[Process, ...], ...], learners: tuple[str, ...]) -> None:
    there = {process.task for shard in shards for process in shard}
    is_used = {task: int(task[-1]) % 2 < len(shards) for task in learners}
    others = tuple(Process(task, 7) for task in learners if task not in there and is_used[task])
    view = View(Ballot(3, 2), shards, others)
    status = _told(view, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1])
    assert status.view == view


def test_a_members_status_is_decoded() -> None:
    view = View(Ballot(3, 2), ((Process("ps-0", 7),), (Process("ps-1", 9),)))
    shut = _told(view, [encoding.number(Ballot(4, 1)), -44, 0, 10, 1], transferred_in=encoding.number(Ballot(4, 1)))
    active = _told(view, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1])
    forgotten = _told(view, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1], leased=False)
    nothing = MemberReply(np.zeros(5, np.int64), np.zeros(encoding.size(2, 2), np.int64), False, False)
    empty = nothing.status(PLACES, shards=2, members=2)
    assert (shut.promised, shut.active, shut.step) == (Ballot(4, 1), False, 10)
    assert shut.transferred_in == Ballot(4, 1)
    assert shut.chunks == 5
    assert (active.promised, active.active) == (Ballot(3, 2), True)
    assert not forgotten.active
    assert (empty.promised, empty.is_voter, empty.view, empty.step) == (NO_BALLOT, False, None, None)


@pytest.mark.parametrize("name", ["draining", "leaving"])
def test_a_draining_member_reports_it(client: Any, tmp_path: Path, name: str) -> None:
    import keras
    import tensorflow as tf

    markers = [str(tmp_path / "draining"), str(tmp_path / "leaving")]
    rig = Rig(client, keras.optimizers.SGD, ps=1, build=small, members=2, mode="Sync")
    acceptor = AcceptorOps(rig.store.member(0, 1))
    read = tf.function(lambda names: client.to_local(acceptor.read(names)), autograph=False)
    for names in ([""], markers):
        assert not client.call(read, tf.constant(names))[-1]
    (tmp_path / name).touch()
    assert client.call(read, tf.constant(markers))[-1]


def test_a_whole_state_that_is_written_late_changes_nothing(client: Any) -> None:
    """A whole state that is written late changes nothing: it is written once per ballot, and never while steps are
    applied.
    """
    import keras
    import tensorflow as tf

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=1, build=small, members=2, mode="Sync")
    rig.start()
    standby = rig.store.member(0, 1)
    source, target = AcceptorOps(rig.store.member(0, 0)), AcceptorOps(standby)
    incarnation, ballot, later = 7, encoding.number(Ballot(2, 1)), encoding.number(Ballot(2, 2))

    def call(emit: Any, *arguments: Any) -> int:
        traced = tf.function(lambda *values: client.to_local(emit(*values)), autograph=False)
        return int(client.call(traced, *arguments))

    def promise(ops: AcceptorOps, number: int, own: int) -> int:
        return call(ops.on_prepare, int64(own), int64(number), int64(incarnation))

    def written(number: int) -> int:
        return call(lambda fence: target.on_transfer(int64(incarnation), fence, source.read_state()), int64(number))

    assert (promise(source, ballot, 0), promise(target, ballot, 0)) == (1, 1)
    assert written(ballot) == 1
    assert written(ballot) == 0, "the same call once more"
    assert (promise(source, later, incarnation), promise(target, later, incarnation)) == (1, 1)
    standby_record = rig.store.read()[1]
    rig.control.set_record(later, generation=abs(standby_record.generation))
    assert written(later) == 0, "steps are applied there"
    rig.control.set_record(later, generation=-abs(standby_record.generation))
    assert written(later) == 1
