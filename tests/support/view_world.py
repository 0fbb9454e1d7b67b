"""A small world around `replication.view`, whose states can be explored: processes, chiefs, steps and faults.

Every event is one poll of one process, one compare-and-set, one part of a step, or one fault. No actor waits for
another, so a chief or a step may stop for any time between two of its events.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pstraining.core.policies import cut_off
from pstraining.runtime.replication import acceptor, view_decisions
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import Action, Ballot, Process, ProcessStatus, Unreachable, View, Voters
from tests.support.view_calls import Decision, Looked, Seen, check, decisions, source_of
from tests.support.view_state import (
    Call,
    Chief,
    Event,
    Faults,
    History,
    Running,
    Status,
    Step,
    World,
    altered,
    write_of,
)


@dataclass(frozen=True)
class Rules:
    """The explored rules; a test may switch any of them off."""

    next_action: Callable[..., Action] = view_decisions.next_action
    on_prepare: Callable[[ProcessStatus, Ballot], ProcessStatus] = acceptor.on_prepare
    on_accept: Callable[..., ProcessStatus] = acceptor.on_accept
    on_admit: Callable[[ProcessStatus, View], ProcessStatus] = acceptor.on_admit
    on_activate: Callable[[ProcessStatus, View], ProcessStatus] = acceptor.on_activate
    on_transfer: Callable[..., ProcessStatus] = acceptor.on_transfer
    on_transfer_begin: Callable[..., ProcessStatus] = acceptor.on_transfer_begin
    on_chunk: Callable[..., ProcessStatus] = acceptor.on_chunk
    on_transfer_finish: Callable[..., ProcessStatus] = acceptor.on_transfer_finish
    may_go_on: Callable[..., bool] = cut_off.may_go_on
    """Whether a partition may train without the operator's side; the operator then replaces none of its members."""


@dataclass(frozen=True)
class Scope:
    """The explored world: the voters, the side of a partitioned network that each task is on, and the rules."""

    voters: Voters
    sides: dict[str, int]
    rules: Rules = field(default_factory=Rules)
    polls_at_once: bool = False
    """Whether a chief polls all tasks in one event, which leaves few enough histories to explore all of them."""
    operator: int = 1
    """The operator's side of the network, on which replacing processes run."""
    chunk_count: int = 0
    """Number of chunks of a state. 0: no member is a learner, and a returning member receives the whole state."""
    _decided: dict[tuple[Chief, Looked], tuple[Decision, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def start(self, faults: Faults) -> World:
        """Return a world in which all processes run, and the first chief's view is active on all members."""
        ballot, members = Ballot(1, 1), self.voters.members
        view = View(ballot, tuple(tuple(Process(task, 1) for task in shard) for shard in self.voters.shards))
        running = [
            Running(Status(1, ballot, True, view, active=True, step=0), ())
            if task in members
            else Running(Status(1, ballot, True, view))
            for task in self.voters.tasks
        ]
        return World(tuple(running), tuple(1 for _ in running), (Chief(1, 0),), faults, under=ballot)

    def events(self, world: World) -> Iterator[Event]:
        """Yield every event that may happen next.

        Raises:
            ForkedError: a step is acknowledged that must not be.
        """
        for number, chief in enumerate(world.chiefs):
            yield from self._of_chief(world, number, chief)
        for number, call in enumerate(world.late):
            rest = altered(world, late=world.late[:number] + world.late[number + 1 :])
            yield Event("late", f"{call.name} -> {call.to.task}", self._called(rest, call))
        yield from self._of_faults(world)
        yield from self._of_steps(world)

    def _of_chief(self, world: World, number: int, chief: Chief) -> Iterator[Event]:
        actor = f"chief {chief.term}"

        def now(changed: Chief, base: World = world) -> World:
            return altered(base, chiefs=(*base.chiefs[:number], changed, *base.chiefs[number + 1 :]))

        if chief.ended:
            return
        yield from self._of_restart(world, chief, now)
        if chief.calls:
            call, rest = chief.calls[0], now(altered(chief, calls=chief.calls[1:]))
            # No member is activated before it is known that all learners have begun.
            unknown = now(altered(chief, calls=())) if call.name == "begin" else rest
            if not self._reaches(world, chief.side, call.to.task):
                yield Event(actor, f"{call.name} -> {call.to.task} is lost", unknown)
                return
            done = self._called(rest, call)
            yield Event(actor, f"{call.name} -> {call.to.task}", unknown if done.running is rest.running else done)
            if world.faults.twice and done.running is not rest.running:
                left = altered(world.faults, twice=world.faults.twice - 1)
                again = write_of(call, self._process(world, call.argument[1])) if call.name == "transfer" else call
                copy = altered(done, late=(*world.late, again or call), faults=left)
                yield Event(actor, f"{call.name} -> {call.to.task}, and once more later", copy)
            if world.faults.late:
                left = altered(world.faults, late=world.faults.late - 1)
                late = altered(unknown, late=(*world.late, call), faults=left)
                yield Event(actor, f"{call.name} -> {call.to.task} later", late)
                if call.name == "transfer" and (read := write_of(call, self._process(world, call.argument[1]))):
                    begun = altered(unknown, late=(*world.late, read), faults=left)
                    yield Event(actor, f"{call.name} -> {call.to.task} is read, and written later", begun)
            return
        looked = chief.looked
        while len(looked) < len(self.voters.tasks):
            task, process = self.voters.tasks[len(looked)], self._at(world, chief.side, len(looked))
            there = (
                (self._status(process) if process else Unreachable.CRASHED)
                if self._reaches(world, chief.side, task)
                else Unreachable.SUSPECTED
            )
            looked = (*looked, there)
            if not self.polls_at_once and len(looked) < len(self.voters.tasks):
                yield Event(actor, f"looks at {task}", now(altered(chief, looked=looked)))
                return
        for decision in self._decisions(chief, looked):
            action, after, base = decision.action, decision.after, world
            match action:
                case views.Accept(view=view, uncertain=int()):
                    base = altered(world, lossy=world.lossy | {view.ballot})
                case views.RestoreCheckpoint(ballot=ballot):
                    base = altered(world, lossy=world.lossy | {ballot})
                case views.Activate(view=view):
                    base = self._renewed(world, chief, view)
            yield Event(actor, decision.what, now(after, base))
            if isinstance(action, views.Activate) and not after.calls:
                for call in self._chunks(world, chief.side, action.view, self._observation(looked)):
                    yield Event(actor, f"reads a chunk for {call.to.task}", now(altered(after, calls=(call,))))

    def _observation(self, looked: Looked) -> Seen:
        return dict(zip(self.voters.tasks, looked, strict=True))

    def _decisions(self, chief: Chief, looked: Looked) -> tuple[Decision, ...]:
        """Return the possible decisions of a chief that has polled all tasks; many worlds share them."""
        known = self._decided.get((chief, looked))
        if known is None:
            found = decisions(self.rules.next_action, self.voters, chief, self._observation(looked), self.chunk_count)
            known = self._decided[chief, looked] = tuple(found)
        return known

    def _status(self, found: Running) -> ProcessStatus:
        """Return a process's status; without clocks, that is the stored one."""
        return found.status

    def _renewed(self, world: World, chief: Chief, view: View) -> World:
        """Return the world after a chief has found its view active and has renewed the leases that it can renew."""
        del view
        return world if chief.side == self.operator else altered(world, are_leases_over=False)

    def _of_restart(self, world: World, chief: Chief, now: Callable[..., World]) -> Iterator[Event]:
        """Replace the chief's process within its term: the new one has no memory, and a call may be on its way."""
        if not world.faults.restarts:
            return
        left = altered(world, faults=altered(world.faults, restarts=world.faults.restarts - 1))
        again = now(Chief(chief.term, chief.side, epoch=0), left)
        yield Event(f"chief {chief.term}", "restarts", again)
        if chief.calls:
            late = altered(again, late=(*again.late, chief.calls[0]))
            yield Event(f"chief {chief.term}", f"restarts, and its {chief.calls[0].name} arrives later", late)

    def _chunks(self, world: World, side: int, view: View, observation: Seen) -> Iterator[Call]:
        """Yield the next chunk of each learner, as its source holds it now."""
        for process in view.learners:
            source = source_of(self.voters, view, process)
            reported, found = observation[process.task], self._process(world, source)
            assert isinstance(reported, ProcessStatus)
            if found is None or found.history is None or reported.chunks == self.chunk_count:
                continue
            own = found.status
            if self._reaches(world, side, source.task) and own.active and own.promised == view.ballot:
                yield Call("chunk", process, (view.ballot, reported.chunks, found.history, own.generation))

    def _called(self, world: World, call: Call) -> World:
        index, found = self.voters.tasks.index(call.to.task), self._process(world, call.to)
        if found is None:
            return world
        own, history, rules = found.status, found.history, self.rules
        match call.name:
            case "prepare":
                own = rules.on_prepare(own, call.argument)
            case "accept" | "found":
                own = rules.on_accept(own, call.argument, founding=call.name == "found")
            case "admit":
                own = rules.on_admit(own, call.argument)
            case "activate":
                own = rules.on_activate(own, call.argument)
            case "transfer" | "begin":
                return self._transferred(world, call, found)
            case "chunk":
                ballot, number, chunk, generation = call.argument
                own = rules.on_chunk(own, ballot, number, step=len(chunk), generation=generation)
                parts = (*found.parts[:number], chunk, *found.parts[number + 1 :])
                return self._with(world, index, Running(own, None, parts)) if own is not found.status else world
            case "write":
                ballot, history, generation = call.argument
                own = rules.on_transfer(own, ballot, step=len(history), generation=generation)
                own = altered(own, active=False) if own is not found.status else own
            case "restore":
                own = rules.on_transfer(own, call.argument, step=1, generation=call.argument)
                history = (("restored", call.argument),) if own is not found.status else history
        if own is found.status:
            return world
        return self._with(world, index, Running(own, history, () if history else found.parts))

    def _transferred(self, world: World, call: Call, found: Running) -> World:
        """Return the world after a transfer from one member to another while no steps are applied."""
        (under, source, *former), rules = call.argument, self.rules
        ballot = under.ballot if isinstance(under, View) else under
        index, origin = self.voters.tasks.index(call.to.task), self._process(world, source)
        if origin is None or origin.history is None:
            return world
        if origin.status.promised != ballot:
            return world
        own, at = found.status, {"step": len(origin.history), "generation": origin.status.generation}
        if call.name == "begin":
            moved = Running(rules.on_transfer_begin(own, under, **at), None, (None,) * self.chunk_count)
        elif (
            found.parts
            and (joined := rules.on_transfer_finish(own, ballot, *former, self.chunk_count, **at)) is not own
        ):
            moved = Running(joined, found.joined)
        else:
            moved = Running(rules.on_transfer(own, ballot, **at), origin.history)
        return world if moved.status is own else self._with(world, index, moved)

    def _of_faults(self, world: World) -> Iterator[Event]:
        left = world.faults
        for index, found in enumerate(world.running):
            if found and left.drains and not found.status.draining:
                reported = self._with(world, index, altered(found, status=altered(found.status, draining=True)))
                yield Event(
                    "leave", self.voters.tasks[index], altered(reported, faults=altered(left, drains=left.drains - 1))
                )
            if found is None:
                incarnation = world.incarnations[index] + 1
                incarnations = (*world.incarnations[:index], incarnation, *world.incarnations[index + 1 :])
                begun = altered(self._with(world, index, Running(Status(incarnation))), incarnations=incarnations)
                yield Event("restart", self.voters.tasks[index], begun)
            elif left.kills:
                fewer = altered(left, kills=left.kills - 1)
                yield Event("kill", self.voters.tasks[index], altered(self._with(world, index, None), faults=fewer))
        if world.is_cut:
            yield from self._of_replacements(world)
            # A kubelet that is connected again ends the deleted pods.
            yield Event("heal", "", altered(world, is_cut=False, former=(), are_leases_over=False))
        elif left.cuts:
            yield Event("cut", "", altered(world, is_cut=True, faults=altered(left, cuts=left.cuts - 1)))
        if len(world.chiefs) < left.chiefs:
            newer = Chief(len(world.chiefs) + 1, (len(world.chiefs)) % 2)
            yield Event("next chief", "", altered(world, chiefs=(*world.chiefs, newer)))

    def _of_replacements(self, world: World) -> Iterator[Event]:
        """Replace members on unreachable nodes, whose pods the operator deletes by force."""
        cut_off = [task for task in self.voters.tasks if self.sides[task] != self.operator]
        elsewhere = any(self.sides[task] == self.operator for task in self.voters.members)
        if not world.faults.replaces or self.rules.may_go_on(
            len(cut_off), len(self.voters.tasks), members_elsewhere=elsewhere
        ):
            return
        fewer = altered(world.faults, replaces=world.faults.replaces - 1)
        for task in cut_off:
            index = self.voters.tasks.index(task)
            found, number = world.running[index], world.incarnations[index] + 1
            if task in self.voters.members and found and all(index != replaced for replaced, _ in world.former):
                incarnations = (*world.incarnations[:index], number, *world.incarnations[index + 1 :])
                running = (*world.running[:index], Running(Status(number)), *world.running[index + 1 :])
                former = (*world.former, (index, found))
                then = altered(world, running=running, incarnations=incarnations, former=former, faults=fewer)
                yield Event("operator", f"replaces {task}", altered(then, are_leases_over=True))

    def _of_steps(self, world: World) -> Iterator[Event]:
        if world.faults.steps:
            active = {found.status.view for found in world.processes if found.status.active}
            for view in sorted((r for r in active if r), key=lambda view: view.ballot):
                if any(step.view == view for step in world.steps):
                    continue
                fewer = altered(world.faults, steps=world.faults.steps - 1)
                for side in (0, 1) if world.is_cut else (0,):
                    begun = (*world.steps, Step(side, view))
                    then = altered(world, steps=begun, faults=fewer)
                    yield Event("worker", f"begins under {view.ballot} on side {side}", then)
        for number, step in enumerate(world.steps):
            rest = altered(world, steps=world.steps[:number] + world.steps[number + 1 :])
            yield Event("worker", "dies", rest)
            yield from self._written(rest, step)

    def _written(self, world: World, step: Step) -> Iterator[Event]:
        """Write the next part of a step, if its member accepts it."""
        (arbiter, *standbys), *others = step.view.shards
        first, last = (standbys, [arbiter]) if standbys else ([arbiter], [])
        # Followers may apply a step in any order; the order that puts the arbiter there is the hardest one for a chief.
        followers = (process for shard in others for process in reversed(shard))
        order = [*step.view.learners, *first, *followers, *last]
        target = order[step.written]
        base, made = (step.base, step.made) if step.written else self._next_step(world, step)
        index = self.voters.tasks.index(target.task)
        found = self._at(world, step.side, index)
        if world.are_leases_over and step.side != self.operator:
            return
        if made is None or found is None or not self._reaches(world, step.side, target.task):
            return
        own = found.status
        if own.incarnation != target.incarnation or not self._status(found).active or own.view != step.view:
            return
        if target in step.view.learners:
            if own.step not in (len(base or ()), len(made)):
                return
            parts = found.parts if own.step == len(made) else tuple(made if p == base else None for p in found.parts)
            moved = Running(altered(own, step=len(made)), None, parts)
        elif found.history not in (base, made):
            return
        else:
            moved = Running(altered(own, step=len(made)), made)
        then = self._with(world, index, moved)
        if step.written + 1 < len(order):
            then = altered(then, steps=(*then.steps, altered(step, base=base, made=made, written=step.written + 1)))
            yield Event("worker", f"step on {target.task}", then)
            return
        if made != world.acknowledged[: len(made)]:  # else a later call shows it
            self._check(world, made, step.view.ballot)
            then = altered(then, acknowledged=made, under=step.view.ballot)
        yield Event("worker", f"acknowledged under {step.view.ballot}", then)

    def _check(self, world: World, made: History, ballot: Ballot) -> None:
        check(world, made, ballot)

    def _next_step(self, world: World, step: Step) -> tuple[History | None, History | None]:
        """Return the histories before and after the next step; a shard that is ahead is followed first."""
        primaries = [self._process(world, shard[0]) for shard in step.view.shards]
        found = [each.history for each in primaries if each and each.history is not None]
        if len(found) < len(primaries):
            return None, None
        base, top = min(found, key=len), max(found, key=len)
        return base, top[: len(base) + 1] if len(top) > len(base) else (*base, step.view.ballot)

    def _at(self, world: World, side: int, index: int) -> Running | None:
        """Return the process that a side reaches in a task's place: on the cut side, still the replaced one."""
        if side != self.operator:
            for replaced, former in world.former:
                if replaced == index:
                    return former
        return world.running[index]

    def _process(self, world: World, process: Process) -> Running | None:
        """Return the process if it runs."""
        index = self.voters.tasks.index(process.task)
        newest = world.running[index]
        if newest is not None and newest.status.incarnation == process.incarnation:
            return newest
        for replaced, former in world.former:
            if replaced == index and former.status.incarnation == process.incarnation:
                return former
        return None

    def _with(self, world: World, index: int, found: Running | None) -> World:
        for number, (replaced, former) in enumerate(world.former):
            if found and replaced == index and former.status.incarnation == found.status.incarnation:
                others = world.former[number + 1 :]
                return altered(world, former=(*world.former[:number], (index, found), *others))
        return altered(world, running=(*world.running[:index], found, *world.running[index + 1 :]))

    def _reaches(self, world: World, side: int, task: str) -> bool:
        if not world.is_cut or self.sides[task] == side:
            return True
        index = self.voters.tasks.index(task)
        return any(index == replaced for replaced, _ in world.former)
