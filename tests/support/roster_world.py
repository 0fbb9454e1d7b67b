"""A small world around `replication.view`, for exploring what can happen: processes, chiefs, steps, and what goes
wrong.

Every event is one look at one process, one compare-and-set, one part of a step, or one fault. Nobody waits for anybody,
so a chief or a step may stop for as long as it likes between two of its events.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import Absent, Action, Answer, Ballot, Process, Roster, Seats
from tests.support.roster_state import Call, Chief, Event, Faults, ForkedError, History, Running, Step, World


@dataclass(frozen=True)
class Rules:
    """What is explored; a test may switch any of it off."""

    decide: Callable[..., Action] = views.decide
    promise: Callable[[Answer, Ballot], Answer] = acceptor.promise
    adopt: Callable[..., Answer] = acceptor.adopt
    seat: Callable[[Answer, Roster], Answer] = acceptor.seat
    open_: Callable[[Answer, Roster], Answer] = acceptor.open_
    fill: Callable[..., Answer] = acceptor.fill
    begin: Callable[..., Answer] = acceptor.begin
    learn: Callable[..., Answer] = acceptor.learn
    join: Callable[..., Answer] = acceptor.join


@dataclass(frozen=True)
class Scope:
    """What is explored: places, on which side of a cut network each of them is, and the rules."""

    seats: Seats
    sides: dict[str, int]
    rules: Rules = field(default_factory=Rules)
    looks_at_once: bool = False
    """Chiefs see all places in one event: fewer histories, for exploring all of them."""
    pieces: int = 0
    """Of how many a state is made; 0: nobody learns, and who comes back is copied to."""

    def start(self, faults: Faults) -> World:
        """Everybody is there, and the first chief's roster is open on all members."""
        ballot, members = Ballot(1, 1), self.seats.members
        roster = Roster(ballot, tuple(tuple(Process(place, 1) for place in shard) for shard in self.seats.shards))
        running = [
            Running(Answer(1, ballot, True, roster, opened=True, step=0), ())
            if place in members
            else Running(Answer(1, ballot, True, roster))
            for place in self.seats.places
        ]
        return World(tuple(running), tuple(1 for _ in running), (Chief(1, 0),), faults, under=ballot)

    def events(self, world: World) -> Iterator[Event]:
        """Everything that may happen next.

        Raises:
            ForkedError: a step is acknowledged that must not be.
        """
        for number, chief in enumerate(world.chiefs):
            yield from self._of_chief(world, number, chief)
        for number, call in enumerate(world.late):
            rest = replace(world, late=world.late[:number] + world.late[number + 1 :])
            yield Event("late", f"{call.name} -> {call.to.place}", self._called(rest, call))
        yield from self._of_faults(world)
        yield from self._of_steps(world)

    def _of_chief(self, world: World, number: int, chief: Chief) -> Iterator[Event]:
        actor = f"chief {chief.term}"

        def now(changed: Chief, base: World = world) -> World:
            return replace(base, chiefs=(*base.chiefs[:number], changed, *base.chiefs[number + 1 :]))

        if chief.ended:
            return
        if chief.calls:
            call, rest = chief.calls[0], now(replace(chief, calls=chief.calls[1:]))
            # Nobody is opened before it is known that all learners have begun.
            unknown = now(replace(chief, calls=())) if call.name == "begin" else rest
            if not self._reaches(world, chief.side, call.to.place):
                yield Event(actor, f"{call.name} -> {call.to.place} is lost", unknown)
                return
            done = self._called(rest, call)
            yield Event(actor, f"{call.name} -> {call.to.place}", unknown if done.running is rest.running else done)
            if world.faults.late:
                left = replace(world.faults, late=world.faults.late - 1)
                late = replace(unknown, late=(*world.late, call), faults=left)
                yield Event(actor, f"{call.name} -> {call.to.place} later", late)
            return
        looked = chief.looked
        while len(looked) < len(self.seats.places):
            place, process = self.seats.places[len(looked)], world.running[len(looked)]
            there = (
                (process.answer if process else Absent.GONE)
                if self._reaches(world, chief.side, place)
                else Absent.SILENT
            )
            looked = (*looked, there)
            if not self.looks_at_once and len(looked) < len(self.seats.places):
                yield Event(actor, f"looks at {place}", now(replace(chief, looked=looked)))
                return
        view = dict(zip(self.seats.places, looked, strict=True))
        own, decided = Ballot(chief.term, chief.epoch), []
        for back, waits in itertools.product(self._back(view), (True, False)):
            action = self.rules.decide(own, self.seats, view, **back, seen=chief.seen, waits=waits)
            if action not in decided:
                decided.append(action)
        for action in decided:
            new = frozenset(Process(p, a.life) for p, a in view.items() if isinstance(a, Answer) and not a.votes)
            after = replace(chief, looked=(), seen=new, calls=tuple(_calls(self.seats, action, view)))
            base = world
            match action:
                case views.Superseded():
                    after = replace(after, ended=True)
                case views.Promise(ballot=ballot):
                    after = replace(after, epoch=ballot.epoch)
                case views.Adopt(roster=roster, founding=True):
                    base = replace(world, lossy=world.lossy | {roster.ballot})
                case views.Restore(ballot=ballot):
                    base = replace(world, lossy=world.lossy | {ballot})
            yield Event(actor, f"sees: {action}", now(after, base))
            if isinstance(action, views.Open) and not after.calls:
                for call in self._pieces(world, chief.side, action.roster, view):
                    yield Event(actor, f"reads a piece for {call.to.place}", now(replace(after, calls=(call,))))

    def _back(self, view: dict[str, Answer | Absent]) -> Iterator[dict[str, frozenset[Process]]]:
        """A chief takes members in that have come back, or lets them learn, or waits with it."""
        yield {}
        rosters_there = [a.roster for a in view.values() if isinstance(a, Answer) and a.roster]
        known = max(rosters_there, key=lambda roster: roster.ballot).processes if rosters_there else frozenset()
        members = [(place, view[place]) for place in self.seats.members]
        outside = {Process(place, a.life): a for place, a in members if isinstance(a, Answer)}
        if new := frozenset(outside) - known:
            yield {"worth": new}
            if self.pieces:
                yield {"learning": new}
                if done := frozenset(process for process in new if outside[process].learned == self.pieces):
                    yield {"worth": done, "learning": new - done}

    def _pieces(self, world: World, side: int, roster: Roster, view: dict[str, Answer | Absent]) -> Iterator[Call]:
        """The next piece of each learner, as it is on who has it now."""
        for process in roster.learners:
            source = _source(self.seats, roster, process)
            told, found = view[process.place], world.running[self.seats.places.index(source.place)]
            assert isinstance(told, Answer)
            if found is None or found.history is None or told.learned == self.pieces:
                continue
            own = found.answer
            is_there = self._reaches(world, side, source.place) and own.life == source.life
            if is_there and own.opened and own.promised == roster.ballot:
                yield Call("learn", process, (roster.ballot, told.learned, found.history, own.generation))

    def _called(self, world: World, call: Call) -> World:
        index = self.seats.places.index(call.to.place)
        found = world.running[index]
        if found is None or found.answer.life != call.to.life:
            return world
        own, history, rules = found.answer, found.history, self.rules
        match call.name:
            case "promise":
                own = rules.promise(own, call.argument)
            case "adopt" | "found":
                own = rules.adopt(own, call.argument, founding=call.name == "found")
            case "seat":
                own = rules.seat(own, call.argument)
            case "open":
                own = rules.open_(own, call.argument)
            case "copy" | "begin":
                return self._copied(world, call, found)
            case "learn":
                ballot, number, piece, generation = call.argument
                own = rules.learn(own, ballot, number, step=len(piece), generation=generation)
                parts = (*found.parts[:number], piece, *found.parts[number + 1 :])
                return self._with(world, index, Running(own, None, parts)) if own is not found.answer else world
            case "restore":
                own = rules.fill(own, call.argument, step=1, generation=call.argument)
                history = (("restored", call.argument),) if own is not found.answer else history
        if own is found.answer:
            return world
        return self._with(world, index, Running(own, history, () if history else found.parts))

    def _copied(self, world: World, call: Call, found: Running) -> World:
        """What one member gives another one while no steps are made."""
        (under, source, *former), rules = call.argument, self.rules
        ballot = under.ballot if isinstance(under, Roster) else under
        index, origin = self.seats.places.index(call.to.place), world.running[self.seats.places.index(source.place)]
        if origin is None or origin.history is None or origin.answer.life != source.life:
            return world
        if origin.answer.promised != ballot:
            return world
        own, at = found.answer, {"step": len(origin.history), "generation": origin.answer.generation}
        if call.name == "begin":
            moved = Running(rules.begin(own, under, **at), None, (None,) * self.pieces)
        elif found.parts and (joined := rules.join(own, ballot, *former, self.pieces, **at)) is not own:
            moved = Running(joined, found.joined)
        else:
            moved = Running(rules.fill(own, ballot, **at), origin.history)
        return world if moved.answer is own else self._with(world, index, moved)

    def _of_faults(self, world: World) -> Iterator[Event]:
        left = world.faults
        for index, found in enumerate(world.running):
            if found and left.leaves and not found.answer.leaving:
                told = self._with(world, index, replace(found, answer=replace(found.answer, leaving=True)))
                yield Event(
                    "leave", self.seats.places[index], replace(told, faults=replace(left, leaves=left.leaves - 1))
                )
            if found is None:
                life = world.lives[index] + 1
                lives = (*world.lives[:index], life, *world.lives[index + 1 :])
                begun = replace(self._with(world, index, Running(Answer(life))), lives=lives)
                yield Event("restart", self.seats.places[index], begun)
            elif left.kills:
                fewer = replace(left, kills=left.kills - 1)
                yield Event("kill", self.seats.places[index], replace(self._with(world, index, None), faults=fewer))
        if world.is_cut:
            yield Event("heal", "", replace(world, is_cut=False))
        elif left.cuts:
            yield Event("cut", "", replace(world, is_cut=True, faults=replace(left, cuts=left.cuts - 1)))
        if len(world.chiefs) < left.chiefs:
            newer = Chief(len(world.chiefs) + 1, (len(world.chiefs)) % 2)
            yield Event("next chief", "", replace(world, chiefs=(*world.chiefs, newer)))

    def _of_steps(self, world: World) -> Iterator[Event]:
        if world.faults.steps:
            opened = {found.answer.roster for found in world.running if found and found.answer.opened}
            for roster in sorted((r for r in opened if r), key=lambda roster: roster.ballot):
                if any(step.roster == roster for step in world.steps):
                    continue
                fewer = replace(world.faults, steps=world.faults.steps - 1)
                for side in (0, 1) if world.is_cut else (0,):
                    begun = (*world.steps, Step(side, roster))
                    then = replace(world, steps=begun, faults=fewer)
                    yield Event("worker", f"begins under {roster.ballot} on side {side}", then)
        for number, step in enumerate(world.steps):
            rest = replace(world, steps=world.steps[:number] + world.steps[number + 1 :])
            yield Event("worker", "dies", rest)
            yield from self._written(rest, step)

    def _written(self, world: World, step: Step) -> Iterator[Event]:
        """The next part of a step, where it is let in."""
        (arbiter, *standbys), *others = step.roster.shards
        first, last = (standbys, [arbiter]) if standbys else ([arbiter], [])
        # Who follows may do so in any order; that of the arbiter is the one that is hardest on a chief.
        followers = (process for shard in others for process in reversed(shard))
        order = [*step.roster.learners, *first, *followers, *last]
        target = order[step.written]
        base, made = (step.base, step.made) if step.written else self._next_step(world, step.roster)
        index = self.seats.places.index(target.place)
        found = world.running[index]
        if made is None or found is None or not self._reaches(world, step.side, target.place):
            return
        own = found.answer
        if own.life != target.life or not own.opened or own.roster != step.roster:
            return
        if target in step.roster.learners:
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
            yield Event("worker", f"step on {target.place}", then)
            return
        if made != world.acknowledged[: len(made)]:  # else it is known by a later one
            _check(world, made, step.roster.ballot)
            then = replace(then, acknowledged=made, under=step.roster.ballot)
        yield Event("worker", f"acknowledged under {step.roster.ballot}", then)

    def _next_step(self, world: World, roster: Roster) -> tuple[History | None, History | None]:
        """What the next step is made on and what it makes: if a shard is ahead, the others follow it first."""
        primaries = [world.running[self.seats.places.index(shard[0].place)] for shard in roster.shards]
        found = [each.history for each in primaries if each and each.history is not None]
        if len(found) < len(primaries):
            return None, None
        base, top = min(found, key=len), max(found, key=len)
        return base, top[: len(base) + 1] if len(top) > len(base) else (*base, roster.ballot)

    def _with(self, world: World, index: int, found: Running | None) -> World:
        return replace(world, running=(*world.running[:index], found, *world.running[index + 1 :]))

    def _reaches(self, world: World, side: int, place: str) -> bool:
        return not world.is_cut or self.sides[place] == side


def _calls(seats: Seats, action: Action, view: dict[str, Answer | Absent]) -> Iterator[Call]:
    match action:
        case views.Promise(ballot=ballot, to=to):
            yield from (Call("promise", process, ballot) for process in to)
        case views.Adopt(roster=roster, to=to, founding=founding):
            yield from (Call("found" if founding else "adopt", process, roster) for process in to)
        case views.Seat(roster=roster, to=to):
            yield from (Call("seat", process, roster) for process in to)
        case views.Open(roster=roster, to=to):
            answers = {process: view[process.place] for process in to}
            closed = [p for p, a in answers.items() if isinstance(a, Answer) and not a.opened]
            yield from (Call("begin", p, (roster, _source(seats, roster, p))) for p in closed if p in roster.learners)
            yield from (Call("open", process, roster) for process in closed)
        case views.Copy(ballot=ballot, pairs=pairs, former=former):
            yield from (Call("copy", target, (ballot, source, former)) for source, target in pairs)
        case views.Restore(ballot=ballot, to=to):
            yield from (Call("restore", process, ballot) for process in to)


def _source(seats: Seats, roster: Roster, learner: Process) -> Process:
    (own,) = [own for own, places in zip(roster.shards, seats.shards, strict=True) if learner.place in places]
    return own[-1]


def _check(world: World, made: History, ballot: Ballot) -> None:
    """One history: what is acknowledged goes on from what was, unless nobody holds that any more and it was told."""
    before = world.acknowledged
    if ballot >= world.under and made[: len(before)] == before:
        return
    if any(found and found.history is not None and found.history[: len(before)] == before for found in world.running):
        raise ForkedError(
            f"{before} was acknowledged under {world.under} and is still there; now it is {made} under {ballot}"
        )
    if not world.lossy:
        raise ForkedError(f"{before} was acknowledged, and nobody has told that it is lost; now it is {made}")


def walk(scope: Scope, world: World, seed: int, length: int = 400) -> tuple[World, list[str]]:
    """One history drawn at random, in which everybody stands still for a while at times.

    Raises:
        ForkedError: says what happened.
    """
    drawn, pace, path = random.Random(seed), dict[str, float](), list[str]()
    for _ in range(length):
        if drawn.random() < 0.05:
            pace.clear()
        try:
            events = list(scope.events(world))
        except ForkedError as error:
            raise ForkedError(
                "\n".join([f"seed {seed}, {scope.seats}, sides {scope.sides}", *path, str(error)])
            ) from None
        if not events:
            break
        for event in events:
            pace.setdefault(event.actor, drawn.choice([0.01, 0.3, 1.0]))
        event = drawn.choices(events, [pace[event.actor] for event in events])[0]
        world = event.then
        path.append(f"{event.actor}: {event.what}")
    return world, path
