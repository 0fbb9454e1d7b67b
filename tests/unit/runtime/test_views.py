"""Decisions of workers and chiefs on views and on the statuses of members."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.replication.view import (
    MAY_LIVE,
    Accept,
    Activate,
    Ballot,
    Observation,
    Prepare,
    Process,
    ProcessStatus,
    RestoreCheckpoint,
    TransferState,
    Unreachable,
    View,
    Voters,
    Wait,
    of_layout,
)
from pstraining.runtime.replication.view_decisions import failed_over, next_action, switched_over
from pstraining.runtime.worker.assignments import active_view, anticipated_failures

OLD = View(Ballot(1, 1), ((Process("p", 1), Process("s", 2)),))
NEW = View(Ballot(1, 2), ((Process("s", 2),),))


def member(incarnation: int, view: View, *, active: bool = True) -> ProcessStatus:
    return ProcessStatus(incarnation, view.ballot, is_voter=True, view=view, active=active, step=3)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        ({"p": member(1, OLD), "s": member(2, OLD)}, OLD),
        ({"p": Unreachable.CRASHED, "s": member(2, NEW)}, NEW),
        ({"p": member(1, OLD), "s": member(2, NEW)}, NEW),
        ({"p": Unreachable.CRASHED, "s": member(2, OLD)}, None),
        ({"p": member(9, OLD), "s": member(2, OLD)}, None),
        ({"p": member(1, OLD), "s": member(2, OLD, active=False)}, None),
        ({"p": member(1, OLD), "s": replace(member(2, OLD), promised=Ballot(1, 2))}, None),
        ({"p": member(1, NEW), "s": member(2, OLD)}, None),
        ({"p": ProcessStatus(0), "s": Unreachable.SUSPECTED}, None),
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
def test_the_newest_view_counts_once_active_on_all_its_members(observation: Observation, expected: View | None) -> None:
    assert active_view(observation) == expected


SINGLE = View(Ballot(1, 2), ((Process("s", 2),),))
TAUGHT = View(Ballot(1, 2), ((Process("s", 2),),), (Process("p", 3),))
VOTERS = Voters((("p", "s"),), ("w",))


@pytest.mark.parametrize(("active", "expected"), [(True, TAUGHT), (False, None)])
def test_a_view_is_active_once_it_is_on_its_learners(active: bool, expected: View | None) -> None:
    assert active_view({"p": member(3, TAUGHT, active=active), "s": member(2, TAUGHT)}) == expected


def reported(known: View, **learner: Any) -> dict[str, Any]:
    """Return an observation in which all are under one view, with a possible learner at `p`."""
    own = replace(member(3, known), **{"step": None, "active": False} | learner)
    return {"p": own, "s": member(2, known), "w": replace(member(7, known), step=None)}


P = Process("p", 3)


@pytest.mark.parametrize(
    ("observation", "wanted", "kind"),
    [
        (reported(SINGLE), {}, Activate),
        (reported(SINGLE), {"joining": [P]}, Prepare),
        (reported(SINGLE), {"joining": [Process("s", 2)]}, Activate),
        (reported(TAUGHT, step=3, active=True), {}, Activate),
        (reported(TAUGHT, step=3, active=True), {"joining": [P]}, Activate),
        (reported(TAUGHT, step=3, active=True), {"promotable": [P]}, Prepare),
        (reported(TAUGHT, step=3, active=True, draining=True), {"joining": [P]}, Prepare),
        (reported(TAUGHT, step=3, active=True, incarnation=4), {}, Prepare),
        (reported(TAUGHT, promised=Ballot(1, 1), view=None), {}, Prepare),
        ({**reported(TAUGHT), "p": Unreachable.CRASHED}, {}, Prepare),
        ({**reported(TAUGHT), "p": Unreachable.SUSPECTED}, {}, Prepare),
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
def test_changes_of_a_view_for_learners(observation: Observation, wanted: dict[str, Any], kind: type) -> None:
    assert isinstance(next_action(Ballot(1, 2), VOTERS, observation, **wanted), kind)


@pytest.mark.parametrize(
    ("learner", "wanted", "expected"),
    [
        ({}, {}, ()),
        ({}, {"joining": [P]}, TAUGHT.learners),
        ({"view": TAUGHT, "step": 3}, {}, TAUGHT.learners),
        ({"view": TAUGHT, "step": 3, "draining": True}, {"joining": [P]}, ()),
        ({"view": TAUGHT, "step": 3}, {"promotable": [P]}, TransferState),
        ({"view": TAUGHT, "step": 3, "transferred_in": Ballot(1, 3)}, {"promotable": [P]}, "ps"),
        ({"view": TAUGHT, "step": 3, "transferred_in": Ballot(1, 2)}, {}, TAUGHT.learners),
    ],
    ids=[
        "nobody",
        "it begins",
        "it continues",
        "not who is leaving",
        "the rest is given",
        "in sync",
        "not by an old copy",
    ],
)
def test_the_learners_of_the_next_view(learner: dict[str, Any], wanted: dict[str, Any], expected: Any) -> None:
    """Learners of the next view: a member that has a step only as a learner does not count as having the state."""
    former = learner.get("view", SINGLE)
    observation = {task: replace(a, promised=Ballot(1, 3)) for task, a in reported(former, **learner).items()}
    action = next_action(Ballot(1, 3), VOTERS, observation, **wanted)
    if expected is TransferState:
        assert action == TransferState(Ballot(1, 3), ((Process("s", 2), P),), former.ballot)
        return
    assert isinstance(action, Accept)
    assert "".join(process.task for process in action.view.shards[0]) == (expected if expected == "ps" else "s")
    assert action.view.learners == (() if expected == "ps" else expected)


def test_a_shard_with_only_a_learner_is_restored() -> None:
    observation = {**reported(TAUGHT, step=3, promised=Ballot(1, 3)), "s": Unreachable.CRASHED}
    observation["w"] = replace(observation["w"], promised=Ballot(1, 3))
    assert isinstance(next_action(Ballot(1, 3), VOTERS, observation), RestoreCheckpoint)


@pytest.mark.parametrize(
    ("assignment", "nodes", "left"),
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
def test_one_member_may_be_lost_or_all_on_a_node(assignment: Assignment, nodes: Any, left: list[Assignment]) -> None:
    assert anticipated_failures(assignment, nodes) == left


@pytest.mark.parametrize("wait_for_absent", [True, False])
@pytest.mark.parametrize("other", [*Unreachable, ProcessStatus(0)])
def test_the_first_view_waits_for_starting_members_for_a_limited_time(
    wait_for_absent: bool, other: Unreachable | ProcessStatus
) -> None:
    """An unresponsive member may have the state of an earlier chief; one that refuses connections has none."""
    observation: Observation = {"p": ProcessStatus(0), "s": other, "w": ProcessStatus(7)}
    action = next_action(Ballot(1, 0), Voters((("p", "s"),), ("w",)), observation, wait_for_absent=wait_for_absent)
    is_waiting = other in MAY_LIVE or (wait_for_absent and other is Unreachable.CRASHED)
    assert isinstance(action, Wait if is_waiting else Prepare)


@pytest.mark.parametrize(
    ("lockstep", "other", "left"),
    [
        (True, {"step": 5}, "p"),
        (True, {"step": 7}, "ps"),
        (False, {"step": 5}, "ps"),
        (False, {"step": 5, "generation": Ballot(1, 0)}, "p"),
        (False, {"step": None}, "p"),
    ],
)
def test_members_in_sync_have_the_newest_step_or_the_same_set(lockstep: bool, other: dict[str, Any], left: str) -> None:
    """Members in sync have the newest step in lockstep. Asynchronous members of the same set have all acknowledged
    updates, at any step.
    """
    ballot = Ballot(1, 2)
    known: dict[str, Any] = {"promised": ballot, "is_voter": True, "view": OLD, "generation": Ballot(1, 1)}
    observation = {
        "p": ProcessStatus(1, **{**known, "step": 7}),
        "s": ProcessStatus(2, **{**known, **other}),
        "w": ProcessStatus(3, **known),
    }
    voters = Voters((("p", "s"),), ("w",))
    action = next_action(ballot, voters, observation, lockstep=lockstep, promotable=[Process("p", 9)])
    assert isinstance(action, Accept)
    assert "".join(process.task for process in action.view.shards[0]) == left


@pytest.mark.parametrize(
    ("draining", "other", "left"),
    [
        ("", {"view": OLD}, None),
        ("s", {"view": OLD}, "p"),
        ("p", {"view": OLD}, "s"),
        ("ps", {"view": OLD}, None),
        ("p", {"step": None}, "p"),
    ],
    ids=["nobody", "a standby", "a primary", "both", "the only one that has the state"],
)
def test_a_draining_member_is_excluded_where_others_have_the_state(
    draining: str, other: dict[str, Any], left: str | None
) -> None:
    """A draining member is excluded if others have the state; None leaves the view unchanged."""
    voters = Voters((("p", "s"),), ("w",))
    view = OLD if "view" in other else View(OLD.ballot, ((Process("p", 1),),))
    known: dict[str, Any] = {"is_voter": True, "view": view, "generation": Ballot(1, 1), "step": 3, "active": True}

    def observed(ballot: Ballot) -> Observation:
        reported = {**known, "promised": ballot}
        found = {
            "p": ProcessStatus(1, **reported),
            "s": ProcessStatus(2, **{**reported, **other}),
            "w": ProcessStatus(7, **reported),
        }
        return {task: replace(status, draining=task in draining) for task, status in found.items()}

    promotable = [Process("p", 1), Process("s", 2)]
    action = next_action(OLD.ballot, voters, observed(OLD.ballot), promotable=promotable)
    if left is None or "view" not in other:
        assert isinstance(action, Activate if "view" in other else Prepare), (
            "a draining member is a source if there is no other"
        )
    if left is None:
        return
    action = next_action(NEW.ballot, voters, observed(NEW.ballot), promotable=promotable)
    if "view" not in other:
        assert isinstance(action, TransferState)
        return
    assert isinstance(action, Accept)
    assert "".join(process.task for process in action.view.shards[0]) == left


@pytest.mark.parametrize(
    ("former", "draining", "found"),
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
def test_a_switchover_is_recognized(former: View | None, draining: list[Process], found: list[str]) -> None:
    assert [process.task for process in switched_over(former, NEW, draining)] == found


LED, FOLLOWED, RETURNED = Process("p", 1), Process("s", 2), Process("p", 3)


@pytest.mark.parametrize(
    ("former", "after", "left", "found"),
    [
        ((LED, FOLLOWED), (FOLLOWED,), (), True),
        ((LED, FOLLOWED), (RETURNED, FOLLOWED), (), True),
        ((LED, FOLLOWED), (LED,), (), False),
        ((LED, FOLLOWED), (FOLLOWED,), (LED,), False),
        ((FOLLOWED,), (RETURNED, FOLLOWED), (), False),
        ((LED,), (RETURNED,), (), False),
        (None, (FOLLOWED,), (), False),
    ],
    ids=["lost", "lost and back at once", "a standby was lost", "switched over", "back", "restored", "the first view"],
)
def test_only_the_loss_of_a_primary_is_a_failover(
    former: tuple[Process, ...] | None, after: tuple[Process, ...], left: tuple[Process, ...], found: bool
) -> None:
    """Otherwise, the alert PSTrainingTookOver would report a failover that did not happen."""
    other = (Process("other", 1),)
    before = None if former is None else View(Ballot(1, 1), (other, former))
    assert failed_over(before, View(Ballot(1, 2), (other, after)), left) is found


def test_a_layout_with_fewer_shards_is_no_failover() -> None:
    before = View(Ballot(1, 1), ((LED,), (FOLLOWED,)))
    assert not failed_over(before, View(Ballot(1, 2), ((LED,),)), ())


PROMISED = {
    "p": replace(member(1, OLD, active=False), promised=Ballot(1, 2)),
    "s": replace(member(2, OLD, active=False), promised=Ballot(1, 2)),
    "w": replace(member(7, OLD), promised=Ballot(1, 2), step=None),
}
"""All processes have promised (1, 2), and the view of (1, 1) is the newest."""
WHOLE = replace(OLD, ballot=Ballot(1, 2))


@pytest.mark.parametrize(
    ("epoch", "proposed", "expected"),
    [
        (2, None, "accept"),
        (2, OLD, "accept"),
        (2, WHOLE, "accept"),
        (2, NEW, Ballot(1, 3)),
        (2, View(Ballot(1, 2), ()), Ballot(1, 3)),
        (1, None, Ballot(1, 3)),
        (4, None, Ballot(1, 5)),
    ],
    ids=[
        "its first",
        "one of another ballot",
        "the same again",
        "another one was sent",
        "it is unknown which was sent",
        "another process asked for the promises",
        "a later promise is lost",
    ],
)
def test_a_ballot_has_one_view(epoch: int, proposed: View | None, expected: Ballot | str) -> None:
    action = next_action(Ballot(1, epoch), VOTERS, PROMISED, proposed=proposed)
    if isinstance(expected, Ballot):
        assert action == Prepare(expected, (Process("p", 1), Process("s", 2), Process("w", 7)))
    else:
        assert isinstance(action, Accept)
        assert action.view == WHOLE


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)], ids=str)
def test_a_quorum_is_more_than_half(voters: int, quorum: int) -> None:
    counted = Voters((tuple(f"m{n}" for n in range(voters)),), ())
    assert [counted.is_quorum(number) for number in range(voters + 1)] == [n >= quorum for n in range(voters + 1)]


@pytest.mark.parametrize(
    ("promised", "first_term", "counts"),
    [((0, 0), 5, True), ((4, 9), 5, False), ((5, 0), 5, True), ((6, 1), 5, True), ((1, 1), 1, True)],
)
def test_a_promise_to_an_earlier_chief_is_of_a_former_layout(
    promised: tuple[int, int], first_term: int, counts: bool
) -> None:
    status = ProcessStatus(7, Ballot(*promised))
    assert of_layout(status, first_term) == (status if counts else Unreachable.CRASHED)


def test_voters_of_a_former_layout_neither_vote_nor_report_their_view() -> None:
    """Workers' programs of a former layout may run for seconds longer, and could be more than half of all voters."""
    former = View(Ballot(1, 1), ((Process("ps-0", 1), Process("ps-1", 2)),))
    stale = ProcessStatus(9, Ballot(1, 1), is_voter=True, view=former)
    workers = tuple(f"worker-{index}" for index in range(8))
    voters = Voters((("ps-0", "ps-2"), ("ps-1", "ps-3")), workers)
    members = {task: ProcessStatus(0) for task in voters.members}

    def decided(first_term: int) -> Any:
        heard = {task: of_layout(stale, first_term) for task in workers}
        observation: Observation = members | heard
        promised = {task: replace(status, promised=Ballot(2, 1)) for task, status in members.items()}
        assert isinstance(next_action(Ballot(2, 0), voters, observation), Prepare)
        again = {t: s if isinstance(s, Unreachable) else replace(s, promised=Ballot(2, 1)) for t, s in heard.items()}
        return next_action(Ballot(2, 1), voters, promised | again)

    assert isinstance(decided(2), RestoreCheckpoint), "the checkpoint that was saved for this layout"
    with pytest.raises((IndexError, AssertionError, ValueError)):
        decided(1)
