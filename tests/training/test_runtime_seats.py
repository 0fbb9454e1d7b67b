"""A roster in a seat's numbers, and out of them again; and what a seat tells besides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.acceptor_ops import Seat
from pstraining.runtime.replication.view import NOTHING, Answer, Ballot, Process, Roster
from tests.support.servers import Rig, small

pytestmark = pytest.mark.training
PLACES = ["ps-0", "ps-1", "ps-2", "ps-3"]
ballots = st.builds(Ballot, st.integers(1, 2**20), st.integers(0, 2**20 - 1))


@given(ballots, ballots)
def test_ballots_are_ordered_as_their_numbers(one: Ballot, other: Ballot) -> None:
    assert (one < other) == (encoding.number(one) < encoding.number(other))
    assert encoding.ballot(encoding.number(one)) == one


def _told(roster: Roster, record: list[int], *, copied: int = 0, leased: bool = True, leaving: bool = False) -> Answer:
    head = [7, 1, copied, encoding.number(roster.ballot), 5]
    entries = encoding.encode(roster, PLACES, 2)
    seat = np.asarray([*head, *entries, *[0] * (encoding.size(2, 2) - len(head) - len(entries))], np.int64)
    told = {"leased": leased, "leaving": leaving}
    return encoding.answer(np.asarray(record, np.int64), seat, PLACES, shards=len(roster.shards), members=2, **told)


@pytest.mark.parametrize(
    "shards",
    [
        ((Process("ps-0", 5), Process("ps-2", 6)), (Process("ps-3", 8),)),
        ((Process("ps-2", 6),), (Process("ps-3", 8), Process("ps-1", 9))),
        ((Process("ps-2", 6),),),
    ],
)
@pytest.mark.parametrize("learners", [(), ("ps-0",), ("ps-0", "ps-1")])
def test_a_roster_comes_out_as_it_went_in(shards: tuple[tuple[Process, ...], ...], learners: tuple[str, ...]) -> None:
    there = {process.place for shard in shards for process in shard}
    is_used = {place: int(place[-1]) % 2 < len(shards) for place in learners}
    others = tuple(Process(place, 7) for place in learners if place not in there and is_used[place])
    roster = Roster(Ballot(3, 2), shards, others)
    answer = _told(roster, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1])
    assert answer.roster == roster


def test_what_a_member_says_of_itself() -> None:
    roster = Roster(Ballot(3, 2), ((Process("ps-0", 7),), (Process("ps-1", 9),)))
    shut = _told(roster, [encoding.number(Ballot(4, 1)), -44, 0, 10, 1], copied=encoding.number(Ballot(4, 1)))
    opened = _told(roster, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1])
    forgotten = _told(roster, [encoding.number(Ballot(3, 2)), 44, 0, 10, 1], leased=False)
    nothing = np.zeros(5, np.int64), np.zeros(encoding.size(2, 2), np.int64), PLACES
    empty = encoding.answer(*nothing, shards=2, members=2, leased=False, leaving=False)
    assert (shut.promised, shut.opened, shut.step) == (Ballot(4, 1), False, 10)
    assert shut.copied == Ballot(4, 1)
    assert shut.learned == 5
    assert (opened.promised, opened.opened) == (Ballot(3, 2), True)
    assert not forgotten.opened
    assert (empty.promised, empty.votes, empty.roster, empty.step) == (NOTHING, False, None, None)


def test_a_member_says_that_it_is_leaving(client: Any, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    word = tmp_path / "leaving"
    rig = Rig(client, keras.optimizers.SGD, ps=1, build=small, members=2, mode="Sync")
    seat = Seat(rig.store.member(0, 1))
    read = tf.function(lambda name: client.brought_home(seat.read(name)), autograph=False)
    for name in ("", str(word)):
        assert not client.call(read, tf.constant(name))[-1]
    word.touch()
    assert client.call(read, tf.constant(str(word)))[-1]
