"""Asynchronous updates and a change of the layout, explored: every order of calls, freezes and attempts."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from pstraining.runtime.ps.record import partly_applied

WORKERS, UPDATES, ATTEMPTS = (0, 1), 2, 2
Counts = tuple[tuple[int, ...], ...]
"""For each row, how often each update of each worker was applied; worker by worker."""


class WrongSumError(AssertionError):
    """A row lacks an update, or has one twice."""


@dataclass(frozen=True)
class UpdatesWorld:
    """Two rows on the servers of a layout, and the workers that update both with each update."""

    servers: tuple[tuple[int, ...], ...] = ((0,), (1,))
    """The rows of each server."""
    rows: Counts = ((0,) * len(WORKERS) * UPDATES,) * 2
    made: tuple[tuple[int, ...], ...] = ((0,) * len(WORKERS),) * 2
    """For each server the number of each worker's last update that it has applied."""
    frozen: frozenset[int] = frozenset()
    """Servers that apply no update."""
    number: tuple[int, ...] = (1,) * len(WORKERS)
    """The number of each worker's current update."""
    replied: tuple[frozenset[int], ...] = (frozenset(),) * len(WORKERS)
    """The servers that have accepted the current update of each worker."""
    attempts: int = 0


Value = TypeVar("Value")
Rule = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def pushes(world: UpdatesWorld) -> Iterator[UpdatesWorld]:
    """Yield the world after each call of a worker that may arrive, also of one whose reply was lost."""
    for worker in WORKERS:
        if world.number[worker] > UPDATES:
            continue
        for server in set(range(len(world.servers))) - world.frozen - world.replied[worker]:
            applied = pushed(world, worker, server)
            yield applied  # the reply is lost, and the worker resends
            replied = applied.replied[worker] | {server}
            number = applied.number[worker]
            if len(replied) == len(applied.servers):
                number, replied = number + 1, frozenset()
            yield replace(
                applied,
                number=put(applied.number, worker, number),
                replied=put(applied.replied, worker, replied),
            )


def pushed(world: UpdatesWorld, worker: int, server: int) -> UpdatesWorld:
    """Apply the current update of a worker on a server, unless it has the number already."""
    number = world.number[worker]
    if world.made[server][worker] >= number:
        return world
    place, rows = worker * UPDATES + number - 1, world.rows
    for row in world.servers[server]:
        rows = put(rows, row, put(rows[row], place, rows[row][place] + 1))
    return replace(world, rows=rows, made=put(world.made, server, put(world.made[server], worker, number)))


def put(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    """Return the values with another one at an index."""
    return (*values[:index], value, *values[index + 1 :])


def freezes(world: UpdatesWorld, rule: Rule) -> Iterator[UpdatesWorld]:
    """Yield the world after each step of the chief: it freezes a server, or moves the rows if all are frozen."""
    if world.attempts == ATTEMPTS:
        return
    for server in set(range(len(world.servers))) - world.frozen:
        yield replace(world, frozen=world.frozen | {server})
    if len(world.frozen) < len(world.servers):
        return
    ended = replace(world, frozen=frozenset[int](), attempts=world.attempts + 1)
    yield ended  # given up, for whatever reason
    if not rule(world.made, [1] * len(WORKERS)):
        servers = ((0, 1),) if len(world.servers) > 1 else ((1,), (0,))
        yield replace(
            ended, servers=servers, made=(world.made[0],) * len(servers), replied=(frozenset[int](),) * len(WORKERS)
        )


def explore(rule: Rule) -> int:
    """Explore every reachable world; return the number of ends after a change of the layout.

    Raises:
        WrongSumError: in an end, a row does not have every update once.
    """
    first = UpdatesWorld()
    known, left, ends = {first}, deque([first]), 0
    while left:
        world = left.popleft()
        if all(number > UPDATES for number in world.number):
            if any(count != 1 for row in world.rows for count in row):
                raise WrongSumError(str(world))
            ends += world.servers != first.servers
        for then in (*pushes(world), *freezes(world, rule)):
            if then not in known:
                known.add(then)
                left.append(then)
    print(f"{len(known)} states, {ends} ends in another layout")
    return ends


def test_every_update_counts_once_in_every_row() -> None:
    assert explore(partly_applied)


@pytest.mark.parametrize(
    "rule",
    [lambda made, incarnations: [], lambda made, incarnations: partly_applied(made[:1], incarnations)],
    ids=["updates are not compared", "one server is compared"],
)
def test_without_the_comparison_an_update_is_lost_or_counts_twice(rule: Rule) -> None:
    with pytest.raises(WrongSumError):
        explore(rule)


def test_workers_that_left_resend_nothing() -> None:
    assert partly_applied([[3, 5, 1], [3, 4, 2]], [7, 7, 0]) == [1]
