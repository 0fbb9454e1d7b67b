"""The chief's hand on learners: it gives them the state piece by piece, while training goes on."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import tensorflow as tf

from pstraining.runtime.ps.store import int64
from pstraining.runtime.replication.chunks import Learner
from pstraining.runtime.replication.encoding import number as number_of
from pstraining.runtime.replication.monitor import Lookout
from pstraining.runtime.replication.view import Answer, Ballot, Process, Roster
from pstraining.runtime.telemetry.events import event

TRIES: Final = 10
"""How often a piece may come too late for its step before the whole state is copied while no steps are made."""


class Teaching:
    """Who learns, and how far each has come."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout, self._client = lookout, lookout.store.client
        self._ends: dict[int, Learner] = {}
        self._functions: dict[tuple[int, int, str | int], Any] = {}
        self._roster: Roster | None = None
        self._began = 0.0
        self._there: dict[Process, int] = {}
        """Pieces that each learner has."""
        self._late: dict[Process, int] = {}
        """How often the next one has come too late."""
        self._given_up: set[Process] = set()

    def follow(self, roster: Roster) -> None:
        """This roster is in force."""
        if roster != self._roster:
            self._roster, self._began, self._there = roster, time.monotonic(), {}
            self._late = dict.fromkeys(roster.learners, 0)

    def sort(self, members: Sequence[Process], answers: dict[Process, Answer]) -> tuple[list[Process], list[Process]]:
        """Of those that may be in sync again, who can be under the next roster, and who learns.

        Learners wait for each other: with each that joins, the others begin anew.
        """
        worth = [process for process in members if process in self._given_up]
        learners = self._roster.learners if self._roster else ()
        left = [process for process in learners if process not in self._given_up]
        if left and all(process in answers and self._is_done(process, answers[process].learned) for process in left):
            worth += left
        return worth, [process for process in members if process not in worth]

    def teach(self, seconds: float) -> bool:
        """Give pieces for so long; whether there was anybody to give them to.

        Raises:
            ShardLostError: a server is gone.
        """
        until, is_any = time.monotonic() + seconds, False
        while due := self._due():
            is_any = True
            for process in due:
                if not self._give(process) or time.monotonic() > until:
                    return True
        return is_any

    def begin(self, source: Process, target: Process, fence: int) -> bool:
        """Let a member learn under the roster of this ballot, from one that makes no steps yet."""
        return self._rest("begin", source, target, int64(fence))

    def join(self, source: Process, target: Process, fence: int, former: Ballot) -> bool:
        """Give the rest of the state, which is little, to a member that has every piece; whether it has."""
        return self._rest("join", source, target, int64(fence), int64(number_of(former)))

    def prepare(self, place: str) -> Iterator[None]:
        """Make the functions for a member that comes back there, one at a time, without an effect.

        Raises:
            ShardLostError: a server is gone.
        """
        (own,) = [own for own in self._lookout.seats.shards if place in own]
        nobody = Process(place, -1)
        for source in (Process(other, -1) for other in own if other != place):
            self.begin(source, nobody, -1)
            yield
            self.join(source, nobody, -1, Ballot(0, 0))
            yield

    def _due(self) -> list[Process]:
        learners = self._roster.learners if self._roster else ()
        return [p for p in learners if p not in self._given_up and not self._is_done(p, self._there.get(p, 0))]

    def _is_done(self, process: Process, there: int) -> bool:
        return there == len(self._end(process).pieces.all)

    def _give(self, target: Process) -> bool:
        """One piece, or in vain; whether more can be given now."""
        assert self._roster is not None  # noqa: S101 - it has learners
        shard = self._lookout.shard(target)
        source, number = self._roster.shards[shard][-1], self._there.get(target, 0)
        piece = self._end(target).pieces.all[number]
        function = self._function(source, target, piece.group)
        told = (number, target.life, number_of(self._roster.ballot), piece.begin, piece.end)
        there = int(self._client.call(function, *map(int64, told)))
        if there < 0:  # somebody has promised another ballot
            return False
        late = self._late[target] = 0 if there > number else self._late[target] + 1
        self._there[target] = there
        if late >= TRIES:
            self._given_up.add(target)
            reason = f"{late} times a step was made while a piece was on its way: the state is copied between two steps"
            event("not_learned", target=target.place, pieces=there, reason=reason)
        elif there > number and self._is_done(target, there):
            seconds = round(time.monotonic() - self._began, 3)
            event("learned", source=source.place, target=target.place, pieces=there, seconds=seconds)
        return True

    def _end(self, process: Process) -> Learner:
        index = self._lookout.index(process)
        if index not in self._ends:
            self._ends[index] = Learner(self._lookout.member(index))
        return self._ends[index]

    def _rest(self, what: str, source: Process, target: Process, *told: Any) -> bool:
        return bool(self._client.call(self._function(source, target, what), int64(target.life), *told))

    def _function(self, source: Process, target: Process, what: str | int) -> Any:
        """A function by what it does, or by the group of pieces that it gives."""
        key = self._lookout.index(source), self._lookout.index(target), what
        if key not in self._functions:
            gives, takes, home = self._end(source), self._end(target), self._client.brought_home

            def rest(*told: Any) -> Any:
                return home(getattr(takes, str(what))(*told, *gives.light()))

            def one(number: Any, life: Any, fence: Any, begin: Any, end: Any) -> Any:
                group = int(what)
                return home(takes.learn((group, begin, end), number, life, fence, *gives.give(group, begin, end)))

            self._functions[key] = tf.function(one if isinstance(what, int) else rest, autograph=False)
        return self._functions[key]
