"""Changes of the number of parameter servers under every event, explored breadth first, with the invariants of each
state.

Two layouts are never trained at once, and no number of a layout is used twice. Every state leads back to training with
the servers of the spec. With either of two mechanisms switched off, the exploration finds a history that breaks a job.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pstraining.api import contract, names
from pstraining.core.policies import resharding, teardown
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.resources.installation import STANDARD, Installation, ProgressEndpoint
from tests.support.builders import deep_merge, job
from tests.support.cluster_maps import cluster_map, layout
from tests.support.copying import copied
from tests.support.simulation import World, phase
from tests.support.soak_marks import ALL, THOROUGH

STATES = 20_000 if THOROUGH else 2_000 if ALL else 200
"""Different states of a job without standbys or a gang that are visited."""
SETTLED_EVERY = 5
"""One of this number of states is followed until nothing changes."""
Layout = tuple[int, int]
"""The number of a layout, and its number of servers."""


@dataclass
class History:
    """A job with the record of its training."""

    world: World
    events: tuple[str, ...] = ()
    leaders: dict[str, Layout] = field(default_factory=dict)
    """The layout with which each leader's pod was started, by the pod's name."""
    layouts: dict[int, int] = field(default_factory=dict)
    """The number of servers of each layout."""
    served: str = ""
    """The last running leader of hot standbys, which may have continued training since a save."""

    def after(self, name: str, event: Callable[[World], object]) -> "History":
        """Return the history with another event, without changing this one."""
        world = replace(
            self.world,
            job=copied(self.world.job),
            children=copied(self.world.children),
            pods=copied(self.world.pods),
            writes=[],
            reported=[],
            lingering={names.CHIEF},
        )
        event(world)
        found = History(world, (*self.events, name), dict(self.leaders), dict(self.layouts), self.served)
        found.check()
        return found

    def check(self) -> None:
        """Check the invariants after every event."""
        now, after = layout(self.world), f"after {self.events}"
        leaders = [n for n, p in self.world.pods.items() if "-chief-" in n and p["status"]["phase"] == "Running"]
        assert len(leaders) <= 1, f"two leaders {after}"
        is_led = bool(leaders) and led(self.world) == now[0]
        for name in leaders:
            if is_led:
                self.leaders[name] = now
            assert self.leaders.setdefault(name, now) == now, f"two layouts are trained at once {after}"
        is_new = now[0] not in self.layouts
        assert self.layouts.setdefault(*now) == now[1], f"one number for two layouts {after}"
        if is_hot(self.world) and is_new and len(self.layouts) > 1 and not is_led:
            assert not self.served, f"hot standbys lose what they serve {after}"
        self._note_leaders(leaders)
        stopped = [w for w in self.world.writes if w[0] == "Delete" and w[1] in ("Deployment", "StatefulSet", "Pod")]
        assert not stopped, f"pods of workers or servers are replaced {after}"
        assert ("PersistentVolumeClaim", "digits-checkpoint") in self.world.children, (
            f"the checkpoints are lost {after}"
        )

    def _note_leaders(self, leaders: list[str]) -> None:
        """Record the running leader. It may continue training, so its state counts as saved only if it ends with the
        exit code of a save.
        """
        for name in leaders:
            self.served = name
        container = self.world.pods.get(self.served, {}).get("status", {}).get("containerStatuses", [{}])[0]
        if container.get("state", {}).get("terminated", {}).get("exitCode") == contract.EXIT_SAVED:
            self.served = ""

    def key(self) -> str:
        """Return the key that identifies this state; terms and layouts count from the newest one."""
        world = self.world
        assert world.job is not None
        term, number = world.job["status"]["term"], layout(world)[0]
        servers = world.children["StatefulSet", "digits-ps"]
        recorded = servers["metadata"]["annotations"]
        ahead = int(recorded[names.ANNOTATION_LAYOUT]) - number
        jobs = sorted(term - int(name.rpartition("-")[2]) for name in world.names_of("Job"))
        conditions = [(c["type"], c["status"], c["reason"]) for c in world.job["status"]["conditions"]]
        pods = sorted(
            (*task(p, term), p["status"]["phase"], "deletionTimestamp" in p["metadata"]) for p in world.pods.values()
        )
        asked = world.job["spec"]["ps"]["replicas"], recorded.get(names.ANNOTATION_NEXT_SHARDS)
        spec = *asked, servers["spec"]["replicas"], recorded[names.ANNOTATION_SHARDS], led(world) == number + 1
        return json.dumps([spec, ahead, layout(world)[1], jobs, conditions, pods, world.names_of("Service")])

    def settle(self) -> None:
        """Demand that the job trains with the servers of its spec once every pod has a node and no more are lost."""
        world = self.after("settle", lambda _: None).world
        world.lingering = set()
        for _ in range(30):
            before = (len(world.writes), world.status_writes, copied(world.pods))
            schedule(world)
            world.reconcile()
            world.controllers()
            save(world)
            if before == (len(world.writes), world.status_writes, world.pods):
                break
        wanted = world.job["spec"]["ps"]["replicas"] if world.job is not None else 0
        shards = layout(world)[1] // (2 if is_hot(world) else 1)
        assert (phase(world), shards, world.plan().actions) == ("Running", wanted, ()), self.events


def is_hot(world: World) -> bool:
    """Whether the job has hot standbys, one for each shard."""
    return world.job is not None and world.job["spec"]["ps"].get("standby", {}).get("mode") == "Hot"


def save(world: World) -> None:
    """Let the chief of hot standbys, if it is asked to, save the whole state and end."""
    found = cluster_map(world)
    chiefs = [p for n, p in world.pods.items() if "-chief-" in n and p["status"]["phase"] == "Running"]
    if "nextLayout" in found and chiefs and "deletionTimestamp" not in chiefs[0]["metadata"]:
        term = int(chiefs[0]["metadata"]["labels"][names.LABEL_TERM])
        world.end(names.CHIEF, code=contract.EXIT_SAVED, term=term)


def led(world: World) -> int | None:
    """Return the layout that the newest chief has reported."""
    status = (world.job or {})["status"]
    training = status.get("training") or {}
    return training.get("layout") if training.get("term") == status["term"] else None


def lead(world: World) -> None:
    """Let the chief of hot standbys, if it may, lead training to the next layout."""
    found = cluster_map(world)
    chiefs = [p for n, p in world.pods.items() if "-chief-" in n and p["status"]["phase"] == "Running"]
    if "nextServers" in found and chiefs and world.job is not None:
        term = int(chiefs[0]["metadata"]["labels"][names.LABEL_TERM])
        world.job["status"]["training"] = {"layout": found["nextLayout"], "term": term}


def task(found: dict[str, Any], term: int) -> tuple[str, str, int]:
    """Return the role and index of a pod; for a chief, the number of terms since its start."""
    labels = found["metadata"]["labels"]
    age = term - int(labels.get(names.LABEL_TERM, term))
    return labels[names.LABEL_ROLE], labels.get(names.LABEL_POD_INDEX) or labels.get(names.LABEL_INDEX, ""), age


def newest_server(world: World) -> dict[str, Any]:
    """Return the pod of the server with the highest index."""
    return max((p for n, p in world.pods.items() if "-ps-" in n), key=lambda p: str(p["metadata"]["name"]))


def unschedule(world: World) -> None:
    """Lose the newest server; the pod that replaces it finds no node."""
    newest_server(world)["status"] |= {"phase": "Pending", "containerStatuses": [], "conditions": []}


def schedule(world: World) -> None:
    """Give every server its node."""
    ready = [{"type": "Ready", "status": "True"}]
    state = {"name": "tensorflow", "image": "img:1", "restartCount": 0, "ready": True, "state": {"running": {}}}
    for found in world.pods.values():
        if found["status"]["phase"] == "Pending":
            found["status"] |= {"phase": "Running", "containerStatuses": [state], "conditions": ready}


def edit(servers: int) -> Callable[[World], None]:
    """Request this number of servers, as a user does."""

    def apply(world: World) -> None:
        if world.job is not None and world.job["spec"]["ps"]["replicas"] != servers:
            world.edit({"ps": {"replicas": servers}})

    return apply


def die(writes: int) -> Callable[[World], object]:
    """Crash the operator after this number of writes of a pass, before it writes the status."""
    return lambda world: world.reconcile(stop_after=writes)


EVENTS: dict[str, Callable[[World], object]] = {
    "a pass": World.reconcile,
    "the controllers act": World.controllers,
    **{f"ps.replicas: {n}": edit(n) for n in (1, 2, 3)},
    **{f"the operator dies after {n} writes": die(n) for n in (1, 2)},
    "the chief has saved": lambda world: world.gone(names.CHIEF),
    "the chief fails": lambda world: world.end(names.CHIEF, code=1),
    "the chief saves for another layout": save,
    "the chief leads training to another layout": lead,
    "the newest server is lost": unschedule,
    "the servers run": schedule,
}


REPORTS = Installation(progress=ProgressEndpoint("https://operator", "authority"))
"""An operator that accepts reports, so that a chief may lead training to another layout."""
JOBS: dict[str, dict[str, Any]] = {
    "no standbys": {},
    "warm standbys": {"ps": {"standby": {"mode": "Warm"}}},
    "hot standbys": {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}},
    "hot standbys and reports": {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}},
    "a gang": {"runPolicy": {"schedulingPolicy": {"gang": "SchedulerPlugins"}}},
}


def explore(states: int, kind: str = "no standbys") -> Iterator[History]:
    """Yield this number of different states of a job, breadth first."""
    spec, installation = JOBS[kind], REPORTS if kind.endswith("reports") else STANDARD
    claim = {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}}
    common = {"ps": {"replicas": 2}, "checkpoint": claim, "runPolicy": {"backoffLimit": 1000}}
    world = World(job(spec=deep_merge(common, spec)), installation=installation)
    world.settle()
    first = History(world)
    seen, waiting = {first.key()}, deque([first])
    while waiting and len(seen) < states:
        before = waiting.popleft()
        yield before
        for name, event in EVENTS.items():
            after = before.after(name, event)
            if (key := after.key()) not in seen:
                seen.add(key)
                waiting.append(after)
    yield from waiting


@pytest.mark.timeout(3600 if THOROUGH else 600)
@pytest.mark.parametrize("kind", JOBS)
def test_no_history_trains_two_layouts_at_once_and_every_one_leads_back_to_training(kind: str) -> None:
    visited = 0
    states = STATES // (1 if kind == "no standbys" else 4)
    for visited, history in enumerate(explore(states, kind), 1):
        if visited % SETTLED_EVERY == 0:
            history.settle()
    assert visited >= states


def test_a_switch_beside_a_leader_that_still_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "next_step", lambda *_: teardown.Stop())
    with pytest.raises(AssertionError, match="two layouts are trained at once"):
        list(explore(1000))


def test_a_layout_without_the_evidence_of_a_save_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "has_saved", lambda *_: True)
    with pytest.raises(AssertionError, match="hot standbys lose what they serve"):
        list(explore(1000, "hot standbys"))


def test_a_number_that_is_used_for_two_layouts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    same = property(lambda found: resharding.annotations(found.wanted, found.number))
    monkeypatch.setattr(resharding.Resharding, "next_annotations", same)
    with pytest.raises(AssertionError, match="one number for two layouts"):
        list(explore(1000))


def test_the_step_of_every_small_job() -> None:
    """Every step of a small job stops training only for servers that run, and switches the layout only without a
    leader.
    """
    for current, wanted, leader in ((c, w, b) for c in range(1, 6) for w in range(1, 6) for b in (False, True)):
        for running in range(max(0, wanted - current) + 1):
            step = resharding.next_step(current, wanted, running, leader_may_run=leader, saved=None, led=False)
            assert (step is ReshardingStep.STEADY) == (current == wanted)
            assert (step is ReshardingStep.START_SERVERS) == (running < wanted - current)
            assert step is not ReshardingStep.SWITCH or not leader
