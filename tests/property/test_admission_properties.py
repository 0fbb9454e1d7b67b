"""Jobs with a queue under random events: no pod exists without quota, no quota is kept without need, and all settles.

Between two writes of the operator any event may happen: Kueue admits or evicts, a user scales, suspends or changes the
job, a program ends, the operator crashes.
"""

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pstraining.api import names
from pstraining.core.actions import Kind, Verdict
from pstraining.core.policies.queueing import LOOK_AGAIN
from pstraining.resources import kueue
from tests.support.queued_world import QueuedWorld, queued
from tests.support.simulation import phase

Event = Callable[[QueuedWorld, random.Random], None]


def scale(world: QueuedWorld, draw: random.Random) -> None:
    world.edit({"worker": {"replicas": draw.randint(2, 6)}})


def change_minimum(world: QueuedWorld, draw: random.Random) -> None:
    world.edit({"worker": {"minReplicas": draw.choice([None, 1, 2])}})


def change_limit(world: QueuedWorld, draw: random.Random) -> None:
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_MAX_SECONDS] = draw.choice(["60", "90", "never"])


def check_admissions(world: QueuedWorld, draw: random.Random) -> None:
    world.checks = draw.random() < 0.5


def change_pods(world: QueuedWorld, draw: random.Random) -> None:
    world.edit({"ps": {"replicas": draw.randint(1, 2), "resources": {"requests": {"cpu": str(draw.randint(1, 2))}}}})


def suspend(world: QueuedWorld, draw: random.Random) -> None:
    world.edit({"runPolicy": {"suspend": draw.random() < 0.5}})


def requeue(world: QueuedWorld, draw: random.Random) -> None:
    world.quota = draw.choice([0, 4, 6, 10])


def lose_pod(world: QueuedWorld, draw: random.Random) -> None:
    world.delete_pod("worker", draw.randint(0, 3))


def end_worker(world: QueuedWorld, draw: random.Random) -> None:
    world.end("worker", draw.randint(0, 3))


def delete_workload(world: QueuedWorld, draw: random.Random) -> None:
    for workload in world.workloads[: draw.randint(0, 1)]:
        # The user frees the quota of pods that exist or are about to, whatever the operator does.
        if not world.existing() and not any(kind in ("StatefulSet", "Deployment", "Job") for kind, _ in world.children):
            del world.children["Workload", workload["metadata"]["name"]]


def stop(world: QueuedWorld, draw: random.Random) -> None:
    world.stop_queue(draw.choice(["", "MaximumExecutionTimeExceeded"]))


def activate(world: QueuedWorld, draw: random.Random) -> None:
    for workload in world.workloads:
        workload["spec"]["active"] = True


def break_kueue(world: QueuedWorld, draw: random.Random) -> None:
    """Let the webhook of Kueue accept no write, or all again."""
    world.verdict = Verdict.REFUSED
    world.refuse = (
        (lambda action: "no endpoints" if action.kind is Kind.WORKLOAD else "") if draw.random() < 0.5 else None
    )


def stop_kueue(world: QueuedWorld, draw: random.Random) -> None:
    world.forgets = draw.random() < 0.5


def linger(world: QueuedWorld, draw: random.Random) -> None:
    """Let a container beside the chief's program stop later than the program."""
    world.lingering ^= {names.CHIEF}


def end_stopping_chief(world: QueuedWorld, draw: random.Random) -> None:
    chiefs = [
        pod["metadata"] for pod in world.pods.values() if pod["metadata"]["labels"][names.LABEL_ROLE] == names.CHIEF
    ]
    if chiefs and all("deletionTimestamp" in chief for chief in chiefs):
        world.end(names.CHIEF, code=143)


def crash(world: QueuedWorld, draw: random.Random) -> None:
    world.reconcile(stop_after=draw.randint(0, 4))


EVENTS: tuple[Event, ...] = (
    scale,
    change_pods,
    change_minimum,
    change_limit,
    suspend,
    requeue,
    lose_pod,
    end_worker,
    delete_workload,
    crash,
    check_admissions,
    stop,
    activate,
    break_kueue,
    stop_kueue,
    linger,
    end_stopping_chief,
    lambda world, draw: world.pass_checks(),
    lambda world, draw: world.evict(),
    lambda world, draw: world.admit(),
)


def check(world: QueuedWorld, seed: int) -> None:
    assert not world.without_quota(), f"seed {seed}: pods without quota: {world.without_quota()}, {world.writes[-12:]}"


def play(seed: int, *, elastic: bool, events: int = 25) -> QueuedWorld:
    """Play random events, each followed by a part of the reactions of the operator and Kubernetes."""
    draw = random.Random(seed)
    worker = {"replicas": 4} if elastic else {"replicas": 4, "minReplicas": 2}
    world = queued(worker=worker, successPolicy="AllWorkers")
    world.beside = draw.random() < 0.5
    for _ in range(events):
        draw.choice(EVENTS)(world, draw)
        acts: tuple[Callable[[], object], ...] = (world.admit, world.reconcile, world.controllers, world.reconcile)
        for act in draw.sample(acts, draw.randint(0, 4)):
            act()
            check(world, seed)
        if phase_of(world) in ("Succeeded", "Failed"):
            break
    return world


def phase_of(world: QueuedWorld) -> str:
    return phase(world) if world.job is not None and "status" in world.job else ""


def settle(world: QueuedWorld, seed: int) -> None:
    """Demand that with quota and without suspension the job runs or has ended, and that only running pods have
    quota.
    """
    world.quota, world.checks, world.forgets = 100, False, False
    world.pass_checks()
    world.gone(names.CHIEF)
    activate(world, random.Random())
    world.refuse = None
    world.now += 2 * LOOK_AGAIN
    world.edit({"runPolicy": {"suspend": False}})
    for _ in world.steps():
        check(world, seed)
    assert phase_of(world) in ("Running", "Succeeded", "Failed"), f"seed {seed}: {phase_of(world)}"
    held, needed = world.with_quota(), world.existing()
    found = [w["metadata"]["annotations"] for w in world.workloads if world._holds(w)]
    if any(kueue.ANNOTATION_ELASTIC not in annotations for annotations in found):
        # With a minimum, quota is kept until the job queues again.
        held["worker"] = min(held["worker"], needed["worker"])
    assert +held == +needed, f"seed {seed}: {held} have quota, {needed} exist"


@given(seed=st.integers(0, 2**32), elastic=st.booleans())
def test_pods_have_quota_and_quota_has_pods(seed: int, elastic: bool) -> None:
    settle(play(seed, elastic=elastic), seed)
