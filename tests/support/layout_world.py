"""A small world of two layouts: chiefs that lead training from one to the next, steps, losses and late calls.

Each layout is one shard of two members; the worker votes in both. Every event is one poll with its decision, one
compare-and-set, one part of a step, or one fault. The poll covers all tasks of a layout at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pstraining.runtime.replication import acceptor, view_decisions
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.view import (
    NO_BALLOT,
    NOT_FOUNDED,
    Action,
    Ballot,
    Founded,
    Process,
    ProcessStatus,
    Unreachable,
    View,
    Voters,
)
from tests.support.view_state import ForkedError, History, kept_hash

LAYOUTS = (Voters((("p", "s"),), ("w",)), Voters((("q", "r"),), ("w",)))
"""The current layout, and the next one."""
PLACES = tuple((layout, task) for layout, voters in enumerate(LAYOUTS) for task in voters.tasks)
"""Every acceptor: a task of a layout. The worker has one in each."""
TOGETHER = {"p": "p", "q": "p", "s": "s", "r": "r", "w": "w"}
"""The process of each task: one server holds a shard of both layouts."""


@dataclass(frozen=True)
class Rules:
    """The explored rules; a test may switch any of them off."""

    next_action: Callable[..., Action] = view_decisions.next_action
    of_founding: Callable[[ProcessStatus, Ballot], ProcessStatus] = views.of_founding
    waits_for_quorum: bool = True
    """Whether a chief leads the next layout only after a quorum has accepted that the current one is over."""


class Place(NamedTuple):
    """One acceptor: the status, and a member's history."""

    status: ProcessStatus
    history: History | None = None


class Call(NamedTuple):
    """A compare-and-set on its way."""

    name: str
    layout: int
    to: Process
    argument: Any


@dataclass(frozen=True)
class Chief:
    """A chief between polling and acting."""

    term: int
    layout: int = 0
    epochs: tuple[int, int] = (1, 0)
    wants: bool = False
    """Whether it is to lead training to the next layout."""
    founded: Founded = NOT_FOUNDED
    founds: View | None = None
    """The view of the current layout whose state it copies to the next one; None: it does not."""
    successor: Ballot = NO_BALLOT
    """The ballot under which the next layout was founded, once it leads it."""
    calls: tuple[Call, ...] = ()
    voteless: tuple[frozenset[Process], frozenset[Process]] = (frozenset(), frozenset())
    proposed: tuple[View | None, View | None] = (None, None)
    ended: bool = False

    def __hash__(self) -> int:
        return kept_hash(self)


class Step(NamedTuple):
    """A step that a worker is writing to the members in sync of a view."""

    layout: int
    view: View
    made: History | None = None
    written: int = 0


class Faults(NamedTuple):
    """How many faults and other events may still happen."""

    kills: int = 0
    chiefs: int = 1
    steps: int = 0
    give_ups: int = 0
    """Attempts to found the next layout that a chief gives up."""
    late: int = 0
    """Calls that arrive after their caller has given up."""


@dataclass(frozen=True)
class World:
    """The complete state of the world."""

    places: tuple[Place | None, ...]
    incarnations: tuple[int, ...]
    chiefs: tuple[Chief, ...]
    faults: Faults
    steps: tuple[Step, ...] = ()
    late: tuple[Call, ...] = ()
    acknowledged: History = ()
    lossy: bool = False
    """Whether a loss of steps was reported."""

    def __hash__(self) -> int:
        return kept_hash(self)


class Event(NamedTuple):
    """A possible next event."""

    what: str
    then: World


def start(faults: Faults) -> World:
    """Return a world that trains with the current layout, and whose chief is to lead it to the next one."""
    view = View(Ballot(1, 1), ((Process("p", 1), Process("s", 1)),))
    places = []
    for layout, task in PLACES:
        own = ProcessStatus(1, Ballot(1, 1), True, view) if layout == 0 else ProcessStatus(1)
        is_member = layout == 0 and task in LAYOUTS[0].members
        places.append(Place(replace(own, active=True, step=0), ()) if is_member else Place(own))
    return World(tuple(places), (1,) * len(PLACES), (Chief(1, wants=True),), faults)


@dataclass(frozen=True)
class Scope:
    """The rules of an exploration."""

    rules: Rules = field(default_factory=Rules)

    def events(self, world: World) -> Iterator[Event]:
        """Yield every event that may happen next.

        Raises:
            ForkedError: a step is acknowledged that must not be.
        """
        for number, chief in enumerate(world.chiefs):
            if not chief.ended:
                yield from self._of_chief(world, number, chief)
        for number, call in enumerate(world.late):
            rest = replace(world, late=world.late[:number] + world.late[number + 1 :])
            yield Event(f"late: {call.name} -> {call.to.task}", _called(rest, call))
        yield from _of_faults(world)
        yield from _of_steps(world)

    def _of_chief(self, world: World, number: int, chief: Chief) -> Iterator[Event]:
        def now(changed: Chief, base: World = world) -> World:
            return replace(base, chiefs=(*base.chiefs[:number], changed, *base.chiefs[number + 1 :]))

        name = f"chief {chief.term}"
        if chief.founds and world.faults.give_ups:
            left = replace(world, faults=world.faults._replace(give_ups=world.faults.give_ups - 1))
            # Its next ballot of the current layout is higher than any that the attempt has used.
            epochs = max(chief.epochs), chief.epochs[1]
            after = replace(chief, wants=False, founds=None, calls=(), epochs=epochs)
            yield Event(f"{name}: gives up", now(after, left))
        if not (chief.wants or chief.layout):
            yield Event(f"{name}: tries again", now(replace(chief, wants=True)))
        if chief.calls:
            call, rest = chief.calls[0], now(replace(chief, calls=chief.calls[1:]))
            yield Event(f"{name}: {call.name} -> {call.to.task}", _called(rest, call))
            if world.faults.late:
                left = replace(rest, faults=world.faults._replace(late=world.faults.late - 1))
                yield Event(f"{name}: {call.name} -> {call.to.task} later", replace(left, late=(*left.late, call)))
            return
        for action, after in self._decided(world, chief):
            is_loss = isinstance(action, views.RestoreCheckpoint) and not after.founds
            is_loss |= isinstance(action, views.Accept) and action.uncertain is not None and not after.founds
            yield Event(f"{name}: sees {action}", now(after, replace(world, lossy=world.lossy or is_loss)))

    def _decided(self, world: World, chief: Chief) -> Iterator[tuple[Action, Chief]]:
        """Yield the action of a chief that polls its layout now, and the chief after it."""
        layout = 1 if chief.founds else chief.layout
        from_ballot = chief.founds.ballot if chief.founds else chief.successor
        seen = self._poll(world, layout, from_ballot)
        epoch = chief.epochs[layout]
        if chief.founds:
            epoch = max(epoch, chief.founds.ballot.epoch - 1)
        returned = _returned(layout, seen)
        for promotable in [frozenset[Process](), returned] if returned else [frozenset[Process]()]:
            action = self.rules.next_action(
                Ballot(chief.term, epoch),
                LAYOUTS[layout],
                seen,
                promotable=promotable,
                voteless_before=chief.voteless[layout],
                wait_for_absent=bool(chief.founds),
                proposed=chief.proposed[layout],
                founded=chief.founded if chief.wants and not chief.founds and not layout else None,
            )
            yield action, self._after(chief, layout, action, seen)

    def _after(self, chief: Chief, layout: int, action: Action, seen: dict[str, Any]) -> Chief:
        voteless = frozenset(
            Process(task, a.incarnation) for task, a in seen.items() if isinstance(a, ProcessStatus) and not a.is_voter
        )
        after = replace(chief, voteless=_put(chief.voteless, layout, voteless))
        source = chief.founds.shards[0][0] if chief.founds else None
        match action:
            case views.Prepare(ballot=ballot):
                after = replace(after, epochs=_put(chief.epochs, layout, ballot.epoch))
            case views.Accept(view=view):
                after = replace(after, proposed=_put(chief.proposed, layout, view))
            case views.FoundLayout(view=view):
                return replace(after, founds=view)
            case views.ChangeLayout(view=view):
                return replace(after, layout=1, successor=view.successor, wants=False)
            case views.Activate(view=view) if chief.founds:
                founded = Founded(chief.founds.ballot, view.ballot)
                if not self.rules.waits_for_quorum:
                    return replace(after, layout=1, successor=view.ballot, wants=False, founds=None)
                return replace(after, founded=founded, founds=None)
            case views.Superseded():
                return replace(after, ended=True)
        return replace(after, calls=tuple(_calls_of(layout, action, seen, source)))

    def _poll(self, world: World, layout: int, founded: Ballot) -> dict[str, ProcessStatus | Unreachable]:
        found = {task: place for (own, task), place in zip(PLACES, world.places, strict=True) if own == layout}
        return {
            task: self.rules.of_founding(place.status, founded) if place else Unreachable.CRASHED
            for task, place in found.items()
        }


def _put(pair: tuple[Any, Any], index: int, value: Any) -> tuple[Any, Any]:
    return (value, pair[1]) if index == 0 else (pair[0], value)


def _returned(layout: int, seen: dict[str, ProcessStatus | Unreachable]) -> frozenset[Process]:
    known = [a.view for a in seen.values() if isinstance(a, ProcessStatus) and a.view]
    inside = max(known, key=lambda view: view.ballot).in_sync if known else frozenset()
    answers = [(task, seen[task]) for task in LAYOUTS[layout].members]
    return frozenset(Process(task, a.incarnation) for task, a in answers if isinstance(a, ProcessStatus)) - inside


def _calls_of(layout: int, action: Action, seen: dict[str, Any], source: Process | None) -> Iterator[Call]:
    match action:
        case views.Prepare(ballot=ballot, to=to):
            yield from (Call("prepare", layout, process, ballot) for process in to)
        case views.Accept(view=view, to=to, founding=founding):
            yield from (Call("found" if founding else "accept", layout, process, view) for process in to)
        case views.AdmitVoter(view=view, to=to):
            yield from (Call("admit", layout, process, view) for process in to)
        case views.Activate(view=view, to=to):
            yield from (Call("activate", layout, p, view) for p in to if not seen[p.task].active)
        case views.TransferState(ballot=ballot, pairs=pairs):
            yield from (Call("transfer", layout, target, (ballot, layout, origin)) for origin, target in pairs)
        case views.RestoreCheckpoint(ballot=ballot, to=to):
            if source:  # the next layout is founded with the state of the current one
                yield from (Call("copy", layout, process, (ballot, 0, source)) for process in to)
            else:
                yield from (Call("restore", layout, process, ballot) for process in to)


def _called(world: World, call: Call) -> World:
    index, found = _find(world, call.layout, call.to)
    if found is None:
        return world
    own, history = found.status, found.history
    match call.name:
        case "prepare":
            own = acceptor.on_prepare(own, call.argument)
        case "accept" | "found":
            own = acceptor.on_accept(own, call.argument, founding=call.name == "found")
        case "admit":
            own = acceptor.on_admit(own, call.argument)
        case "activate":
            own = acceptor.on_activate(own, call.argument)
        case "restore":
            own = acceptor.on_transfer(own, call.argument, step=1, generation=call.argument)
            history = (("restored", call.argument),) if own is not found.status else history
        case "transfer" | "copy":
            ballot, layout, origin = call.argument
            source = _find(world, layout, origin)[1]
            if source is None or source.history is None or source.status.active:
                return world
            if call.name == "transfer" and source.status.promised != ballot:
                return world
            generation = source.status.generation
            own = acceptor.on_transfer(own, ballot, step=len(source.history), generation=generation)
            history = source.history if own is not found.status else history
    return world if own is found.status else _with(world, index, Place(own, history))


def _of_faults(world: World) -> Iterator[Event]:
    left = world.faults
    for process in dict.fromkeys(TOGETHER.values()):
        own = [index for index, (_, task) in enumerate(PLACES) if TOGETHER[task] == process]
        if all(world.places[index] is None for index in own):
            incarnations = tuple(n + (index in own) for index, n in enumerate(world.incarnations))
            places = tuple(
                Place(ProcessStatus(incarnations[index])) if index in own else place
                for index, place in enumerate(world.places)
            )
            yield Event(f"restart {process}", replace(world, places=places, incarnations=incarnations))
        elif left.kills:
            places = tuple(None if index in own else place for index, place in enumerate(world.places))
            yield Event(f"kill {process}", replace(world, places=places, faults=left._replace(kills=left.kills - 1)))
    if len(world.chiefs) < left.chiefs:
        newer = Chief(len(world.chiefs) + 1, epochs=(0, 0), wants=True)
        yield Event("next chief", replace(world, chiefs=(*world.chiefs, newer)))


def _of_steps(world: World) -> Iterator[Event]:
    if world.faults.steps:
        active = {
            (layout, place.status.view)
            for (layout, _), place in zip(PLACES, world.places, strict=True)
            if place and place.status.active and place.status.view
        }
        for layout, view in sorted(active, key=lambda found: (found[0], found[1].ballot)):
            if all((step.layout, step.view) != (layout, view) for step in world.steps):
                fewer = world.faults._replace(steps=world.faults.steps - 1)
                begun = replace(world, steps=(*world.steps, Step(layout, view)), faults=fewer)
                yield Event(f"worker: begins in layout {layout}", begun)
    for number, step in enumerate(world.steps):
        rest = replace(world, steps=world.steps[:number] + world.steps[number + 1 :])
        yield from _written(rest, step)


def _written(world: World, step: Step) -> Iterator[Event]:
    """Write the next part of a step, if its member accepts it: to the standby first, whose step is the decision."""
    order = tuple(reversed(step.view.shards[0]))
    index, found = _find(world, step.layout, order[step.written])
    if found is None or found.history is None or not found.status.active or found.status.view != step.view:
        return
    made = step.made
    if made is None:
        first = _find(world, step.layout, step.view.shards[0][0])[1]
        if first is None or first.history is None:
            return
        base, top = sorted([first.history, found.history], key=len)
        made = top if len(top) > len(base) else (*base, step.view.ballot)
    if found.history not in (made, made[:-1]):
        return
    then = _with(world, index, Place(replace(found.status, step=len(made)), made))
    if step.written + 1 < len(order):
        going = step._replace(made=made, written=step.written + 1)
        yield Event(f"worker: step on {order[step.written].task}", replace(then, steps=(*then.steps, going)))
        return
    before = world.acknowledged
    if made != before[: len(made)]:
        if made[: len(before)] != before and not world.lossy:
            raise ForkedError(f"{before} was acknowledged, and now it is {made} in layout {step.layout}")
        then = replace(then, acknowledged=made)
    yield Event(f"acknowledged in layout {step.layout}", then)


def _find(world: World, layout: int, process: Process) -> tuple[int, Place | None]:
    index = PLACES.index((layout, process.task))
    found = world.places[index]
    return index, found if found and found.status.incarnation == process.incarnation else None


def _with(world: World, index: int, place: Place) -> World:
    return replace(world, places=(*world.places[:index], place, *world.places[index + 1 :]))
