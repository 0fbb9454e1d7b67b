"""A chief's decisions and calls in the world of `view_world`, and the check of an acknowledged step."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import Action, Ballot, Process, ProcessStatus, Unreachable, View, Voters
from tests.support.view_state import Call, Chief, ForkedError, History, World, altered

Looked = tuple[ProcessStatus | Unreachable, ...]
"""The statuses that a chief has polled, by number of the task."""
Seen = dict[str, ProcessStatus | Unreachable]
"""The statuses of all tasks."""


class Decision(NamedTuple):
    """The action of a chief that has polled all tasks, and the chief's state after it."""

    what: str
    action: Action
    after: Chief


def decisions(
    next_action: Callable[..., Action], voters: Voters, chief: Chief, observation: Seen, chunk_count: int
) -> Iterator[Decision]:
    """Yield the possible actions of a chief, which depend on nothing else in the world."""
    decided = list[Action]()
    for back, wait_for_absent in product(_returning(voters, observation, chunk_count), (True, False)):
        action = next_action(
            Ballot(chief.term, chief.epoch),
            voters,
            observation,
            **back,
            voteless_before=chief.voteless_before,
            wait_for_absent=wait_for_absent,
            proposed=chief.proposed,
        )
        if action not in decided:
            decided.append(action)
    answers = [(task, answer) for task, answer in observation.items() if isinstance(answer, ProcessStatus)]
    new = frozenset(Process(task, answer.incarnation) for task, answer in answers if not answer.is_voter)
    for action in decided:
        calls = tuple(calls_of(voters, action, observation))
        after = altered(chief, looked=(), voteless_before=new, calls=calls)
        match action:
            case views.Superseded():
                after = altered(after, ended=True)
            case views.Prepare(ballot=ballot):
                after = altered(after, epoch=ballot.epoch)
            case views.Accept(view=view):
                after = altered(after, proposed=view)
        yield Decision(f"sees: {action}", action, after)


def _returning(voters: Voters, observation: Seen, chunk_count: int) -> Iterator[dict[str, frozenset[Process]]]:
    """Yield a chief's options: to readmit returned members, to let them learn, or to wait."""
    yield {}
    known_views = [a.view for a in observation.values() if isinstance(a, ProcessStatus) and a.view]
    known = max(known_views, key=lambda view: view.ballot).in_sync if known_views else frozenset()
    members = [(task, observation[task]) for task in voters.members]
    outside = {Process(task, a.incarnation): a for task, a in members if isinstance(a, ProcessStatus)}
    if new := frozenset(outside) - known:
        yield {"promotable": new}
        if chunk_count:
            yield {"joining": new}
            if done := frozenset(process for process in new if outside[process].chunks == chunk_count):
                yield {"promotable": done, "joining": new - done}


def calls_of(voters: Voters, action: Action, observation: Seen) -> Iterator[Call]:
    match action:
        case views.Prepare(ballot=ballot, to=to):
            yield from (Call("prepare", process, ballot) for process in to)
        case views.Accept(view=view, to=to, founding=founding):
            yield from (Call("found" if founding else "accept", process, view) for process in to)
        case views.AdmitVoter(view=view, to=to):
            yield from (Call("admit", process, view) for process in to)
        case views.Activate(view=view, to=to):
            statuses = {process: observation[process.task] for process in to}
            closed = [p for p, a in statuses.items() if isinstance(a, ProcessStatus) and not a.active]
            yield from (Call("begin", p, (view, source_of(voters, view, p))) for p in closed if p in view.learners)
            yield from (Call("activate", process, view) for process in closed)
        case views.TransferState(ballot=ballot, pairs=pairs, former=former):
            yield from (Call("transfer", target, (ballot, source, former)) for source, target in pairs)
        case views.RestoreCheckpoint(ballot=ballot, to=to):
            yield from (Call("restore", process, ballot) for process in to)


def source_of(voters: Voters, view: View, learner: Process) -> Process:
    (own,) = [own for own, tasks in zip(view.shards, voters.shards, strict=True) if learner.task in tasks]
    return own[-1]


def check(world: World, made: History, ballot: Ballot) -> None:
    """Check a history: steps continue from acknowledged ones, unless no process has these and the loss was reported."""
    before = world.acknowledged
    if ballot >= world.under and made[: len(before)] == before:
        return
    if any(found.history is not None and found.history[: len(before)] == before for found in world.processes):
        raise ForkedError(
            f"{before} was acknowledged under {world.under} and is still there; now it is {made} under {ballot}"
        )
    if not world.lossy:
        raise ForkedError(f"{before} was acknowledged, and its loss was not reported; now it is {made}")
