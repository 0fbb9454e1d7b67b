"""Each request to an acceptor: its condition, its effect, and that it otherwise changes nothing."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import Ballot, Process, ProcessStatus, View

LOW, OWN, HIGH = Ballot(1, 9), Ballot(2, 1), Ballot(2, 2)
FORMER = View(LOW, ((Process("p", 1),),))
VIEW = View(OWN, ((Process("p", 1), Process("s", 1)),))
OTHER = View(OWN, ((Process("s", 1),),))
GENERATION = Ballot(1, 3)
AT: dict[str, Any] = {"step": 7, "generation": GENERATION}

FOLLOWING = ProcessStatus(1, OWN, True, VIEW, active=True, step=7, generation=GENERATION, chunks=2)
"""An acceptor that applies steps under its view."""
READY = replace(FOLLOWING, active=False)
"""The same acceptor before its activation."""
PROMISED = replace(READY, view=FORMER)
"""An acceptor that has promised the ballot of a view that it does not know yet."""
FRESH = ProcessStatus(2)


def changed(own: ProcessStatus, then: ProcessStatus, **changes: Any) -> None:
    assert then == replace(own, **changes)
    assert then is not own


@pytest.mark.parametrize("own", [FOLLOWING, READY, PROMISED])
def test_a_promise_is_made_only_for_a_higher_ballot(own: ProcessStatus) -> None:
    changed(own, acceptor.on_prepare(own, HIGH), promised=HIGH, active=False)
    assert acceptor.on_prepare(own, OWN) is own
    assert acceptor.on_prepare(own, LOW) is own


def test_the_view_of_the_promised_ballot_is_accepted() -> None:
    changed(PROMISED, acceptor.on_accept(PROMISED, VIEW), view=VIEW, chunks=0)
    changed(FOLLOWING, acceptor.on_accept(FOLLOWING, OTHER), view=OTHER, active=False, chunks=0)
    unknown = replace(FRESH, promised=OWN)
    changed(unknown, acceptor.on_accept(unknown, VIEW), view=VIEW)
    changed(unknown, acceptor.on_accept(unknown, VIEW, founding=True), view=VIEW, is_voter=True)


@pytest.mark.parametrize("founding", [True, False])
def test_no_other_view_is_accepted(founding: bool) -> None:
    for promised in (LOW, HIGH):
        own = replace(PROMISED, promised=promised)
        assert acceptor.on_accept(own, VIEW, founding=founding) is own
    assert acceptor.on_accept(FOLLOWING, VIEW, founding=founding) is FOLLOWING, "it has it"


def test_a_founding_view_gives_votes_only_to_existing_voters() -> None:
    own = replace(FOLLOWING, is_voter=False)
    assert acceptor.on_accept(own, VIEW) is own
    changed(own, acceptor.on_accept(own, VIEW, founding=True), is_voter=True)


def test_a_vote_is_given_to_non_voters_under_no_lower_ballot() -> None:
    changed(FRESH, acceptor.on_admit(FRESH, VIEW), is_voter=True, promised=OWN, view=VIEW)
    own = replace(FOLLOWING, is_voter=False)
    changed(own, acceptor.on_admit(own, VIEW), is_voter=True)
    late = replace(own, promised=HIGH)
    assert acceptor.on_admit(late, VIEW) is late
    assert acceptor.on_admit(FOLLOWING, VIEW) is FOLLOWING
    early = replace(PROMISED, is_voter=False, promised=LOW)
    changed(early, acceptor.on_admit(early, VIEW), is_voter=True, promised=OWN, view=VIEW, chunks=0)


def test_steps_are_applied_only_under_the_accepted_and_promised_view() -> None:
    changed(READY, acceptor.on_activate(READY, VIEW), active=True)
    for own in (PROMISED, replace(READY, view=OTHER), replace(READY, promised=HIGH), replace(READY, promised=LOW)):
        assert acceptor.on_activate(own, VIEW) is own


def test_whole_state_is_accepted_once_per_ballot_before_steps() -> None:
    own = replace(PROMISED, step=None, generation=Ballot(0, 0), transferred_in=LOW)
    then = acceptor.on_transfer(own, OWN, **AT)
    changed(own, then, step=7, generation=GENERATION, transferred_in=OWN)
    assert acceptor.on_transfer(then, OWN, step=6, generation=GENERATION) is then
    for other in (replace(own, active=True), replace(own, promised=HIGH), replace(own, promised=LOW)):
        assert acceptor.on_transfer(other, OWN, **AT) is other


def test_a_learner_begins_under_its_view_before_steps() -> None:
    own = replace(READY, step=None, generation=Ballot(0, 0))
    changed(own, acceptor.on_transfer_begin(own, VIEW, **AT), step=7, generation=GENERATION, chunks=0)
    for other in (replace(own, view=OTHER), replace(own, promised=HIGH), replace(own, active=True)):
        assert acceptor.on_transfer_begin(other, VIEW, **AT) is other


def test_a_chunk_is_accepted_in_order_at_its_own_step() -> None:
    changed(FOLLOWING, acceptor.on_chunk(FOLLOWING, OWN, 2, **AT), chunks=3)
    for other in (replace(FOLLOWING, promised=HIGH), READY, replace(FOLLOWING, step=8)):
        assert acceptor.on_chunk(other, OWN, 2, **AT) is other
    for number, at in ((1, AT), (3, AT), (2, {**AT, "step": 6}), (2, {**AT, "generation": LOW})):
        assert acceptor.on_chunk(FOLLOWING, OWN, number, **at) is FOLLOWING


def test_a_learner_has_all_after_every_chunk_of_the_former_view() -> None:
    changed(PROMISED, acceptor.on_transfer_finish(PROMISED, OWN, LOW, 2, **AT), transferred_in=OWN)
    for other in (replace(PROMISED, promised=HIGH), replace(PROMISED, view=None), READY, replace(PROMISED, step=8)):
        assert acceptor.on_transfer_finish(other, OWN, LOW, 2, **AT) is other
    for former, count, at in ((HIGH, 2, AT), (LOW, 3, AT), (LOW, 1, AT), (LOW, 2, {**AT, "generation": LOW})):
        assert acceptor.on_transfer_finish(PROMISED, OWN, former, count, **at) is PROMISED
