"""The world of `view_world` with time: a lease ends by its member's own clock, which may be set to another time.

Time passes in steps of half a lease while the network is cut, and until the operator may replace what is cut off.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pstraining.runtime.replication.view import Ballot, ProcessStatus, View
from tests.support.view_calls import check
from tests.support.view_state import Call, Chief, Event, ForkedError, History, Running, World, altered
from tests.support.view_world import Scope

LEASE = 2
GRACE = 5
"""Time after which the operator replaces unreachable pods. Kubernetes gives a node up after four leases or more. A
shorter time leads to fewer states, and to none that a longer time would exclude.
"""
OVER = LEASE + GRACE
"""The age of a lease that is over for good."""


def until_its_end(age: int) -> int:
    """The rule of `ps.member.MemberState.is_leased`: a lease is over if its end has come, or is too far ahead."""
    return age if 0 <= age < LEASE else OVER


def while_its_end_is_ahead(age: int) -> int:
    """A lease holds while the clock is before its end."""
    return age


def for_ever(age: int) -> int:
    """No lease ends."""
    del age
    return 0


@dataclass(frozen=True)
class LeasedScope(Scope):
    """Members report themselves active, and apply steps, only while their lease holds."""

    seen: Callable[[int], int] = until_its_end
    """Returns the age that a lease has once the member has compared it with its clock."""
    jumps: tuple[int, ...] = (LEASE,)
    """The amounts by which a clock may be changed."""

    def _status(self, found: Running) -> ProcessStatus:
        own = found.status
        return altered(own, active=own.active and self.seen(found.lease_age) < LEASE)

    def _renewed(self, world: World, chief: Chief, view: View) -> World:
        for index, found in self._members(world):
            own, task = found.status, self.voters.tasks[index]
            if found == self._at(world, chief.side, index) and self._reaches(world, chief.side, task):  # noqa: SIM102
                if own.active and own.view == view and own.promised == view.ballot:
                    world = self._with(world, index, altered(found, lease_age=0))
        return world

    def _called(self, world: World, call: Call) -> World:
        done = super()._called(world, call)
        found = self._process(done, call.to)
        if call.name != "activate" or done is world or found is None:
            return done
        return self._with(done, self.voters.tasks.index(call.to.task), altered(found, lease_age=0))

    def _of_faults(self, world: World) -> Iterator[Event]:
        for event in super()._of_faults(world):
            yield event if event.what or event.actor != "heal" else event._replace(then=altered(event.then, cut_for=0))
        if world.is_cut and world.cut_for < GRACE:
            passed = altered(world, cut_for=world.cut_for + 1)
            for index, found in self._members(world):
                passed = self._with(passed, index, altered(found, lease_age=_bounded(self.seen(found.lease_age + 1))))
            yield Event("time", "passes", passed)
        if world.faults.jumps:
            left = altered(world, faults=altered(world.faults, jumps=world.faults.jumps - 1))
            for (index, found), jump in ((each, jump) for each in self._members(world) for jump in self.jumps):
                set_ = altered(found, lease_age=_bounded(self.seen(found.lease_age + jump)))
                yield Event("clock", f"of {self.voters.tasks[index]}: {jump:+}", self._with(left, index, set_))

    def _of_replacements(self, world: World) -> Iterator[Event]:
        if world.cut_for < GRACE:
            return
        for event in super()._of_replacements(world):
            yield event._replace(then=altered(event.then, are_leases_over=False))

    def _check(self, world: World, made: History, ballot: Ballot) -> None:
        """Check an acknowledged step as if no replaced process existed: it must have stopped applying steps by then."""
        if ballot < world.under:
            raise ForkedError(f"{made} is acknowledged under {ballot}, and {world.acknowledged} is under {world.under}")
        check(altered(world, former=()), made, ballot)

    def _members(self, world: World) -> list[tuple[int, Running]]:
        """Return the processes whose lease matters: those that apply steps."""
        found = [*enumerate(world.running), *world.former]
        return [(index, each) for index, each in found if each is not None and each.status.active]


def _bounded(age: int) -> int:
    """Return the age, bounded by the age from which nothing changes any more, for fewer states."""
    return max(-GRACE, min(age, OVER))
