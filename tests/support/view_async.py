"""The world of `view_world` in mode Async: updates instead of steps, without rounds and without a common order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from pstraining.runtime.replication import view_decisions
from pstraining.runtime.replication.view import View
from tests.support.view_state import Event, ForkedError, History, Step, World, altered
from tests.support.view_world import Rules, Scope


def async_rules(**switched_off: object) -> Rules:
    """Return the rules of a job in mode Async, some of them switched off."""
    return altered(Rules(next_action=partial(view_decisions.next_action, lockstep=False)), **switched_off)


@dataclass(frozen=True)
class AsyncScope(Scope):
    """In Async, a history is a set of updates, and a step is one update on its way to all members of its view."""

    rules: Rules = field(default_factory=async_rules)

    def _of_steps(self, world: World) -> Iterator[Event]:
        active = {found.status.view for found in world.processes if found.status.active}
        known = sorted((view for view in active if view), key=lambda view: view.ballot)
        left = world.faults.steps
        if left:
            for view in known:
                begun = (*world.steps, Step(0, view, made=(f"update {left}",)))
                then = altered(world, steps=begun, faults=altered(world.faults, steps=left - 1))
                yield Event("worker", f"begins under {view.ballot}", then)
        for number, step in enumerate(world.steps):
            rest = altered(world, steps=world.steps[:number] + world.steps[number + 1 :])
            yield Event("worker", "dies", rest)
            yield from self._pushed(rest, step)
            yield from self._sent_again(rest, step, known)

    def _sent_again(self, rest: World, step: Step, known: list[View]) -> Iterator[Event]:
        """A worker without an acknowledgement pushes the same update again, under a newer view."""
        for view in known:
            if view.ballot > step.view.ballot:
                again = altered(rest, steps=(*rest.steps, altered(step, view=view, written=0)))
                yield Event("worker", f"sends {step.made} again under {view.ballot}", again)

    def _pushed(self, rest: World, step: Step) -> Iterator[Event]:
        """An update reaches the next member: each primary, and its standbys after it."""
        order = [process for shard in step.view.shards for process in shard]
        target, made = order[step.written], step.made
        found = self._process(rest, target)
        if made is None or found is None or found.history is None or not self._reaches(rest, step.side, target.task):
            return
        own = found.status
        if not own.active or own.view != step.view:
            return
        history = joined(found.history, made)
        moved = altered(found, status=altered(own, step=len(history)), history=history)
        then = self._with(rest, self.voters.tasks.index(target.task), moved)
        if step.written + 1 < len(order):
            more = altered(then, steps=(*then.steps, altered(step, written=step.written + 1)))
            yield Event("worker", f"{made} on {target.task}", more)
            return
        yield Event(
            "worker", f"acknowledged {made} under {step.view.ballot}", self._acknowledged(then, step.view, made)
        )

    def _acknowledged(self, world: World, view: View, made: History) -> World:
        """Check that every member in sync has every acknowledged update, except those that were reported as lost."""
        processes = [self._process(world, process) for process in view.in_sync]
        histories = [set(found.history or ()) for found in processes if found]
        has_all = all(histories) and all(history.issuperset(world.acknowledged) for history in histories)
        if not has_all or view.ballot < world.under:
            before = set(world.acknowledged)
            if not world.lossy or any(before.issubset(found.history or ()) for found in world.processes):
                raise ForkedError(f"{before} was acknowledged under {world.under}; now {made} is under {view.ballot}")
        kept = (update for update in world.acknowledged if all(update in history for history in histories))
        return altered(world, acknowledged=joined(tuple(kept), made), under=view.ballot)


def joined(history: History, made: History) -> History:
    """Return the union of both histories, in no particular order."""
    return tuple(sorted({*history, *made}, key=repr))
