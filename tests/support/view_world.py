"""A small world around `replication.view`, for exploring what can happen: processes, chiefs, steps and faults.

Every event is one poll of one process, one compare-and-set, one part of a step, or one fault. No actor waits for
another, so a chief or a step may stop for any time between two of its events.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pstraining.core.policies import cut_off
from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import Action, Ballot, Process, ProcessStatus, Unreachable, View, Voters
from tests.support.view_calls import calls_of, check, source_of
from tests.support.view_state import Call, Chief, Event, Faults, History, Running, Step, World, write_of


@dataclass(frozen=True)
class Rules:
    """What is explored; a test may switch any of it off."""

    next_action: Callable[..., Action] = views.next_action
    on_prepare: Callable[[ProcessStatus, Ballot], ProcessStatus] = acceptor.on_prepare
    on_accept: Callable[..., ProcessStatus] = acceptor.on_accept
    on_admit: Callable[[ProcessStatus, View], ProcessStatus] = acceptor.on_admit
    on_activate: Callable[[ProcessStatus, View], ProcessStatus] = acceptor.on_activate
    on_transfer: Callable[..., ProcessStatus] = acceptor.on_transfer
    on_transfer_begin: Callable[..., ProcessStatus] = acceptor.on_transfer_begin
    on_chunk: Callable[..., ProcessStatus] = acceptor.on_chunk
    on_transfer_finish: Callable[..., ProcessStatus] = acceptor.on_transfer_finish
    may_go_on: Callable[..., bool] = cut_off.may_go_on
    """Whether those who are cut off may go on by themselves: then the operator replaces none of their members."""


@dataclass(frozen=True)
class Scope:
    """The explored world: the voters, the side of a partitioned network that each task is on, and the rules."""

    voters: Voters
    sides: dict[str, int]
    rules: Rules = field(default_factory=Rules)
    looks_at_once: bool = False
    """Chiefs poll all tasks in one event: fewer histories, for exploring all of them."""
    operator: int = 1
    """The side of the operator, where a process that takes another one's place runs."""
    chunk_count: int = 0
    """Number of chunks of a state; 0: no member is a learner, and a returning member receives the whole state."""

    def start(self, faults: Faults) -> World:
        """Return a world in which all processes run, and the first chief's view is active on all members."""
        ballot, members = Ballot(1, 1), self.voters.members
        view = View(ballot, tuple(tuple(Process(task, 1) for task in shard) for shard in self.voters.shards))
        running = [
            Running(ProcessStatus(1, ballot, True, view, active=True, step=0), ())
            if task in members
            else Running(ProcessStatus(1, ballot, True, view))
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
            rest = replace(world, late=world.late[:number] + world.late[number + 1 :])
            yield Event("late", f"{call.name} -> {call.to.task}", self._called(rest, call))
        yield from self._of_faults(world)
        yield from self._of_steps(world)

    def _of_chief(self, world: World, number: int, chief: Chief) -> Iterator[Event]:
        actor = f"chief {chief.term}"

        def now(changed: Chief, base: World = world) -> World:
            return replace(base, chiefs=(*base.chiefs[:number], changed, *base.chiefs[number + 1 :]))

        if chief.ended:
            return
        yield from self._of_restart(world, chief, now)
        if chief.calls:
            call, rest = chief.calls[0], now(replace(chief, calls=chief.calls[1:]))
            # Nobody is activated before it is known that all learners have begun.
            unknown = now(replace(chief, calls=())) if call.name == "begin" else rest
            if not self._reaches(world, chief.side, call.to.task):
                yield Event(actor, f"{call.name} -> {call.to.task} is lost", unknown)
                return
            done = self._called(rest, call)
            yield Event(actor, f"{call.name} -> {call.to.task}", unknown if done.running is rest.running else done)
            if world.faults.twice and done.running is not rest.running:
                left = replace(world.faults, twice=world.faults.twice - 1)
                again = write_of(call, self._process(world, call.argument[1])) if call.name == "transfer" else call
                copy = replace(done, late=(*world.late, again or call), faults=left)
                yield Event(actor, f"{call.name} -> {call.to.task}, and once more later", copy)
            if world.faults.late:
                left = replace(world.faults, late=world.faults.late - 1)
                late = replace(unknown, late=(*world.late, call), faults=left)
                yield Event(actor, f"{call.name} -> {call.to.task} later", late)
                if call.name == "transfer" and (read := write_of(call, self._process(world, call.argument[1]))):
                    begun = replace(unknown, late=(*world.late, read), faults=left)
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
            if not self.looks_at_once and len(looked) < len(self.voters.tasks):
                yield Event(actor, f"looks at {task}", now(replace(chief, looked=looked)))
                return
        observation = dict(zip(self.voters.tasks, looked, strict=True))
        own, decided = Ballot(chief.term, chief.epoch), []
        for back, wait_for_absent in itertools.product(self._returning(observation), (True, False)):
            action = self.rules.next_action(
                own,
                self.voters,
                observation,
                **back,
                voteless_before=chief.voteless_before,
                wait_for_absent=wait_for_absent,
                proposed=chief.proposed,
            )
            if action not in decided:
                decided.append(action)
        for action in decided:
            new = frozenset(
                Process(p, a.incarnation)
                for p, a in observation.items()
                if isinstance(a, ProcessStatus) and not a.is_voter
            )
            after = replace(
                chief, looked=(), voteless_before=new, calls=tuple(calls_of(self.voters, action, observation))
            )
            base = world
            match action:
                case views.Superseded():
                    after = replace(after, ended=True)
                case views.Prepare(ballot=ballot):
                    after = replace(after, epoch=ballot.epoch)
                case views.Accept(view=view, founding=founding):
                    after = replace(after, proposed=view)
                    base = replace(world, lossy=world.lossy | {view.ballot}) if founding else world
                case views.RestoreCheckpoint(ballot=ballot):
                    base = replace(world, lossy=world.lossy | {ballot})
                case views.Activate(view=view):
                    base = self._renewed(world, chief, view)
            yield Event(actor, f"sees: {action}", now(after, base))
            if isinstance(action, views.Activate) and not after.calls:
                for call in self._chunks(world, chief.side, action.view, observation):
                    yield Event(actor, f"reads a chunk for {call.to.task}", now(replace(after, calls=(call,))))

    def _status(self, found: Running) -> ProcessStatus:
        """What a process answers; without clocks, what it has."""
        return found.status

    def _renewed(self, world: World, chief: Chief, view: View) -> World:
        """The world after a chief has found its view active, and has renewed the leases that it can."""
        del view
        return world if chief.side == self.operator else replace(world, are_leases_over=False)

    def _of_restart(self, world: World, chief: Chief, now: Callable[..., World]) -> Iterator[Event]:
        """The chief's process is replaced within its term: another one remembers nothing, and a call is on its way."""
        if not world.faults.restarts:
            return
        left = replace(world, faults=replace(world.faults, restarts=world.faults.restarts - 1))
        again = now(Chief(chief.term, chief.side, epoch=0), left)
        yield Event(f"chief {chief.term}", "restarts", again)
        if chief.calls:
            late = replace(again, late=(*again.late, chief.calls[0]))
            yield Event(f"chief {chief.term}", f"restarts, and its {chief.calls[0].name} arrives later", late)

    def _returning(
        self, observation: dict[str, ProcessStatus | Unreachable]
    ) -> Iterator[dict[str, frozenset[Process]]]:
        """Yield the choices of a chief: to readmit returned members, to let them learn, or to wait."""
        yield {}
        known_views = [a.view for a in observation.values() if isinstance(a, ProcessStatus) and a.view]
        known = max(known_views, key=lambda view: view.ballot).in_sync if known_views else frozenset()
        members = [(task, observation[task]) for task in self.voters.members]
        outside = {Process(task, a.incarnation): a for task, a in members if isinstance(a, ProcessStatus)}
        if new := frozenset(outside) - known:
            yield {"promotable": new}
            if self.chunk_count:
                yield {"joining": new}
                if done := frozenset(process for process in new if outside[process].chunks == self.chunk_count):
                    yield {"promotable": done, "joining": new - done}

    def _chunks(
        self, world: World, side: int, view: View, observation: dict[str, ProcessStatus | Unreachable]
    ) -> Iterator[Call]:
        """Yield the next chunk of each learner, as its source has it now."""
        for process in view.learners:
            source = source_of(self.voters, view, process)
            told, found = observation[process.task], self._process(world, source)
            assert isinstance(told, ProcessStatus)
            if found is None or found.history is None or told.chunks == self.chunk_count:
                continue
            own = found.status
            if self._reaches(world, side, source.task) and own.active and own.promised == view.ballot:
                yield Call("chunk", process, (view.ballot, told.chunks, found.history, own.generation))

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
                own = replace(own, active=False) if own is not found.status else own
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
                told = self._with(world, index, replace(found, status=replace(found.status, draining=True)))
                yield Event(
                    "leave", self.voters.tasks[index], replace(told, faults=replace(left, drains=left.drains - 1))
                )
            if found is None:
                incarnation = world.incarnations[index] + 1
                incarnations = (*world.incarnations[:index], incarnation, *world.incarnations[index + 1 :])
                begun = replace(
                    self._with(world, index, Running(ProcessStatus(incarnation))), incarnations=incarnations
                )
                yield Event("restart", self.voters.tasks[index], begun)
            elif left.kills:
                fewer = replace(left, kills=left.kills - 1)
                yield Event("kill", self.voters.tasks[index], replace(self._with(world, index, None), faults=fewer))
        if world.is_cut:
            yield from self._of_replacements(world)
            # A kubelet that is heard of again ends what was deleted.
            yield Event("heal", "", replace(world, is_cut=False, former=(), are_leases_over=False))
        elif left.cuts:
            yield Event("cut", "", replace(world, is_cut=True, faults=replace(left, cuts=left.cuts - 1)))
        if len(world.chiefs) < left.chiefs:
            newer = Chief(len(world.chiefs) + 1, (len(world.chiefs)) % 2)
            yield Event("next chief", "", replace(world, chiefs=(*world.chiefs, newer)))

    def _of_replacements(self, world: World) -> Iterator[Event]:
        """The operator deletes members on silent nodes by force, and others take their places."""
        cut_off = [task for task in self.voters.tasks if self.sides[task] != self.operator]
        elsewhere = any(self.sides[task] == self.operator for task in self.voters.members)
        if not world.faults.replaces or self.rules.may_go_on(
            len(cut_off), len(self.voters.tasks), members_elsewhere=elsewhere
        ):
            return
        fewer = replace(world.faults, replaces=world.faults.replaces - 1)
        for task in cut_off:
            index = self.voters.tasks.index(task)
            found, number = world.running[index], world.incarnations[index] + 1
            if task in self.voters.members and found and all(index != replaced for replaced, _ in world.former):
                incarnations = (*world.incarnations[:index], number, *world.incarnations[index + 1 :])
                running = (*world.running[:index], Running(ProcessStatus(number)), *world.running[index + 1 :])
                former = (*world.former, (index, found))
                then = replace(world, running=running, incarnations=incarnations, former=former, faults=fewer)
                yield Event("operator", f"replaces {task}", replace(then, are_leases_over=True))

    def _of_steps(self, world: World) -> Iterator[Event]:
        if world.faults.steps:
            active = {found.status.view for found in world.processes if found.status.active}
            for view in sorted((r for r in active if r), key=lambda view: view.ballot):
                if any(step.view == view for step in world.steps):
                    continue
                fewer = replace(world.faults, steps=world.faults.steps - 1)
                for side in (0, 1) if world.is_cut else (0,):
                    begun = (*world.steps, Step(side, view))
                    then = replace(world, steps=begun, faults=fewer)
                    yield Event("worker", f"begins under {view.ballot} on side {side}", then)
        for number, step in enumerate(world.steps):
            rest = replace(world, steps=world.steps[:number] + world.steps[number + 1 :])
            yield Event("worker", "dies", rest)
            yield from self._written(rest, step)

    def _written(self, world: World, step: Step) -> Iterator[Event]:
        """The next part of a step, where it is let in."""
        (arbiter, *standbys), *others = step.view.shards
        first, last = (standbys, [arbiter]) if standbys else ([arbiter], [])
        # Who follows may do so in any order; that of the arbiter is the one that is hardest on a chief.
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
            moved = Running(replace(own, step=len(made)), None, parts)
        elif found.history not in (base, made):
            return
        else:
            moved = Running(replace(own, step=len(made)), made)
        then = self._with(world, index, moved)
        if step.written + 1 < len(order):
            then = replace(then, steps=(*then.steps, replace(step, base=base, made=made, written=step.written + 1)))
            yield Event("worker", f"step on {target.task}", then)
            return
        if made != world.acknowledged[: len(made)]:  # else it is known by a later one
            self._check(world, made, step.view.ballot)
            then = replace(then, acknowledged=made, under=step.view.ballot)
        yield Event("worker", f"acknowledged under {step.view.ballot}", then)

    def _check(self, world: World, made: History, ballot: Ballot) -> None:
        check(world, made, ballot)

    def _next_step(self, world: World, step: Step) -> tuple[History | None, History | None]:
        """What the next step is made on and what it makes: if a shard is ahead, the others follow it first."""
        primaries = [self._process(world, shard[0]) for shard in step.view.shards]
        found = [each.history for each in primaries if each and each.history is not None]
        if len(found) < len(primaries):
            return None, None
        base, top = min(found, key=len), max(found, key=len)
        return base, top[: len(base) + 1] if len(top) > len(base) else (*base, step.view.ballot)

    def _at(self, world: World, side: int, index: int) -> Running | None:
        """The process that a side finds in a task's place: on the side that is cut off, still the former one."""
        former = next((found for replaced, found in world.former if replaced == index), None)
        return former if former is not None and side != self.operator else world.running[index]

    def _process(self, world: World, process: Process) -> Running | None:
        """The process, if it runs."""
        index = self.voters.tasks.index(process.task)
        found = (world.running[index], *(found for replaced, found in world.former if replaced == index))
        return next((each for each in found if each and each.status.incarnation == process.incarnation), None)

    def _with(self, world: World, index: int, found: Running | None) -> World:
        for number, (replaced, former) in enumerate(world.former):
            if found and replaced == index and former.status.incarnation == found.status.incarnation:
                others = world.former[number + 1 :]
                return replace(world, former=(*world.former[:number], (index, found), *others))
        return replace(world, running=(*world.running[:index], found, *world.running[index + 1 :]))

    def _reaches(self, world: World, side: int, task: str) -> bool:
        index = self.voters.tasks.index(task)
        return not world.is_cut or self.sides[task] == side or any(index == replaced for replaced, _ in world.former)
