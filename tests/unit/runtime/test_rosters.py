"""What workers and chiefs make of rosters, and of what members say of themselves."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.replication.view import (
    Absent,
    Adopt,
    Answer,
    Ballot,
    Copy,
    Open,
    Process,
    Promise,
    Restore,
    Roster,
    Seats,
    View,
    Wait,
    decide,
    handed_over,
    in_force,
    likely_losses,
)

OLD = Roster(Ballot(1, 1), ((Process("p", 1), Process("s", 2)),))
NEW = Roster(Ballot(1, 2), ((Process("s", 2),),))


def member(life: int, roster: Roster, *, opened: bool = True) -> Answer:
    return Answer(life, roster.ballot, votes=True, roster=roster, opened=opened, step=3)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"p": member(1, OLD), "s": member(2, OLD)}, OLD),
        ({"p": Absent.GONE, "s": member(2, NEW)}, NEW),
        ({"p": member(1, OLD), "s": member(2, NEW)}, NEW),
        ({"p": Absent.GONE, "s": member(2, OLD)}, None),
        ({"p": member(9, OLD), "s": member(2, OLD)}, None),
        ({"p": member(1, OLD), "s": member(2, OLD, opened=False)}, None),
        ({"p": member(1, OLD), "s": replace(member(2, OLD), promised=Ballot(1, 2))}, None),
        ({"p": member(1, NEW), "s": member(2, OLD)}, None),
        ({"p": Answer(0), "s": Absent.SILENT}, None),
    ],
    ids=[
        "all of it",
        "the one that is left",
        "one has yet to hear of it",
        "one is gone and nobody has said so",
        "another process is there",
        "not open on all",
        "promised away",
        "its own member has not got it",
        "nobody has one",
    ],
)
def test_the_newest_roster_counts_once_it_is_open_on_all_its_members(view: View, expected: Roster | None) -> None:
    assert in_force(view) == expected


SINGLE = Roster(Ballot(1, 2), ((Process("s", 2),),))
TAUGHT = Roster(Ballot(1, 2), ((Process("s", 2),),), (Process("p", 3),))
SEATS = Seats((("p", "s"),), ("w",))


@pytest.mark.parametrize(("opened", "expected"), [(True, TAUGHT), (False, None)])
def test_a_roster_is_open_once_it_is_on_those_who_learn(opened: bool, expected: Roster | None) -> None:
    assert in_force({"p": member(3, TAUGHT, opened=opened), "s": member(2, TAUGHT)}) == expected


def told(known: Roster, **learner: Any) -> dict[str, Any]:
    """All are under one roster, and who may learn is at `p`."""
    own = replace(member(3, known), **{"step": None, "opened": False} | learner)
    return {"p": own, "s": member(2, known), "w": replace(member(7, known), step=None)}


P = Process("p", 3)


@pytest.mark.parametrize(
    ("view", "wanted", "kind"),
    [
        (told(SINGLE), {}, Open),
        (told(SINGLE), {"learning": [P]}, Promise),
        (told(SINGLE), {"learning": [Process("s", 2)]}, Open),
        (told(TAUGHT, step=3, opened=True), {}, Open),
        (told(TAUGHT, step=3, opened=True), {"learning": [P]}, Open),
        (told(TAUGHT, step=3, opened=True), {"worth": [P]}, Promise),
        (told(TAUGHT, step=3, opened=True, leaving=True), {"learning": [P]}, Promise),
        (told(TAUGHT, step=3, opened=True, life=4), {}, Promise),
        (told(TAUGHT, promised=Ballot(1, 1), roster=None), {}, Promise),
        ({**told(TAUGHT), "p": Absent.GONE}, {}, Promise),
        ({**told(TAUGHT), "p": Absent.SILENT}, {}, Promise),
    ],
    ids=[
        "nobody learns",
        "somebody is to",
        "who is in sync has nothing to learn",
        "who learns stays",
        "and is not asked again",
        "it has learned",
        "it is leaving",
        "its successor is there",
        "it has not promised",
        "it is gone",
        "it is silent",
    ],
)
def test_when_a_roster_changes_for_those_who_learn(view: View, wanted: dict[str, Any], kind: type) -> None:
    assert isinstance(decide(Ballot(1, 2), SEATS, view, **wanted), kind)


@pytest.mark.parametrize(
    ("learner", "wanted", "expected"),
    [
        ({}, {}, ()),
        ({}, {"learning": [P]}, TAUGHT.learners),
        ({"roster": TAUGHT, "step": 3}, {}, TAUGHT.learners),
        ({"roster": TAUGHT, "step": 3, "leaving": True}, {"learning": [P]}, ()),
        ({"roster": TAUGHT, "step": 3}, {"worth": [P]}, Copy),
        ({"roster": TAUGHT, "step": 3, "copied": Ballot(1, 3)}, {"worth": [P]}, "ps"),
        ({"roster": TAUGHT, "step": 3, "copied": Ballot(1, 2)}, {}, TAUGHT.learners),
    ],
    ids=[
        "nobody",
        "it begins",
        "it goes on",
        "not who is leaving",
        "the rest is given",
        "in sync",
        "not by an old copy",
    ],
)
def test_who_learns_under_the_next_roster(learner: dict[str, Any], wanted: dict[str, Any], expected: Any) -> None:
    """Whoever has a step by learning does not count as having the state."""
    former = learner.get("roster", SINGLE)
    view = {place: replace(a, promised=Ballot(1, 3)) for place, a in told(former, **learner).items()}
    action = decide(Ballot(1, 3), SEATS, view, **wanted)
    if expected is Copy:
        assert action == Copy(Ballot(1, 3), ((Process("s", 2), P),), former.ballot)
        return
    assert isinstance(action, Adopt)
    assert "".join(process.place for process in action.roster.shards[0]) == (expected if expected == "ps" else "s")
    assert action.roster.learners == (() if expected == "ps" else expected)


def test_a_shard_of_which_only_a_learner_is_left_is_restored() -> None:
    view = {**told(TAUGHT, step=3, promised=Ballot(1, 3)), "s": Absent.GONE}
    view["w"] = replace(view["w"], promised=Ballot(1, 3))
    assert isinstance(decide(Ballot(1, 3), SEATS, view), Restore)


@pytest.mark.parametrize(
    ("formation", "nodes", "left"),
    [
        (((0, 1), (1, 0)), {}, [((1,), (1, 0)), ((0,), (1, 0)), ((0, 1), (0,)), ((0, 1), (1,))]),
        (((1,), (0, 1)), {}, [((1,), (1,)), ((1,), (0,))]),
        (((0,), (0,)), {(0, 0): "a", (1, 0): "a"}, []),
        (
            ((0, 1), (0, 1)),
            {(0, 0): "a", (0, 1): "b", (1, 0): "b", (1, 1): "a"},
            [((1,), (0, 1)), ((0,), (0, 1)), ((0, 1), (1,)), ((0, 1), (0,)), ((1,), (0,)), ((0,), (1,))],
        ),
        (((0, 1),), {(0, 0): "a", (0, 1): "a"}, [((1,),), ((0,),)]),
        (((0, 1),), {(0, 0): "a", (7, 0): "z"}, [((1,),), ((0,),)]),
    ],
    ids=["any one", "not the last one", "nobody", "a node's, too", "not a whole shard", "one on its own"],
)
def test_one_member_may_be_lost_or_all_on_a_node(formation: Assignment, nodes: Any, left: list[Assignment]) -> None:
    assert likely_losses(formation, nodes) == left


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("other", [Absent.GONE, Absent.SILENT, Answer(0)])
def test_the_first_roster_waits_for_who_has_yet_to_come_up_and_not_for_ever(
    waits: bool, other: Absent | Answer
) -> None:
    """One that is silent may have the state of an earlier chief; one whose port refuses has none."""
    view: View = {"p": Answer(0), "s": other, "w": Answer(7)}
    action = decide(Ballot(1, 0), Seats((("p", "s"),), ("w",)), view, waits=waits)
    is_waiting = other is Absent.SILENT or (waits and other is Absent.GONE)
    assert isinstance(action, Wait if is_waiting else Promise)


@pytest.mark.parametrize(
    ("in_step", "other", "left"),
    [
        (True, {"step": 5}, "p"),
        (True, {"step": 7}, "ps"),
        (False, {"step": 5}, "ps"),
        (False, {"step": 5, "generation": Ballot(1, 0)}, "p"),
        (False, {"step": None}, "p"),
    ],
)
def test_who_is_in_sync_has_the_newest_step_or_where_there_is_none_the_same_set(
    in_step: bool, other: dict[str, Any], left: str
) -> None:
    """Asynchronous members have all that workers were told of, whatever their steps are."""
    ballot = Ballot(1, 2)
    known: dict[str, Any] = {"promised": ballot, "votes": True, "roster": OLD, "generation": Ballot(1, 1)}
    view = {"p": Answer(1, **{**known, "step": 7}), "s": Answer(2, **{**known, **other}), "w": Answer(3, **known)}
    seats = Seats((("p", "s"),), ("w",))
    action = decide(ballot, seats, view, in_step=in_step, worth=[Process("p", 9)])
    assert isinstance(action, Adopt)
    assert "".join(process.place for process in action.roster.shards[0]) == left


@pytest.mark.parametrize(
    ("leaving", "other", "left"),
    [
        ("", {"roster": OLD}, None),
        ("s", {"roster": OLD}, "p"),
        ("p", {"roster": OLD}, "s"),
        ("ps", {"roster": OLD}, None),
        ("p", {"step": None}, "p"),
    ],
    ids=["nobody", "a standby", "a primary", "both", "the only one that has the state"],
)
def test_who_is_leaving_is_left_out_where_others_have_the_state(
    leaving: str, other: dict[str, Any], left: str | None
) -> None:
    """None: the roster stays as it is."""
    seats = Seats((("p", "s"),), ("w",))
    roster = OLD if "roster" in other else Roster(OLD.ballot, ((Process("p", 1),),))
    known: dict[str, Any] = {"votes": True, "roster": roster, "generation": Ballot(1, 1), "step": 3, "opened": True}

    def seen(ballot: Ballot) -> View:
        told = {**known, "promised": ballot}
        found = {"p": Answer(1, **told), "s": Answer(2, **{**told, **other}), "w": Answer(7, **told)}
        return {place: replace(answer, leaving=place in leaving) for place, answer in found.items()}

    worth = [Process("p", 1), Process("s", 2)]
    action = decide(OLD.ballot, seats, seen(OLD.ballot), worth=worth)
    if left is None or "roster" not in other:
        assert isinstance(action, Open if "roster" in other else Promise), "who is leaving is copied from, if need be"
    if left is None:
        return
    action = decide(NEW.ballot, seats, seen(NEW.ballot), worth=worth)
    if "roster" not in other:
        assert isinstance(action, Copy)
        return
    assert isinstance(action, Adopt)
    assert "".join(process.place for process in action.roster.shards[0]) == left


@pytest.mark.parametrize(
    ("former", "leaving", "found"),
    [
        (OLD, [Process("p", 1)], ["p"]),
        (OLD, [Process("p", 2)], []),
        (OLD, [Process("s", 2)], []),
        (OLD, [], []),
        (NEW, [Process("p", 1)], []),
        (None, [Process("p", 1)], []),
    ],
    ids=["left", "its next life", "stays all the same", "was lost", "was not in sync", "nobody was"],
)
def test_who_has_handed_over(former: Roster | None, leaving: list[Process], found: list[str]) -> None:
    assert [process.place for process in handed_over(former, NEW, leaving)] == found
