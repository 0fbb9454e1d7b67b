"""Invariants under every loss and return of nodes, in any order with other events."""

from datetime import timedelta
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from pstraining.api import names
from pstraining.core.actions import Apply, Create, Delete, Kind
from pstraining.core.policies import node_loss
from tests.property.test_planner_properties import STEPS, THOROUGH, play
from tests.support.builders import job, stamp, terminated
from tests.support.simulation import World

CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}
NODES = ("node-0", "node-1", "node-2")
CUTS = st.tuples(st.sampled_from(["cut", "heal"]), st.sampled_from(NODES), st.just(0), st.just(0))
LATE = st.tuples(st.just("late"), st.just(""), st.integers(0, 1), st.just(0))
HISTORIES = st.lists(st.one_of(CUTS, CUTS, LATE, STEPS), max_size=14)
SPECS = st.fixed_dictionaries(
    {
        "ps": st.sampled_from([{}, {"standby": {"mode": "Warm"}}, {"volumeClaimTemplates": [CLAIM]}]),
        "runPolicy": st.fixed_dictionaries({"backoffLimit": st.just(1000), "forceDeleteVolumes": st.booleans()}),
        "chief": st.fixed_dictionaries({"enabled": st.booleans()}),
        # A chief with a volume stays on its lost node, beside its successor.
        "checkpoint": st.sampled_from([{"volumeClaimTemplate": CLAIM["spec"]}, {"volume": {"emptyDir": {}}}]),
    }
)


class Watcher:
    """Checks every plan and every state."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.primaries: dict[tuple[str, str], str] = {}

    def look(self) -> None:
        """Check the invariants of the present state."""
        world = self.world
        if world.job is None:
            return
        made = world.plan()
        pods = {p.uid: p for p in node_loss.marked(world.snapshot(), world.now).pods}
        held = "volumeClaimTemplates" in world.job["spec"]["ps"]
        allowed = world.job["spec"]["runPolicy"]["forceDeleteVolumes"]
        for action in made.actions:
            if isinstance(action, Delete) and action.grace_seconds == 0:
                lost = pods[action.uid]
                assert lost.deleting, "only terminating pods are deleted by force"
                assert world.nodes is not None
                assert world.nodes[lost.node] == "Unknown", "of a node that answers nothing is taken"
                assert lost.role != names.PS or not held or allowed, "a volume is mounted by one node at a time"
            elif isinstance(action, Create) and action.kind is Kind.JOB:
                going = [p for p in pods.values() if p.role == names.CHIEF and not p.over]
                assert not going, "a second chief beside one that counts"
            elif isinstance(action, Apply) and action.kind is Kind.SERVICE:
                self._primary(dict(action.body))
        for (kind, _), child in world.children.items():
            if kind == "Service":
                self._primary(child)

    def _primary(self, service: dict[str, Any]) -> None:
        selector = service.get("spec", {}).get("selector") or {}
        epoch = (service["metadata"].get("annotations") or {}).get(names.ANNOTATION_EPOCH)
        if epoch is not None and names.LABEL_STS_POD in selector:
            term = str((self.world.job or {}).get("status", {}).get("term"))
            key = (f"{service['metadata']['name']} {term}", epoch)
            known = self.primaries.setdefault(key, selector[names.LABEL_STS_POD])
            assert known == selector[names.LABEL_STS_POD], f"two primaries in {key}"


def step(world: World, what: tuple[str, str, int, int]) -> None:
    assert world.nodes is not None
    match what[0]:
        case "cut" if list(world.nodes.values()).count("True") > 1:
            world.cut(what[1])
        case "heal":
            world.heal(what[1])
        case "cut":
            pass
        case "late":
            report_late(world, what[2])
        case _:
            play(world, what)
    world.controllers()


def report_late(world: World, code: int) -> None:
    """Let partitioned nodes report the end of replaced pods, which must not change the job's result."""
    assert world.nodes is not None
    assert world.job is not None
    before = (world.job.get("status") or {}).get("phase")
    for found in list(world.pods.values()):
        if world.nodes.get(found["spec"]["nodeName"]) == "Unknown" and is_replaced(world, found):
            state = terminated(code)
            state["terminated"]["finishedAt"] = stamp(world.now + timedelta(minutes=1))
            found["status"]["containerStatuses"][0]["state"] = state
            found["status"]["phase"] = "Failed" if code else "Succeeded"
    for _ in range(3):
        world.reconcile()
    after = (world.job or {"status": {"phase": before}})["status"]["phase"]
    assert after == before or after not in ("Succeeded", "Failed"), "a lost pod ended the job"


def is_replaced(world: World, found: dict[str, Any]) -> bool:
    """Whether a terminating pod is an older attempt, or a worker beside a running successor."""
    labels = found["metadata"]["labels"]
    mine = labels[names.LABEL_ROLE], labels.get(names.LABEL_INDEX)
    others = [p["metadata"]["labels"] for p in world.pods.values() if p is not found]
    twins = [o for o in others if (o[names.LABEL_ROLE], o.get(names.LABEL_INDEX)) == mine]
    newer = any(int(o.get(names.LABEL_TERM, 0)) > int(labels.get(names.LABEL_TERM, 0)) for o in twins)
    beside = mine[0] == names.WORKER and bool(twins)
    return "deletionTimestamp" in found["metadata"] and (newer or beside)


@THOROUGH
@given(spec=SPECS, history=HISTORIES, runs=st.booleans())
def test_lost_nodes_cost_time_and_never_the_job(spec: dict[str, Any], history: list[Any], runs: bool) -> None:
    world = World(job(ps=2, spec=spec), nodes=dict.fromkeys(NODES, "True"))
    watcher = Watcher(world)
    if runs:
        world.settle()
    for what in history:
        note(str(what))
        step(world, what)
        watcher.look()
        world.reconcile()
        watcher.look()
    for name in NODES:
        world.heal(name)
    if world.job is not None and world.job["spec"]["runPolicy"].get("suspend"):
        world.edit({"runPolicy": {"suspend": False}})
    for _ in range(40):
        before = len(world.writes), world.status_writes, set(world.pods)
        world.reconcile()
        world.controllers()
        watcher.look()
        if before == (len(world.writes), world.status_writes, set(world.pods)):
            break
    assert world.plan().actions == ()
    assert world.job is not None
    assert world.job["status"]["phase"] in ("Running", "Succeeded"), world.job["status"]
