"""What a chief's action sends in the world of `view_world`, and what an acknowledged step is held against."""

from collections.abc import Iterator

from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import Action, Ballot, Process, ProcessStatus, Unreachable, View, Voters
from tests.support.view_state import Call, ForkedError, History, World


def calls_of(voters: Voters, action: Action, observation: dict[str, ProcessStatus | Unreachable]) -> Iterator[Call]:
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
    """One history: what is acknowledged goes on from what was, unless nobody holds that any more and it was told."""
    before = world.acknowledged
    if ballot >= world.under and made[: len(before)] == before:
        return
    if any(found.history is not None and found.history[: len(before)] == before for found in world.processes):
        raise ForkedError(
            f"{before} was acknowledged under {world.under} and is still there; now it is {made} under {ballot}"
        )
    if not world.lossy:
        raise ForkedError(f"{before} was acknowledged, and nobody has told that it is lost; now it is {made}")
