"""Rounds under random histories: a gradient is part of a step on all servers or on none, and every round ends.

The servers model the operations of `updates.synchronous.server`, one compare-and-set each. Workers interleave at every
message, crash between two servers, become silent, and return.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.runtime.updates.synchronous.protocol import (
    RoundAction,
    RoundObservation,
    ShardRound,
    next_action,
    quorum,
)
from tests.support.soak_marks import examples

WORKERS, SERVERS = 4, 3


@dataclass
class Server:
    """One server's variables."""

    step: int = 0
    attempt: int = 0
    pushed: int = 0
    admitted: int = 0
    closed: bool = False
    history: list[int] = field(default_factory=list)
    """The workers whose gradients each step contains."""

    def clear(self) -> None:
        self.pushed = self.admitted = 0
        self.closed = False

    def make_step(self) -> None:
        self.history.append(self.pushed)
        self.step += 1
        self.clear()


@dataclass
class Cluster:
    """The servers, and the workers that are registered with them."""

    backups: int
    servers: list[Server] = field(default_factory=lambda: [Server() for _ in range(SERVERS)])
    alive: int = (1 << WORKERS) - 1

    def close(self) -> None:
        arbiter = self.servers[0]
        wanted = quorum(alive=self.alive.bit_count(), expected=WORKERS, backups=self.backups, waits=False)
        arbiter.closed = arbiter.closed or arbiter.admitted.bit_count() >= wanted

    def push(self, number: int, worker: int, step: int, attempt: int) -> bool:
        server, me = self.servers[number], 1 << worker
        if number == 0:
            if server.step != step or server.attempt != attempt or (server.closed and not server.admitted & me):
                return False
            server.admitted |= me
            self.close()
        elif server.step != step or attempt < server.attempt:
            return False
        elif attempt > server.attempt:
            server.attempt, server.pushed = attempt, 0
        server.pushed |= me
        return True

    def look(self) -> RoundObservation:
        self.close()
        arbiter = self.servers[0]
        shards = tuple(ShardRound(s.step, s.attempt, s.pushed) for s in self.servers)
        return RoundObservation(shards, admitted=arbiter.admitted, closed=arbiter.closed, alive=self.alive)

    def apply(self, number: int, step: int, attempt: int) -> bool:
        server = self.servers[number]
        if server.step == step and (number > 0 or (server.attempt == attempt and server.closed)):
            server.make_step()
        return server.step == step + 1

    def give_up(self, step: int, attempt: int) -> None:
        arbiter = self.servers[0]
        if (arbiter.step, arbiter.attempt) == (step, attempt):
            arbiter.attempt += 1
            arbiter.clear()


def worker(cluster: Cluster, index: int, until: int):  # type: ignore[no-untyped-def]
    """Run a worker's program; at every yield other processes act, or it crashes."""
    while True:
        seen = cluster.look()
        yield
        steps = [shard.step for shard in seen.shards]
        if min(steps) != max(steps):
            yield from _apply(cluster, min(steps), seen.arbiter.attempt)
            continue
        step, attempt, action = steps[0], seen.arbiter.attempt, RoundAction.PUSH
        if step >= until:
            return
        while action is not RoundAction.PULL:
            if action is RoundAction.PUSH:
                go = cluster.push(0, index, step, attempt)
                yield
                for number in range(1, SERVERS):
                    if go:
                        cluster.push(number, index, step, attempt)
                    yield
            elif action is RoundAction.APPLY:
                yield from _apply(cluster, step, attempt)
            elif action is RoundAction.GIVE_UP:
                cluster.give_up(step, attempt)
            observation = cluster.look()
            attempt = observation.arbiter.attempt
            yield
            action = next_action(observation, worker=index, step=step)


def _apply(cluster: Cluster, step: int, attempt: int):  # type: ignore[no-untyped-def]
    go = cluster.apply(0, step, attempt)
    yield
    for number in range(1, SERVERS):
        if go:
            cluster.apply(number, step, attempt)
        yield


def run(seed: int, backups: int, deaths: float, *, until: int = 5) -> Cluster:
    """Interleave workers at random until all remaining ones have ended."""
    draw = random.Random(seed)
    cluster = Cluster(backups)
    running = {index: worker(cluster, index, until) for index in range(WORKERS)}
    ended: set[int] = set()
    for _ in range(200_000):
        if not running:
            if len(ended) == WORKERS:
                return cluster
            index = draw.choice([w for w in range(WORKERS) if w not in ended])
            running[index] = worker(cluster, index, until)  # its next process
            cluster.alive |= 1 << index
        index = draw.choice(sorted(running))
        if draw.random() < deaths:
            del running[index]
            if draw.random() < 0.5:
                cluster.alive &= ~(1 << index)  # its crash is noticed; otherwise its next process starts after a pause
            else:
                running[index] = worker(cluster, index, until)
            continue
        try:
            next(running[index])
        except StopIteration:
            del running[index]
            ended.add(index)
            cluster.alive &= ~(1 << index)  # it has deregistered
        for lost in range(WORKERS):
            if lost not in running and lost not in ended and draw.random() < 0.02:
                running[lost] = worker(cluster, lost, until)
                cluster.alive |= 1 << lost
    raise AssertionError(f"seed {seed}: the rounds do not end: {cluster}")


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32), backups=st.integers(0, 2), deaths=st.sampled_from([0.0, 0.01, 0.1]))
def test_all_servers_apply_every_step_from_the_same_gradients(seed: int, backups: int, deaths: float) -> None:
    cluster = run(seed, backups, deaths)
    histories = [server.history for server in cluster.servers]
    assert histories[0] == histories[1] == histories[2], f"seed {seed}"
    assert len(histories[0]) == 5
    assert all(histories[0]), "no step is empty"
    if not deaths:
        assert all(made.bit_count() >= WORKERS - backups for made in histories[0][:1])


def test_without_the_arbiters_decision_servers_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the arbiter's decision, servers diverge: in the same histories, each server applies its step as soon as
    it holds enough gradients.
    """

    def hasty(self: Cluster, number: int, worker_index: int, step: int, attempt: int) -> bool:
        server = self.servers[number]
        taken = push(self, number, worker_index, step, attempt)
        if number and server.step == step and server.pushed.bit_count() >= self.alive.bit_count():
            server.make_step()
        return taken

    push = Cluster.push
    monkeypatch.setattr(Cluster, "push", hasty)
    for seed in range(60):
        try:
            cluster = run(seed, 0, 0.1)
        except AssertionError:
            return
        if cluster.servers[0].history != cluster.servers[1].history:
            return
    raise AssertionError("the property cannot fail")


def test_views_are_values() -> None:
    shard = ShardRound(1, 2, 3)
    assert replace(shard) == shard
