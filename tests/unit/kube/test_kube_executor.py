"""The executor on the fake API server: the outcomes of actions, and the errors that reach the queue."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.informer_cache import InformerCache
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Outcomes, PatchStatus, Replace, Resize, Verdict
from pstraining.kube.errors import Conflict, NotFound, Refused, StatusCause, Transient
from pstraining.kube.executor import CLAIM_DELETED, LEFT_BEHIND, NAMESPACE_TERMINATING, PREDECESSOR, Executor
from pstraining.resources import kueue
from tests.support.fakekube import UNKNOWN_FIELD, FakeKube

pytestmark = pytest.mark.asyncio
JOB_UID = "job-uid"


def body(name: str, **data: str) -> dict[str, Any]:
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": JOB_UID, "controller": True}
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: JOB_UID}
    metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": data}


def create(name: str, **data: str) -> Create:
    return Create(Kind.SERVICE, name, body(name, **data), Reason.DESIRED)


EARLIER = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: "an earlier job"}


class Bench:
    """An executor with its surroundings."""

    def __init__(self) -> None:
        self.kube, self.cache = FakeKube(), InformerCache()
        self.counted: list[tuple[str, str]] = []
        self.executor = Executor(self.kube, self.cache, lambda kind, verb: self.counted.append((kind, verb)))

    async def run(self, *actions: Action) -> Outcomes:
        return await self.executor.execute("default", "digits", JOB_UID, actions)

    def seen(self) -> dict[str, Any]:
        return {c["metadata"]["name"]: c.get("spec") for c in self.cache.view(("default", "digits")).children}

    def fail(self, verb: str, error: Exception) -> None:
        self.kube.failures = lambda v, kind, namespace, name: error if v == verb else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def verdicts(outcomes: Outcomes) -> list[Verdict]:
    return [o.verdict for o in outcomes.outcomes]


async def test_actions_are_executed_in_order_and_remembered(bench: Bench) -> None:
    outcomes = await bench.run(create("a", x="1"), create("b"))
    assert verdicts(outcomes) == [Verdict.DONE, Verdict.DONE]
    assert [r[2] for r in bench.kube.requests] == ["a", "b"]
    assert bench.seen() == {"a": {"x": "1"}, "b": {}}
    assert bench.counted == [("Service", "create"), ("Service", "create")]


async def test_an_own_object_of_the_name_is_accepted(bench: Bench) -> None:
    await bench.run(create("a", x="1"))
    fresh = Bench()
    fresh.kube = bench.kube
    fresh.executor = Executor(bench.kube, fresh.cache, lambda kind, verb: fresh.counted.append((kind, verb)))
    assert verdicts(await fresh.run(create("a", x="1"))) == [Verdict.DONE]
    assert fresh.seen() == {"a": {"x": "1"}}
    assert fresh.counted == []


async def test_an_occupied_name_stops_all_later_actions(bench: Bench) -> None:
    bench.kube.put({**body("b"), "metadata": {"name": "b", "namespace": "default"}})
    outcomes = await bench.run(create("a"), create("b"), create("c"))
    assert verdicts(outcomes) == [Verdict.DONE, Verdict.NAME_TAKEN, Verdict.NOT_TRIED]
    assert outcomes.outcomes[1].message == "Service b exists and has no owner"
    assert bench.kube.world == {("Service", "a"), ("Service", "b")}


@pytest.mark.parametrize("running", [False, True])
async def test_an_orphan_of_an_earlier_job_is_replaced(bench: Bench, running: bool) -> None:
    """An orphan of an earlier job is replaced, as after `kubectl delete pstj digits --cascade=orphan`, or a restore
    that removed the owners.
    """
    theirs = body("b", x="old")
    theirs["metadata"] |= {"ownerReferences": [], "labels": EARLIER, "finalizers": ["x"] if running else []}
    bench.kube.put(theirs)
    outcomes = await bench.run(create("b", x="new"), create("c"))
    assert verdicts(outcomes) == [Verdict.NOT_TRIED, Verdict.NOT_TRIED]
    assert outcomes.outcomes[0].message == LEFT_BEHIND
    if running:
        assert verdicts(await bench.run(create("b", x="new"))) == [Verdict.NOT_TRIED], "it is awaited"
        bench.kube.remove(Kind.SERVICE, "default", "b")
    assert verdicts(await bench.run(create("b", x="new"), create("c"))) == [Verdict.DONE, Verdict.DONE]
    assert bench.seen()["b"] == {"x": "new"}


@pytest.mark.parametrize("labels", [{}, {names.LABEL_JOB: "digits"}, {**EARLIER, names.LABEL_JOB: "mnist"}])
async def test_an_unproven_orphan_is_a_conflict(bench: Bench, labels: dict[str, str]) -> None:
    theirs = body("b")
    theirs["metadata"] |= {"ownerReferences": [], "labels": labels}
    bench.kube.put(theirs)
    assert verdicts(await bench.run(create("b"))) == [Verdict.NAME_TAKEN]


async def test_another_jobs_object_is_named_with_its_owner(bench: Bench) -> None:
    theirs = body("b")
    theirs["metadata"]["ownerReferences"][0] |= {"uid": "other", "name": "mnist"}
    bench.kube.put(theirs)
    message = (await bench.run(create("b"))).outcomes[0].message
    assert message == "Service b exists and belongs to PSTrainingJob mnist (uid other)"


async def test_a_predecessors_object_is_waited_for(bench: Bench) -> None:
    theirs = body("b")
    theirs["metadata"]["ownerReferences"][0]["uid"] = "an earlier job"
    bench.kube.put(theirs)
    outcomes = await bench.run(create("b"), create("c"))
    assert verdicts(outcomes) == [Verdict.NOT_TRIED, Verdict.NOT_TRIED]
    assert outcomes.outcomes[0].message == PREDECESSOR


def claim(**metadata: Any) -> Create:
    spec = {**body("c"), "kind": "PersistentVolumeClaim"}
    spec["metadata"] = {**spec["metadata"], **metadata}
    return Create(Kind.CLAIM, "c", spec, Reason.DESIRED)


@pytest.mark.parametrize("labels", [{}, EARLIER], ids=["a user's", "an earlier job's"])
async def test_a_claim_without_an_owner_is_used(bench: Bench, labels: dict[str, str]) -> None:
    theirs = bench.kube.put(claim(labels=labels, ownerReferences=[]).body)
    outcomes = await bench.run(create("a"), claim(ownerReferences=[]), create("b"))
    assert verdicts(outcomes) == [Verdict.DONE, Verdict.EXISTS, Verdict.DONE]
    assert all(o.succeeded for o in outcomes.outcomes)
    assert bench.kube.objects["PersistentVolumeClaim", "default", "c"] == theirs
    assert bench.seen().keys() == {"a", "b"}, "it is not taken for the job's own"


@pytest.mark.parametrize(
    ("labels", "is_taken"),
    [({names.LABEL_JOB: "other-digits"}, True), ({names.LABEL_JOB: "digits"}, False), ({}, False)],
)
async def test_servers_do_not_use_the_claims_of_another_job(
    bench: Bench, labels: dict[str, str], is_taken: bool
) -> None:
    """Template `data` of the job `other-digits` has the claims of template `data-other` of the job `digits`."""
    name = "data-other-digits-ps-0"
    bench.kube.put({**claim().body, "metadata": {"name": name, "namespace": "default", "labels": labels}})
    templates = [{"metadata": {"name": "data-other"}, "spec": {}}, {"metadata": {"name": "unused"}, "spec": {}}]
    servers = {**body("digits-ps"), "kind": "StatefulSet", "spec": {"volumeClaimTemplates": templates}}
    (outcome,) = (await bench.run(Create(Kind.STATEFUL_SET, "digits-ps", servers, Reason.DESIRED))).outcomes
    assert outcome.verdict is (Verdict.NAME_TAKEN if is_taken else Verdict.DONE)
    assert (outcome.action.kind, outcome.action.name) == (
        (Kind.CLAIM, name) if is_taken else (Kind.STATEFUL_SET, "digits-ps")
    )


async def test_the_jobs_own_claim_needs_no_owner(bench: Bench) -> None:
    bench.kube.put(claim(ownerReferences=[]).body)
    assert verdicts(await bench.run(claim(ownerReferences=[]))) == [Verdict.DONE]
    assert bench.seen().keys() == {"c"}


async def test_a_claim_of_another_controller_is_a_conflict(bench: Bench) -> None:
    bench.kube.put(claim(ownerReferences=[{"kind": "X", "name": "x", "uid": "x", "controller": True}]).body)
    assert verdicts(await bench.run(claim(), create("b"))) == [Verdict.NAME_TAKEN, Verdict.NOT_TRIED]


async def test_a_claim_in_deletion_is_waited_for(bench: Bench) -> None:
    going = claim(labels={}, ownerReferences=[], deletionTimestamp="2030-01-01T12:00:00Z")
    bench.kube.put(going.body)
    outcomes = await bench.run(claim(), create("b"))
    assert verdicts(outcomes) == [Verdict.NOT_TRIED, Verdict.NOT_TRIED]
    assert outcomes.outcomes[0].message == CLAIM_DELETED


async def test_objects_that_the_api_server_never_accepts(bench: Bench) -> None:
    bad = create("b")
    bad = Create(bad.kind, bad.name, {**bad.body, UNKNOWN_FIELD: 1}, bad.reason)
    outcomes = await bench.run(create("a"), bad, create("c"))
    assert verdicts(outcomes) == [Verdict.DONE, Verdict.INVALID, Verdict.NOT_TRIED]
    assert UNKNOWN_FIELD in outcomes.outcomes[1].message


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        (Apply(Kind.POD_DISRUPTION_BUDGET, "a", "u", {"metadata": {}}, Reason.DRIFTED), Verdict.REFUSED),
        (Delete(Kind.DEPLOYMENT, "a", "u", Reason.JOB_FINISHED), Verdict.REFUSED),
        (PatchStatus(Kind.WORKLOAD, "a", "u", "1", {}, Reason.PODS_REPORTED), Verdict.REFUSED),
        (Replace(Kind.WORKLOAD, "a", "u", {"/spec/podSets/0/count": 3}, Reason.SPEC_CHANGED), Verdict.REFUSED),
        (Replace(Kind.STATEFUL_SET, "a", "u", {"/spec/template": {}}, Reason.SPEC_CHANGED), Verdict.INVALID),
        (Resize("a", "u", "tensorflow", {}, Reason.SPEC_CHANGED), Verdict.INVALID),
        (create("a"), Verdict.INVALID),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Action) else str(value),
)
async def test_only_what_the_spec_describes_can_be_invalid(bench: Bench, action: Action, verdict: Verdict) -> None:
    """A correction also depends on what others have written, such as a budget with both of its limits."""
    message = "minAvailable and maxUnavailable cannot be both set"
    bench.kube.failures = lambda *_: Refused(message, status=422, reason="Invalid")
    (outcome,) = (await bench.run(action)).outcomes
    assert (outcome.verdict, outcome.message) == (verdict, message)


async def test_forbidden_actions(bench: Bench) -> None:
    bench.fail("create", Refused("exceeded quota: q", status=403, reason="Forbidden"))
    outcomes = await bench.run(create("a"), create("b"))
    assert verdicts(outcomes) == [Verdict.REFUSED, Verdict.NOT_TRIED]
    assert outcomes.outcomes[0].message == "exceeded quota: q"


async def test_a_terminating_namespace_is_not_reported(bench: Bench) -> None:
    cause = StatusCause("NamespaceTerminating", "namespace is being terminated", "metadata.namespace")
    bench.fail("create", Refused("forbidden", status=403, causes=(cause,)))
    outcomes = await bench.run(create("a"), create("b"))
    assert verdicts(outcomes) == [Verdict.NOT_TRIED, Verdict.NOT_TRIED]
    assert outcomes.outcomes[0].message == NAMESPACE_TERMINATING


async def test_an_apply_names_the_uid_of_its_object(bench: Bench) -> None:
    await bench.run(create("a", x="1"))
    uid = bench.kube.objects["Service", "default", "a"]["metadata"]["uid"]
    new = Apply(Kind.SERVICE, "a", uid, body("a", y="2"), Reason.DRIFTED)
    assert verdicts(await bench.run(new)) == [Verdict.DONE]
    assert bench.seen() == {"a": {"x": "1", "y": "2"}}
    with pytest.raises(Conflict):
        await bench.run(Apply(Kind.SERVICE, "a", "other", body("a"), Reason.DRIFTED))


async def test_an_apply_that_stores_no_change_is_told_apart(bench: Bench) -> None:
    await bench.run(create("a", x="1"))
    uid = bench.kube.objects["Service", "default", "a"]["metadata"]["uid"]
    same = Apply(Kind.SERVICE, "a", uid, body("a", x="1"), Reason.DRIFTED)
    outcomes = await bench.run(same, create("b"))
    assert verdicts(outcomes) == [Verdict.UNCHANGED, Verdict.DONE], "and the actions after it are sent"
    bench.kube.objects["Service", "default", "a"]["metadata"]["resourceVersion"] = "999"
    assert verdicts(await bench.run(same)) == [Verdict.DONE], "another client's change was not observed yet"


async def test_other_writes_that_store_no_change_are_told_apart(bench: Bench) -> None:
    """A mutating webhook may undo them, such as an owner, a size or a report to Kueue."""
    await bench.run(create("a", x="1"))
    container = {"name": "main", "resources": {"limits": {"cpu": "1"}}}
    pod = {**body("p"), "kind": "Pod", "spec": {"containers": [container]}}
    queued = {**body("w"), "apiVersion": kueue.API_VERSION, "kind": "Workload"}
    for found in (pod, queued):
        bench.cache.observed(bench.kube.put(found))
    uids = {name: found["metadata"]["uid"] for (_, _, name), found in bench.kube.objects.items()}
    version = bench.cache.version(Kind.WORKLOAD, "default", "w")
    writes: list[Action] = [
        Replace(Kind.SERVICE, "a", uids["a"], {"/spec": {"x": "1"}}, Reason.DRIFTED),
        Resize("p", uids["p"], "main", {"limits": {"cpu": "1"}}, Reason.SPEC_CHANGED),
        PatchStatus(Kind.WORKLOAD, "w", uids["w"], version, {}, Reason.PODS_REPORTED),
    ]
    outcomes = await bench.run(*writes)
    assert verdicts(outcomes) == [Verdict.UNCHANGED] * 3
    assert not outcomes.have_writes, "no pass follows at once"


async def test_a_delete_of_a_missing_or_replaced_object_is_complete(bench: Bench) -> None:
    await bench.run(create("a"), create("b"))
    uid = bench.kube.objects["Service", "default", "a"]["metadata"]["uid"]
    deletions = [
        Delete(Kind.SERVICE, "a", uid, Reason.NOT_DESIRED),
        Delete(Kind.SERVICE, "a", uid, Reason.NOT_DESIRED),
        Delete(Kind.SERVICE, "b", "an older uid", Reason.NOT_DESIRED),
    ]
    assert verdicts(await bench.run(*deletions)) == [Verdict.DONE] * 3
    assert bench.kube.world == {("Service", "b")}
    assert bench.seen() == {"b": {}}
    assert bench.counted[2:] == [("Service", "delete")]


async def test_objects_of_a_kind_that_was_uninstalled_are_gone(bench: Bench) -> None:
    bench.fail("delete", NotFound("404 page not found", status=404))
    assert verdicts(await bench.run(Delete(Kind.WORKLOAD, "a", "uid", Reason.NOT_DESIRED))) == [Verdict.DONE]


async def test_a_deleted_object_with_a_finalizer_is_seen_as_terminating(bench: Bench) -> None:
    held = create("a")
    held.body["metadata"]["finalizers"] = ["example.com/hold"]
    await bench.run(held)
    uid = bench.kube.objects["Service", "default", "a"]["metadata"]["uid"]
    await bench.run(Delete(Kind.SERVICE, "a", uid, Reason.NOT_DESIRED))
    (child,) = bench.cache.view(("default", "digits")).children
    assert child["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        ("create", Transient("503")),
        ("create", NotFound('namespaces "default" not found', status=404)),
        ("create", Conflict("Operation cannot be fulfilled on resourcequotas", status=409, reason="Conflict")),
        ("apply", Conflict("modified", status=409)),
        ("apply", NotFound("gone", status=404)),
        ("delete", Transient("timeout")),
        ("delete", Conflict("modified", status=409)),
        ("delete", NotFound("default backend - 404", status=404)),
    ],
)
async def test_errors_that_reach_the_queue(bench: Bench, verb: str, error: Exception) -> None:
    await bench.run(create("a"))
    uid = bench.kube.objects["Service", "default", "a"]["metadata"]["uid"]
    actions: dict[str, Action] = {
        "create": create("b"),
        "apply": Apply(Kind.SERVICE, "a", uid, body("a"), Reason.DRIFTED),
        "delete": Delete(Kind.SERVICE, "a", uid, Reason.NOT_DESIRED),
    }
    bench.fail(verb, error)
    with pytest.raises(type(error)):
        await bench.run(actions[verb], create("c"))
    assert ("Service", "c") not in bench.kube.world


NO_WEBHOOK = 'Internal error occurred: failed calling webhook "vworkload.kb.io": no endpoints available'


NO_CONVERSION = "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Workload failed: no endpoints available"


@pytest.mark.parametrize(
    "error",
    [
        Transient(NO_WEBHOOK, status=500),
        Transient(NO_CONVERSION, status=500),
        Refused("workloads is forbidden", status=403),
    ],
)
async def test_without_kueue_the_other_writes_of_a_pass_are_sent(bench: Bench, error: Exception) -> None:
    bench.kube.failures = lambda verb, kind, namespace, name: error if kind == Kind.WORKLOAD else None
    report = PatchStatus(Kind.WORKLOAD, "w", "u", "1", {}, Reason.PODS_REPORTED)
    outcomes = await bench.run(report, create("a"))
    assert verdicts(outcomes) == [Verdict.REFUSED, Verdict.DONE]
    assert outcomes.outcomes[0].message == str(error)


async def test_an_outage_of_the_api_server_during_a_write_to_a_workload_reaches_the_queue(bench: Bench) -> None:
    bench.fail("merge_status", Transient("503"))
    with pytest.raises(Transient):
        await bench.run(PatchStatus(Kind.WORKLOAD, "w", "u", "1", {}, Reason.PODS_REPORTED), create("a"))
