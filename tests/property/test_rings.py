"""Hybrid rounds under random histories: all workers and all servers make every step of the same gradients.

The servers model the operations of `updates.hybrid.server` and `updates.hybrid.two_phase_commit`, one compare-and-set
each. The ring models `ring`: a member gets the sum once all have contributed, unless one of them left before. Workers
interleave at every message, crash anywhere, and return without state; their parameters are represented by the gradients
that they contain. The arbiter has a standby, and either of them is lost anywhere.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.runtime.updates.hybrid import protocol
from pstraining.runtime.updates.hybrid.protocol import HybridAction, HybridObservation, WorkerState, is_made
from pstraining.runtime.updates.synchronous.protocol import ShardRound
from tests.support.soak_marks import examples

WORKERS, SERVERS, STEPS = 4, 2, 5
Gradient = tuple[int, int]
"""A worker, and a unique number."""


@dataclass
class Server:
    step: int = 0
    attempt: int = 0
    pushed: dict[int, Gradient] = field(default_factory=dict)
    history: list[frozenset[Gradient]] = field(default_factory=list)

    def make_step(self) -> None:
        self.history.append(frozenset(self.pushed.values()))
        self.step += 1
        self.pushed = {}


@dataclass
class Circle:
    """The ring of one attempt."""

    members: int
    put: dict[int, Gradient] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    met: dict[int, int | None] = field(default_factory=dict)
    """The steps that members have reported, and then their parameters."""
    broken: bool = False


@dataclass
class Worker:
    """A process's state; the history stands for its dense parameters."""

    index: int
    history: list[frozenset[Gradient]] | None = None
    ring: int | None = None
    left: int | None = None
    held: int | None = None
    sum: frozenset[Gradient] = frozenset()
    view: int = 0

    @property
    def standing(self) -> WorkerState:
        step = None if self.history is None else len(self.history)
        return WorkerState(self.index, step, self.ring, self.left, self.held)


@dataclass
class Cluster:
    servers: list[Server] = field(default_factory=lambda: [Server() for _ in range(SERVERS)])
    standby: Server = field(default_factory=Server)
    """The state of the arbiter's standby; its attempt is that of its last step."""
    prepared: bool = False
    view: int = 0
    members: int = 0
    admitted: int = 0
    closed: bool = False
    made_in: int = 0
    ready: int = (1 << WORKERS) - 1
    circles: dict[int, Circle] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    gradients: int = 0
    restores: int = 0
    compared: dict[tuple[int, int], frozenset[Gradient]] = field(default_factory=dict)
    known: list[list[frozenset[Gradient]]] = field(default_factory=list)

    def look(self) -> HybridObservation:
        shards = tuple(ShardRound(s.step, s.attempt, sum(1 << w for w in s.pushed)) for s in self.servers)
        reported = shards, self.admitted, self.closed, self.made_in, self.members, self.ready
        return HybridObservation(*reported, prepared=self.prepared, standbys=(self.standby.step,))

    @property
    def session(self) -> tuple[int, int]:
        return self.restores, self.view

    def form(self, step: int, attempt: int) -> None:
        arbiter = self.servers[0]
        may = not self.prepared or Rules.gives_sealed_up
        if (arbiter.step, arbiter.attempt) == (step, attempt) and may:
            self.prepared = False
            arbiter.attempt += 1
            self.members, self.admitted, self.closed, arbiter.pushed = self.ready, 0, False, {}

    def push(self, number: int, worker: int, gradient: Gradient, step: int, attempt: int) -> bool:
        server = self.servers[number]
        if number == 0:
            if server.step != step or server.attempt != attempt or not self.members >> worker & 1:
                return False
            self.admitted |= 1 << worker
            self.closed = self.admitted == self.members
        elif server.step != step or attempt < server.attempt:
            return False
        elif attempt > server.attempt:
            server.attempt, server.pushed = attempt, {}
        server.pushed[worker] = gradient
        return True

    def seal(self, step: int, attempt: int) -> frozenset[Gradient] | None:
        """Send the standby the step's inputs."""
        arbiter = self.servers[0]
        if (arbiter.step, arbiter.attempt) != (step, attempt) or not self.closed:
            return None
        self.prepared = True
        return frozenset(arbiter.pushed.values())

    def decide(self, step: int, attempt: int, made: frozenset[Gradient]) -> bool:
        """Let the standby apply the step whose inputs it has."""
        if self.standby.step == step:
            self.standby.history.append(made)
            self.standby.step, self.standby.attempt = step + 1, attempt
        return self.standby.step == step + 1

    def apply(self, number: int, step: int, attempt: int) -> bool:
        server = self.servers[number]
        if server.step == step and (number > 0 or (server.attempt == attempt and self.closed)):
            server.make_step()
            if number == 0:
                self.made_in, self.admitted, self.closed, self.prepared = attempt, 0, False, False
        return server.step == step + 1

    def lose(self, *, arbiter: bool) -> None:
        """Lose the arbiter or its standby: the chief lets the others apply the decided step, all else is void."""
        first, following = self.servers[0], self.servers[0].attempt + 1
        if arbiter:
            self.made_in = self.standby.attempt
            self.servers[0] = first = Server(self.standby.step, history=list(self.standby.history))
        for server in self.servers[1:]:
            if server.step == first.step - 1:
                server.make_step()
            assert server.step == first.step, "a server cannot follow"
        for server in self.servers:
            server.attempt, server.pushed = following, {}
        self.standby = Server(first.step, self.made_in, history=list(first.history))
        self.members, self.admitted, self.closed, self.prepared = 0, 0, False, False
        self.view += 1

    def leave(self, me: Worker) -> None:
        if me.ring is not None:
            self.circles[me.ring].broken = True
            me.left, me.ring = me.ring, None

    def restore(self) -> None:
        """Restore the saved state on all servers, which here is the initial one."""
        self.restores += 1
        number = self.servers[0].attempt + 1
        self.servers = [Server(attempt=number) for _ in range(SERVERS)]
        self.standby, self.prepared = Server(), False
        self.members, self.admitted, self.closed = 0, 0, False
        for circle in self.circles.values():
            circle.broken = True
        for worker in self.workers.values():
            worker.history, worker.ring, worker.left, worker.held = None, None, None, None


class Rules:
    """The rules of workers; a test switches one off."""

    delivers_early = False
    trusts_any_attempt = False
    gives_sealed_up = False
    applies_before_the_standby = False


def process(cluster: Cluster, me: Worker):  # type: ignore[no-untyped-def]
    """Run a worker's program; at every yield other processes act, or it crashes."""
    gradient: Gradient | None = None
    while True:
        if me.view != cluster.view:
            cluster.leave(me)
            me.view = cluster.view
        observation, session = cluster.look(), cluster.session
        yield
        if session != cluster.session:
            continue  # the worker is rejected
        if me.ring is not None and cluster.circles[me.ring].broken:
            cluster.leave(me)
        action = protocol.next_action(observation, me.standing)
        made = is_made(observation, me.standing) or (Rules.trusts_any_attempt and me.held is not None)
        if action is HybridAction.MISSED and made and observation.arbiter.step == len(me.history or ()) + 1:
            action = HybridAction.SETTLE
        if action is HybridAction.SETTLE:
            assert me.history is not None
            me.history.append(me.sum)
            me.held, gradient = None, None
            if len(me.history) >= STEPS and observation.arbiter.step >= STEPS:
                return
        elif action is HybridAction.MISSED:
            cluster.leave(me)
            me.history, me.held, gradient = None, None, None
        elif action in (HybridAction.FOLLOW, HybridAction.APPLY):
            yield from _apply(
                cluster, observation.slowest, observation.arbiter.attempt, session, decides=action is HybridAction.APPLY
            )
        elif action is HybridAction.FORM:
            cluster.form(observation.arbiter.step, observation.arbiter.attempt)
        elif action is HybridAction.JOIN:
            yield from _join(cluster, me, observation)
        elif action is HybridAction.SUM:
            if gradient is None:
                cluster.gradients += 1
                gradient = (me.index, cluster.gradients)
                yield
            yield from _sum(cluster, me, gradient)
        elif action is HybridAction.PUSH and gradient is not None and me.held is not None:
            step, attempt = len(me.history or ()), me.held
            go = cluster.push(0, me.index, gradient, step, attempt)
            yield
            for number in range(1, SERVERS):
                if go and session == cluster.session:
                    cluster.push(number, me.index, gradient, step, attempt)
                yield
        if observation.arbiter.step >= STEPS and action is HybridAction.WAIT:
            return
        yield


def _apply(  # type: ignore[no-untyped-def]
    cluster: Cluster, step: int, attempt: int, session: tuple[int, int], *, decides: bool
):
    go = True
    if decides and not Rules.applies_before_the_standby:
        made = cluster.seal(step, attempt)
        yield
        go = made is not None and session == cluster.session and cluster.decide(step, attempt, made)
        yield
    go = go and session == cluster.session and cluster.apply(0, step, attempt)
    yield
    for number in range(1, SERVERS):
        if go and session == cluster.session:
            cluster.apply(number, step, attempt)
        yield
    if decides and go and Rules.applies_before_the_standby and session == cluster.session:
        cluster.decide(step, attempt, cluster.servers[0].history[step])


def _join(cluster: Cluster, me: Worker, observation: HybridObservation):  # type: ignore[no-untyped-def]
    attempt = observation.arbiter.attempt
    circle = cluster.circles.setdefault(attempt, Circle(observation.members))
    me.left = attempt
    circle.met[me.index] = me.standing.step
    while sum(1 << w for w in circle.met) != circle.members:
        yield
        if circle.broken or cluster.look().arbiter.attempt != attempt:
            circle.broken = True
            return
    order = [w for w in range(WORKERS) if circle.members >> w & 1]
    steps = [circle.met[w] for w in order]
    if observation.arbiter.step == 0 and all(step != 0 for step in steps):
        if me.history is None:
            me.history = []  # the servers have the initial state
    elif (way := protocol.broadcast_plan(steps, observation.arbiter.step)) is not None and me.history is None:
        source = cluster.workers.get(order[way.source])
        if circle.broken or source is None or source.history is None or len(source.history) != observation.arbiter.step:
            circle.broken = True
            return
        me.history = list(source.history)
    me.ring, me.left = attempt, None


def _sum(cluster: Cluster, me: Worker, gradient: Gradient):  # type: ignore[no-untyped-def]
    assert me.ring is not None
    circle, number = cluster.circles[me.ring], me.ring
    circle.put[me.index] = gradient
    if Rules.delivers_early:
        me.held, me.sum = number, frozenset(circle.put.values())
        return
    me.held = None
    while sum(1 << w for w in circle.put) != circle.members:
        yield
        if circle.broken or me.ring is None:
            cluster.leave(me)
            return
    yield
    if circle.broken or me.ring is None:  # the last bytes are missing
        cluster.leave(me)
        return
    me.held, me.sum = number, frozenset(circle.put.values())
    circle.taken.add(me.index)
    if len(circle.taken) == circle.members.bit_count():
        circle.put, circle.taken = {}, set()


def run(seed: int, deaths: float, losses: float = 0.0) -> Cluster:
    """Interleave workers at random until the steps are applied.

    Raises:
        AssertionError: two processes hold different parameters of one step, or the run does not end.
    """
    draw = random.Random(seed)
    cluster = Cluster()
    running = {}
    for index in range(WORKERS):
        cluster.workers[index] = Worker(index)
        running[index] = process(cluster, cluster.workers[index])
    ended: set[int] = set()
    for _ in range(100_000):
        if cluster.servers[0].step >= STEPS and all(s.step >= STEPS for s in cluster.servers):
            return cluster
        for index in range(WORKERS):
            if index not in running and index not in ended and draw.random() < 0.05:
                cluster.workers[index] = Worker(index)
                running[index] = process(cluster, cluster.workers[index])
                if cluster.members >> index & 1:
                    cluster.form(cluster.servers[0].step, cluster.servers[0].attempt)
                cluster.ready |= 1 << index
        if draw.random() < losses:
            cluster.lose(arbiter=draw.random() < 0.5)
        if draw.random() < deaths:  # a member is suspected, and may rejoin
            _suspect(cluster, draw.randrange(WORKERS))
        suspected = [w for w in running if not cluster.ready >> w & 1]
        if suspected and draw.random() < 0.05:
            cluster.ready |= 1 << draw.choice(suspected)
        newest = cluster.servers[0].step
        living = [cluster.workers[i] for i in running]
        may = [w for w in living if w.history is not None or newest == 0]
        saved = any(len(w.history or ()) == newest or _can_settle(cluster, w) for w in may)
        if newest and not saved and living:
            cluster.restore()
        if not running:
            continue
        index = draw.choice(sorted(running))
        if draw.random() < deaths:
            del running[index], cluster.workers[index]
            _suspect(cluster, index)
            continue
        try:
            next(running[index])
        except StopIteration:
            del running[index]
            ended.add(index)
            cluster.ready &= ~(1 << index)
        _compare(cluster)
    raise AssertionError(f"seed {seed}: it does not end: {cluster}")


def _suspect(cluster: Cluster, index: int) -> None:
    """Let a worker's neighbours leave its rings; other rings are formed without it."""
    cluster.ready &= ~(1 << index)
    for circle in cluster.circles.values():
        circle.broken |= bool(circle.members >> index & 1)


def _can_settle(cluster: Cluster, worker: Worker) -> bool:
    return is_made(cluster.look(), worker.standing)


def _compare(cluster: Cluster) -> None:
    """Demand that all parameters of one step, on any process, contain the same gradients."""
    histories = [server.history for server in cluster.servers]
    histories += [worker.history for worker in cluster.workers.values() if worker.history is not None]
    if histories == cluster.known:
        return
    cluster.known = [list(history) for history in histories]
    for history in histories:
        for step, made in enumerate(history):
            first = cluster.compared.setdefault((cluster.restores, step), made)
            assert first == made, f"step {step + 1} contains {set(first)} and {set(made)}"
            assert made, "no step is empty"


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32), deaths=st.sampled_from([0.0, 0.003, 0.02]), losses=st.sampled_from([0.0, 0.005]))
def test_all_workers_apply_a_step_from_the_same_gradients(seed: int, deaths: float, losses: float) -> None:
    cluster = run(seed, deaths, losses)
    if not deaths:
        assert not cluster.restores
        assert all(len(made) == WORKERS for made in cluster.servers[0].history)


@pytest.mark.parametrize("rule", [name for name in vars(Rules) if not name.startswith("_")])
def test_without_a_rule_parameters_diverge(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(Rules, rule, True)
    for seed in range(100):
        try:
            run(seed, 0.02, 0.005)
        except AssertionError as error:
            if " contains " in str(error) or "cannot follow" in str(error):
                return
    raise AssertionError("the property cannot fail")
