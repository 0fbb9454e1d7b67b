"""The chief's decisions on its way from one layout of the servers to the next one."""

from dataclasses import replace

import pytest

from pstraining.runtime.replication.view import (
    NO_BALLOT,
    NOT_FOUNDED,
    Accept,
    Action,
    Activate,
    Ballot,
    ChangeLayout,
    Founded,
    FoundLayout,
    LayoutOverError,
    Observation,
    Prepare,
    Process,
    ProcessStatus,
    RestoreCheckpoint,
    Unreachable,
    View,
    Voters,
    of_founding,
)
from pstraining.runtime.replication.view_decisions import next_action

VOTERS = Voters((("p", "s"),), ("w",))
OLD, OWN, NEXT = Ballot(1, 1), Ballot(1, 2), Ballot(1, 3)
MEMBERS = (Process("p", 1), Process("s", 1))
VIEW = View(OLD, (MEMBERS,))
FOUNDED = Founded(OWN, NEXT)
OVER = View(OWN, (MEMBERS,), successor=NEXT)
MEMBER = ProcessStatus(1, OLD, True, VIEW, active=True, step=7, generation=Ballot(5, 0))
WITNESS = ProcessStatus(1, OLD, True, VIEW)


def observed(promised: Ballot, view: View, voters: str = "psw") -> Observation:
    """Return the statuses of processes that have promised a ballot and accepted a view; the others have crashed."""
    members = {task: replace(MEMBER, promised=promised, view=view, active=False) for task in "ps"}
    found = {**members, "w": replace(WITNESS, promised=promised, view=view)}
    return {task: status if task in voters else Unreachable.CRASHED for task, status in found.items()}


def decided(own: Ballot, observation: Observation, founded: Founded | None, proposed: View | None = None) -> Action:
    return next_action(own, VOTERS, observation, founded=founded, proposed=proposed)


def test_a_wanted_layout_ends_an_active_view() -> None:
    active: Observation = {"p": MEMBER, "s": MEMBER, "w": WITNESS}
    assert isinstance(decided(OLD, active, None), Activate)
    assert decided(OLD, active, NOT_FOUNDED) == Prepare(OWN, (*MEMBERS, Process("w", 1)))


@pytest.mark.parametrize("founded", [NOT_FOUNDED, Founded(OLD, NEXT)], ids=["not yet", "under an earlier ballot"])
def test_the_next_layout_is_founded_with_the_members_that_have_the_state(founded: Founded) -> None:
    assert decided(OWN, observed(OWN, VIEW), founded) == FoundLayout(View(OWN, (MEMBERS,)))
    behind = {**observed(OWN, VIEW)}
    behind["p"] = replace(MEMBER, promised=OWN, active=False, step=6)
    assert decided(OWN, behind, founded) == FoundLayout(View(OWN, (MEMBERS[1:],)))


def test_a_layout_whose_state_is_lost_founds_no_other() -> None:
    lost = {task: ProcessStatus(2, OWN, task == "w", VIEW if task == "w" else None) for task in "psw"}
    assert isinstance(decided(OWN, lost, NOT_FOUNDED), RestoreCheckpoint)


@pytest.mark.parametrize("founded", [NOT_FOUNDED, FOUNDED], ids=["before the copy", "after the copy"])
def test_a_layout_whose_state_may_lack_steps_reports_that_and_founds_no_other(founded: Founded) -> None:
    """A later checkpoint may replace the state, and the next layout would not have it."""
    left = {task: ProcessStatus(2, OWN) for task in "pw"} | {"s": replace(MEMBER, promised=OWN, active=False)}
    found = decided(OWN, left, founded)
    assert isinstance(found, Accept)
    assert (found.uncertain, found.view.successor) == (7, NO_BALLOT)


def test_a_founded_layout_ends_this_one_with_a_view_that_a_quorum_accepts() -> None:
    everyone = (*MEMBERS, Process("w", 1))
    assert decided(OWN, observed(OWN, VIEW), FOUNDED) == Accept(OVER, everyone)
    some = {**observed(OWN, OVER), "s": replace(MEMBER, promised=OWN, active=False)}
    assert decided(OWN, some, FOUNDED, OVER) == Accept(OVER, (MEMBERS[1],))
    assert decided(OWN, observed(OWN, OVER), FOUNDED, OVER) == ChangeLayout(OVER)
    assert decided(OWN, observed(OWN, OVER, "pw"), FOUNDED, OVER) == ChangeLayout(OVER), "a lost member is not needed"


def test_without_a_quorum_that_has_accepted_the_end_the_chief_waits_or_repeats() -> None:
    alone: Observation = {**observed(OWN, OVER, "p"), "s": Unreachable.SUSPECTED}
    assert not isinstance(decided(OWN, alone, FOUNDED, OVER), ChangeLayout)


def test_learners_have_no_part_in_a_layout_that_is_over() -> None:
    learning = View(OLD, (MEMBERS[:1],), MEMBERS[1:])
    found = decided(OWN, observed(OWN, learning), FOUNDED)
    assert isinstance(found, Accept)
    assert (found.view.learners, found.view.successor) == ((), NEXT)


@pytest.mark.parametrize("voters", ["psw", "pw"])
@pytest.mark.parametrize("founded", [None, NOT_FOUNDED])
def test_a_later_chief_continues_in_the_next_layout(voters: str, founded: Founded | None) -> None:
    """One process may have accepted the end, so a quorum may have."""
    later, ballot = Ballot(2, 0), Ballot(2, 1)
    seen = {**observed(OWN, VIEW, voters), "w": replace(WITNESS, promised=OWN, view=OVER)}
    assert isinstance(decided(later, seen, founded), Prepare)
    promised = {
        task: replace(status, promised=ballot) if isinstance(status, ProcessStatus) else status
        for task, status in seen.items()
    }
    found = decided(ballot, promised, founded)
    assert isinstance(found, Accept)
    assert found.view == replace(OVER, ballot=ballot), "the members need not have the state"
    assert [process.task for process in found.to] == list(voters)
    assert found.founding is False
    accepted = {
        task: replace(status, view=found.view) if isinstance(status, ProcessStatus) else status
        for task, status in promised.items()
    }
    assert decided(ballot, accepted, founded) == ChangeLayout(found.view)


def test_the_end_of_a_layout_gives_votes_if_too_few_are_left_for_a_quorum() -> None:
    later = Ballot(2, 1)
    alone = {task: ProcessStatus(2, later) for task in "ps"} | {"w": replace(WITNESS, promised=later, view=OVER)}
    found = decided(later, alone, None)
    assert isinstance(found, Accept)
    assert found.founding is True
    assert found.view == replace(OVER, ballot=later)


def test_a_layout_that_is_over_gets_no_learners() -> None:
    later, back = Ballot(2, 1), Process("s", 2)
    seen = {**observed(later, OVER, "pw"), "s": ProcessStatus(2, later)}
    found = next_action(later, VOTERS, seen, joining=[back])
    assert isinstance(found, Accept)
    assert found.view == replace(OVER, ballot=later)


def test_what_an_attempt_has_left_counts_for_nothing() -> None:
    own = View(OWN, (MEMBERS,))
    attempt = ProcessStatus(
        1, OWN, True, own, active=True, step=5, generation=Ballot(5, 0), transferred_in=OWN, chunks=2
    )
    assert of_founding(attempt, OWN) == attempt
    assert of_founding(attempt, NO_BALLOT) == attempt
    empty = ProcessStatus(1, OWN, transferred_in=OWN)
    assert of_founding(attempt, NEXT) == empty
    again = replace(attempt, promised=NEXT, transferred_in=NEXT)
    kept = replace(empty, promised=NEXT, transferred_in=NEXT, step=5, generation=Ballot(5, 0))
    assert of_founding(again, NEXT) == kept, "the state of this attempt"


def test_the_end_of_a_layout_names_the_ballot_of_the_next_one() -> None:
    over = LayoutOverError(NEXT)
    assert over.founded == NEXT
    assert "epoch=3" in str(over)
