"""A chief's decisions where several shards, no witnesses, or lost processes make the difference."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.replication.acceptor import on_accept, on_prepare
from pstraining.runtime.replication.view import (
    NO_BALLOT,
    Accept,
    Action,
    Activate,
    AdmitVoter,
    Ballot,
    Observation,
    Prepare,
    Process,
    ProcessStatus,
    RestoreCheckpoint,
    Superseded,
    TransferState,
    Unreachable,
    View,
    Voters,
    Wait,
)
from pstraining.runtime.replication.view_decisions import next_action, restored_instead

FIRST, NEXT = Ballot(1, 1), Ballot(1, 2)
CRASHED, SUSPECTED = Unreachable.CRASHED, Unreachable.SUSPECTED
PAIR = Voters((("p", "s"),), ())
RANKED = Voters((("s", "p"),), ("w",))
SHARDS = Voters((("a", "b"), ("c", "d")), ("w",))


def processes(*tasks: str) -> tuple[Process, ...]:
    return tuple(Process(task, 1) for task in tasks)


def view(*shards: str, ballot: Ballot = FIRST) -> View:
    return View(ballot, tuple(processes(*shard) for shard in shards))


def status(known: View | None, promised: Ballot = NEXT, **changes: Any) -> ProcessStatus:
    found = ProcessStatus(1, promised, is_voter=True, view=known, step=3, generation=FIRST)
    return replace(found, **changes)


def decided(voters: Voters, observation: Observation, epoch: int = 2, **more: Any) -> Action:
    return next_action(Ballot(1, epoch), voters, observation, **more)


def everyone(voters: Voters, known: View | None, **more: Any) -> dict[str, ProcessStatus | Unreachable]:
    """Return all processes; witnesses hold no state."""
    members, witness = status(known, **more), replace(status(known, **more), step=None)
    return {task: members if task in voters.members else witness for task in voters.tasks}


def test_without_witnesses_the_members_alone_are_a_view() -> None:
    active = everyone(PAIR, view("ps"), promised=FIRST, active=True)
    assert decided(PAIR, active, 1) == Activate(view("ps"), processes("p", "s"))
    assert decided(PAIR, {**active, "s": status(None, NO_BALLOT, incarnation=2)}, 1) == Prepare(
        NEXT, (Process("p", 1), Process("s", 2))
    )


def test_members_are_ranked_by_their_tasks_not_by_their_names() -> None:
    action = decided(RANKED, everyone(RANKED, view("sp")))
    assert action == Accept(view("sp", ballot=NEXT), processes("s", "p", "w"))
    returned = {**everyone(RANKED, view("p")), "s": status(view("p"), step=None, transferred_in=NEXT)}
    assert decided(RANKED, returned) == Accept(view("sp", ballot=NEXT), processes("s", "p", "w"))


def test_a_shard_without_state_is_restored_on_all_members_with_all_others() -> None:
    known = everyone(SHARDS, view("ab", "cd"))
    lost: Observation = {**known, "c": status(view("ab", "cd"), step=None), "d": CRASHED}
    assert decided(SHARDS, lost) == RestoreCheckpoint(NEXT, processes("a", "b", "c"), (1,))
    both: Observation = {
        task: replace(each, step=None) for task, each in known.items() if isinstance(each, ProcessStatus)
    }
    assert decided(SHARDS, both) == RestoreCheckpoint(NEXT, processes("a", "b", "c", "d"), (0, 1))


def test_shards_of_two_generations_are_restored() -> None:
    mixed = {**everyone(SHARDS, view("ab", "cd"))}
    mixed |= {task: status(view("ab", "cd"), generation=NEXT) for task in ("c", "d")}
    assert decided(SHARDS, mixed) == RestoreCheckpoint(NEXT, processes("a", "b", "c", "d"), ())
    of_one = {task: replace(each, generation=NEXT) for task, each in mixed.items() if isinstance(each, ProcessStatus)}
    assert isinstance(decided(SHARDS, of_one), Accept)


def test_the_members_at_the_newest_step_are_in_sync_in_lockstep_alone() -> None:
    behind = {**everyone(PAIR, view("ps")), "p": status(view("ps"), step=2)}
    assert decided(PAIR, behind) == Accept(view("s", ballot=NEXT), processes("p", "s"))
    assert decided(PAIR, behind, lockstep=False) == Accept(view("ps", ballot=NEXT), processes("p", "s"))
    begun = {**everyone(PAIR, view("ps"), step=1), "p": status(view("ps"), step=0)}
    assert decided(PAIR, begun) == Accept(view("s", ballot=NEXT), processes("p", "s"))
    older = {**behind, "p": status(view("ps"), step=9, generation=NO_BALLOT)}
    assert decided(PAIR, older) == decided(PAIR, older, lockstep=False) == decided(PAIR, behind)
    empty = {**everyone(PAIR, view("ps"), step=0), "p": status(view("ps"), step=None)}
    assert decided(PAIR, empty) == Accept(view("s", ballot=NEXT), processes("p", "s"))


def test_state_is_transferred_to_promotable_members_without_state() -> None:
    returned = {**everyone(RANKED, view("p")), "s": status(view("p"), step=None)}
    asked = decided(RANKED, returned, promotable=processes("s"))
    assert asked == TransferState(NEXT, ((Process("p", 1), Process("s", 1)),), FIRST)
    given = {**returned, "s": status(view("p"), step=3, transferred_in=NEXT)}
    assert decided(RANKED, given, promotable=processes("s")) == Accept(
        view("sp", ballot=NEXT), processes("s", "p", "w")
    )
    draining = {**returned, "s": status(view("p"), step=None, draining=True)}
    assert decided(RANKED, draining, promotable=processes("s")) == Accept(
        view("p", ballot=NEXT), processes("s", "p", "w")
    )


def test_members_of_several_shards_receive_state_together() -> None:
    known = view("a", "c")
    empty = {task: status(known, step=None) for task in ("b", "d")}
    asked = decided(SHARDS, {**everyone(SHARDS, known), **empty}, promotable=processes("b", "d"))
    pairs = tuple((Process(source, 1), Process(target, 1)) for source, target in (("a", "b"), ("c", "d")))
    assert asked == TransferState(NEXT, pairs, FIRST)


def test_the_first_view_restores_and_waits_for_members_that_have_yet_to_start() -> None:
    fresh: Observation = {task: ProcessStatus(1, NEXT) for task in ("p", "s")}
    assert decided(PAIR, fresh) == RestoreCheckpoint(NEXT, processes("p", "s"), (0,))
    restored = {task: ProcessStatus(1, NEXT, step=1, generation=NEXT, transferred_in=NEXT) for task in ("p", "s")}
    assert decided(PAIR, restored) == Accept(view("ps", ballot=NEXT), processes("p", "s"), founding=True)
    missing: Observation = {"p": CRASHED, "s": CRASHED}
    assert decided(PAIR, missing) == Wait("p, s have yet to come up for the first time")
    assert decided(PAIR, {**fresh, "p": CRASHED}, wait_for_absent=False) == RestoreCheckpoint(
        NEXT, processes("s"), (0,)
    )


@pytest.mark.parametrize(
    ("voters", "observation", "reason"),
    [
        (
            SHARDS,
            {**everyone(SHARDS, view("ab", "cd")), "a": SUSPECTED, "b": SUSPECTED},
            "the state of shard 0 may be on a, b alone, which does not answer",
        ),
        (
            SHARDS,
            {**everyone(SHARDS, view("ab", "cd")), "c": CRASHED, "d": CRASHED},
            "the state of shard 1 is lost, and none of c, d is there to restore it",
        ),
        (
            SHARDS,
            {**everyone(SHARDS, view("ab", "cd")), "a": SUSPECTED, "b": SUSPECTED, "w": CRASHED},
            "2 of 5 voters answer, no quorum, and a, b do not",
        ),
        (
            SHARDS,
            {
                **everyone(SHARDS, view("a", "c", ballot=NEXT)),
                **{"b": SUSPECTED, "d": SUSPECTED, "w": status(view("ab", "cd"), FIRST, step=None)},
            },
            "2 of 5 voters have the view, which is no quorum",
        ),
    ],
)
@pytest.mark.parametrize("silent", [SUSPECTED, Unreachable.UNCONNECTED])
def test_a_waiting_chief_reports_the_reason(
    voters: Voters, observation: Observation, reason: str, silent: Unreachable
) -> None:
    """What answers at a port and not this chief's calls may be the known process."""
    seen = {task: silent if found is SUSPECTED else found for task, found in observation.items()}
    assert decided(voters, seen) == Wait(reason)


def test_a_vote_is_given_after_a_second_poll_under_an_active_view() -> None:
    known = view("ps")
    fresh = ProcessStatus(2)
    voters = Voters((("p", "s"),), ("w",))
    seen: dict[str, ProcessStatus | Unreachable] = {**everyone(voters, known, promised=FIRST, active=True), "w": fresh}
    new = (Process("w", 2),)
    activate = Activate(known, processes("p", "s"))
    assert decided(voters, seen, 1) == activate
    assert decided(voters, seen, 1, voteless_before=new) == AdmitVoter(known, new)
    inactive = {**seen, "p": status(known, FIRST)}
    assert decided(voters, inactive, 1, voteless_before=new) == activate


def test_witnesses_that_come_up_after_the_first_view_vote_with_the_next() -> None:
    """Two members are no quorum of four voters. Without further votes, the loss of one node would stop training."""
    known, voters = view("ps"), Voters((("p", "s"),), ("w", "x"))
    members = {task: status(known, FIRST, active=True) for task in "ps"}
    late = {"w": ProcessStatus(2), "x": ProcessStatus(2)}
    new = (Process("w", 2), Process("x", 2))
    everybody = (*processes("p", "s"), *new)
    assert decided(voters, {**members, **late}, 1, voteless_before=new) == Prepare(NEXT, everybody)
    promised = {task: replace(found, promised=NEXT, active=False) for task, found in {**members, **late}.items()}
    accepted = Accept(view("ps", ballot=NEXT), everybody, founding=True)
    assert decided(voters, promised, 2, voteless_before=new) == accepted
    suspected: Observation = {**members, **late, "s": SUSPECTED}
    assert isinstance(decided(voters, suspected, 1, voteless_before=new), Wait), "another chief may lead that member"


def test_a_member_that_may_lack_steps_of_lost_processes_is_named_with_its_step() -> None:
    """The other side of a cut may have continued under a later view, and all its processes may have been evicted."""
    known = status(view("ps"), step=312)
    left: Observation = {"s": known, "p": ProcessStatus(2, NEXT), "w": ProcessStatus(2, NEXT)}
    everybody = (Process("s", 1), Process("p", 2), Process("w", 2))
    assert decided(RANKED, left) == Accept(view("s", ballot=NEXT), everybody, founding=True, uncertain=312)
    found = Accept(view("s", ballot=NEXT), everybody, founding=True, uncertain=312)
    assert decided(RANKED, left, proposed=found.view) == replace(found, uncertain=None), "it was reported before"
    assert restored_instead(found, RANKED, 312) == found, "the checkpoint is not newer"
    assert restored_instead(found, RANKED, 313) == RestoreCheckpoint(NEXT, everybody[:2], (0,))
    certain = replace(found, uncertain=None)
    assert restored_instead(certain, RANKED, 313) == certain
    workers_lost: Observation = {"p": known, "s": known, "w": ProcessStatus(2, NEXT), "x": ProcessStatus(2, NEXT)}
    complete = Accept(view("ps", ballot=NEXT), (*processes("p", "s"), Process("w", 2), Process("x", 2)), founding=True)
    assert decided(Voters((("p", "s"),), ("w", "x")), workers_lost) == complete, "no other process can have led a view"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("term", [1, 2], ids=["restarted in its term", "the next chief"])
def test_a_chief_that_ends_while_it_sends_an_uncertain_view_has_reported_it_or_the_next_one_does(
    number: int, term: int
) -> None:
    """The chief reports before it sends, and may end after any process has the view."""
    left = {"s": status(view("ps"), step=312), "p": ProcessStatus(2, NEXT), "w": ProcessStatus(2, NEXT)}
    sent = decided(RANKED, left)
    assert isinstance(sent, Accept)
    reports = [sent.uncertain] if number else []  # by the first chief
    after = {
        task: on_accept(own, sent.view, founding=True) if (task in "spw"[:number]) else own
        for task, own in left.items()
    }
    chief, proposed = Ballot(term, 0), None
    while not isinstance(action := next_action(chief, RANKED, after, proposed=proposed), Activate):
        if isinstance(action, Prepare):
            chief = action.ballot
            after = {task: on_prepare(own, chief) for task, own in after.items()}
        else:
            assert isinstance(action, Accept)
            reports += [] if action.uncertain is None else [action.uncertain]
            proposed = action.view
            after = {
                task: on_accept(own, action.view, founding=action.founding)
                if own.incarnation in {p.incarnation for p in action.to if p.task == task}
                else own
                for task, own in after.items()
            }
    assert set(reports) == {312}


def test_no_step_may_be_lost_while_all_members_of_one_shard_are_left() -> None:
    """A later view would have had one of them, so it would know that view."""
    known = view("ab", "cd")
    left: Observation = {
        **{task: status(known, step=312) for task in "abc"},
        "d": ProcessStatus(2, NEXT),
        "w": ProcessStatus(2, NEXT),
        "x": ProcessStatus(2, NEXT),
    }
    found = decided(replace(SHARDS, witnesses=("w", "x")), left)
    assert isinstance(found, Accept)
    assert (found.founding, found.uncertain) == (True, None)
    one_of_each = decided(replace(SHARDS, witnesses=("w", "x")), {**left, "b": ProcessStatus(2, NEXT)})
    assert isinstance(one_of_each, Accept)
    assert one_of_each.uncertain == 312


def test_the_view_is_sent_first_to_promisers_that_lack_it() -> None:
    known = view("ps", ballot=NEXT)
    seen = {**everyone(RANKED, known), "w": status(view("ps"), step=None)}
    assert decided(Voters((("p", "s"),), ("w",)), seen) == Accept(known, processes("w"))
    elsewhere = {**everyone(RANKED, known), "p": status(view("ps"), FIRST)}
    assert decided(Voters((("p", "s"),), ("w",)), elsewhere) == Prepare(Ballot(1, 3), processes("s", "p", "w"))


def test_promises_are_requested_until_a_quorum_and_every_member_made_them() -> None:
    voters = Voters((("p", "s"),), ("v", "w"))
    seen = everyone(voters, view("ps"))
    again = Prepare(Ballot(1, 3), processes("p", "s", "v", "w"))
    assert isinstance(decided(voters, {**seen, "w": status(view("ps"), FIRST, step=None)}), Accept)
    assert decided(voters, {**seen, "p": status(view("ps"), FIRST)}) == again
    assert decided(voters, {**seen, **{t: status(view("ps"), FIRST, step=None) for t in ("v", "w")}}) == again
    assert decided(voters, everyone(voters, view("ps"), promised=Ballot(2, 7))) == Superseded(2)
    other = Prepare(Ballot(2, 1), processes("p", "s", "v", "w"))
    assert next_action(Ballot(2, 0), voters, seen) == other


def test_a_draining_member_is_left_out_where_another_one_is_in_sync() -> None:
    drained = {**everyone(PAIR, view("ps")), "p": status(view("ps"), draining=True)}
    assert decided(PAIR, drained) == Accept(view("s", ballot=NEXT), processes("p", "s"))
    active = {**everyone(PAIR, view("ps"), promised=FIRST, active=True)}
    assert isinstance(decided(PAIR, {**active, "p": status(view("ps"), FIRST, active=True, draining=True)}, 1), Prepare)
    only = {"p": status(view("p"), FIRST, active=True, draining=True), "s": status(view("p"), FIRST, step=None)}
    assert decided(PAIR, only, 1) == Activate(view("p"), processes("p"))
