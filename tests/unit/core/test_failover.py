"""The standby that replaces a lost primary, and the writes for it, decision by decision."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, ShardStatus
from pstraining.core.actions import Apply, Delete, Kind
from pstraining.core.policies import failover
from pstraining.core.policies.failover import START_GRACE, Loss, LossCause, ShardState, lost, promotions, requeue_at
from pstraining.core.snapshot import Child, Container, Pod, Snapshot, Termination
from pstraining.resources import services
from pstraining.resources.services import Pointer
from tests.support.builders import NOW, deep_merge, job, typed
from tests.support.snapshots import a_pod

SECOND = timedelta(seconds=1)
WARM = typed(job(ps=2, spec={"ps": {"standby": {"mode": "Warm"}}}))
HOT = typed(job(spec={"ps": {"standby": {"mode": "Hot"}}}))
PLAIN = typed(job())
RECORDED = ShardStatus(index=0, primary="digits-standby-0", takeovers=3, last_cause="not ready")
END = Termination(137, "Error", "", NOW)
STARTED = Container(running=True, started_at=NOW)


def member(number: int, index: int = 0, **more: Any) -> Pod:
    name = f"digits-{'standby' if number else 'ps'}-{index}"
    return a_pod(names.PS, index, "other", **{"name": name, "uid": f"{name}-uid", "member": number, **more})


def not_started(number: int = 0, **more: Any) -> Pod:
    return member(number, **{"ready": False, "container": Container(), **more})


def hung(**more: Any) -> Pod:
    return member(0, **{"ready": False, "container": STARTED, "ready_changed": NOW + SECOND, **more})


def service(spec: PSTrainingJob = WARM, pointer: Pointer | None = None, *, deleting: bool = False) -> Child:
    return Child(Kind.SERVICE, "digits-ps-0", "s", deleting, services.build_ps(spec, 0, pointer))


def seen(*pods: Pod, of: Child | None = None, annotation: str | None = None) -> Snapshot:
    manifest, children = job(), {(Kind.SERVICE, of.name): of} if of else {}
    if annotation is not None:
        manifest["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: annotation}
    return Snapshot(manifest, children, pods)


def first(
    snapshot: Snapshot, spec: PSTrainingJob = WARM, now: datetime = NOW, status: ShardStatus | None = None
) -> ShardState:
    """Return the first shard's state."""
    recorded = PSTrainingJobStatus(shards=[status] if status else [])
    return failover.shards(spec, snapshot, recorded, now)[0]


@pytest.mark.parametrize(
    ("pod", "expected", "words"),
    [
        (None, Loss(LossCause.GONE), "pod gone"),
        (member(0, deleting=True, deleted_at=NOW), Loss(LossCause.DELETED, NOW), "pod deleted"),
        (
            member(0, deleting=True, deleted_at=NOW, disruption="DeletionByTaintManager"),
            Loss(LossCause.NODE_LOST, NOW),
            "node lost",
        ),
        (
            member(0, phase="Failed", reason="Error", container=Container(terminated=END)),
            Loss(LossCause.ENDED, NOW, "with code 137"),
            "container ended with code 137",
        ),
        (
            member(0, phase="Failed", reason="Evicted", container=Container()),
            Loss(LossCause.ENDED, None, "(Evicted)"),
            "container ended (Evicted)",
        ),
        (
            member(0, phase="Failed", container=Container()),
            Loss(LossCause.ENDED, None, "(Failed)"),
            "container ended (Failed)",
        ),
        (
            not_started(container=Container(terminated=END)),
            Loss(LossCause.ENDED, NOW, "with code 137"),
            "container ended with code 137",
        ),
        (hung(), Loss(LossCause.NOT_READY, NOW + SECOND, alive=True), "not ready"),
        (hung(silent=True), Loss(LossCause.NODE_LOST, NOW + SECOND, alive=True), "node lost"),
    ],
)
def test_a_loss_has_its_time_message_and_whether_the_server_may_run(
    pod: Pod | None, expected: Loss, words: str
) -> None:
    loss = lost(pod, NOW + SECOND)
    assert loss == expected
    assert loss.words == words


def test_a_server_that_does_not_start_in_time_is_lost_from_then_on_and_may_still_run() -> None:
    due = NOW + START_GRACE
    assert lost(not_started(), due - SECOND) is None
    assert lost(not_started(), due + SECOND) == Loss(LossCause.NOT_STARTED, due, alive=True)


def test_a_server_whose_pod_changes_in_the_second_of_its_start_is_still_starting() -> None:
    assert lost(hung(ready_changed=NOW), NOW + SECOND) is None


def test_a_new_chief_explains_what_stops_from_its_creation_to_the_end_of_its_grace() -> None:
    for term, explained in (
        (NOW + 2 * SECOND, False),
        (NOW + SECOND, True),
        (NOW + 2 * SECOND - START_GRACE, True),
        (NOW + SECOND - START_GRACE, False),
    ):
        assert (lost(hung(), NOW + SECOND, term) is None) is explained


@pytest.mark.parametrize(("term", "replaced"), [(1, True), (2, False), (3, False)])
def test_a_primary_that_restarts_for_a_later_attempt_of_the_chief_is_not_replaced(term: int, replaced: bool) -> None:
    chief = a_pod(names.CHIEF, 0, "other", term=term)
    shard = first(seen(hung(), member(1), chief, of=service()), now=NOW + SECOND)
    assert (shard.successor is not None) is replaced


def test_a_primary_that_does_not_start_in_time_is_replaced_and_ended() -> None:
    primary, standby = not_started(), member(1)
    snapshot = seen(primary, standby, of=service())
    assert first(snapshot, now=NOW + START_GRACE - SECOND).successor is None
    shard = first(snapshot, now=NOW + START_GRACE)
    assert shard.successor is standby
    assert shard.next_pointer == Pointer(standby.name, 1, "not started", primary.uid)
    assert list(failover.fences(snapshot, (shard,))) == [Delete(Kind.POD, primary.name, primary.uid, Reason.TAKE_OVER)]


def test_no_standby_is_promoted_while_the_primary_serves() -> None:
    shard = first(seen(member(0), member(1), of=service()))
    assert (shard.loss, shard.successor, shard.next_pointer) == (None, None, Pointer("digits-ps-0"))


def test_a_standby_is_promoted_only_by_a_service_that_stays() -> None:
    assert first(seen(member(1), of=service())).successor == member(1)
    assert first(seen(member(1), of=service(deleting=True))).successor is None
    assert first(seen(member(1))).successor is None


def test_a_promotion_is_one_write_to_the_very_service_that_was_seen() -> None:
    shard = first(snapshot := seen(member(0), member(1), of=service(), annotation="0@0"))
    body = services.build_ps(WARM, 0, Pointer("digits-standby-0", 1, "requested", "digits-ps-0-uid"))
    written = deep_merge(body, {"metadata": {"uid": "s"}})
    expected = Apply(Kind.SERVICE, "digits-ps-0", "s", written, Reason.TAKE_OVER, NOW)
    assert list(promotions(WARM, snapshot, (shard,))) == [expected]
    known = service()
    known = replace(known, manifest=deep_merge(dict(known.manifest), {"metadata": {"resourceVersion": "7"}}))
    versioned = deep_merge(written, {"metadata": {"resourceVersion": "7"}})
    assert list(promotions(WARM, seen(of=known), (shard,))) == [replace(expected, body=versioned)]


def test_a_loss_without_a_successor_is_no_promotion() -> None:
    shard = ShardState(0, Pointer("digits-ps-0"), (None, None), None, Loss(LossCause.GONE))
    assert list(promotions(WARM, seen(of=service()), (shard,))) == []


def test_a_service_ends_no_pod_of_another_shard() -> None:
    other = member(0, 1)
    noted = service(WARM, Pointer("digits-standby-0", 1, "", other.uid))
    shard = first(snapshot := seen(member(1), other, of=noted))
    assert shard.next_pointer.demoted == other.uid
    assert list(failover.fences(snapshot, (shard,))) == []


def test_only_a_shard_with_standbys_is_checked_again_during_the_grace_period() -> None:
    starting = ShardState(0, Pointer("digits-ps-0"), (not_started(), member(1)), not_started())
    due = NOW + START_GRACE
    assert requeue_at((starting,), due - SECOND) == due
    assert requeue_at((starting,), due) is None
    alone = replace(starting, members=(not_started(),))
    assert requeue_at((alone,), NOW) is None


def test_a_service_without_annotations_has_its_first_primary_and_no_history() -> None:
    assert first(seen(of=service(PLAIN)), PLAIN).pointer == Pointer("digits-ps-0")


def test_the_services_annotations_are_the_pointer() -> None:
    noted = Pointer("digits-standby-0", 4, "not ready", "uid")
    assert first(seen(of=service(WARM, noted))).pointer == noted


def test_without_a_service_the_status_has_the_primary_the_epoch_and_the_cause() -> None:
    assert first(seen(), status=RECORDED).pointer == Pointer("digits-standby-0", 3, "not ready")
    assert first(seen()).pointer == Pointer("digits-ps-0")


def test_an_unknown_primary_gives_way_to_the_first_member_under_a_new_epoch() -> None:
    unknown = Pointer("digits-standby-7-0", 4, "not ready")
    corrected = Pointer("digits-ps-0", 5, "no such member")
    assert first(seen(of=service(WARM, unknown))).pointer == corrected
    assert first(seen(of=service(PLAIN, unknown)), PLAIN).pointer == corrected
    assert first(seen(of=service(PLAIN, replace(unknown, epoch=0))), PLAIN).pointer == Pointer("digits-ps-0")


def test_a_hot_primary_with_a_new_pod_is_lost() -> None:
    starting = not_started(1)
    assert first(seen(member(0), starting), HOT, NOW, RECORDED).pointer == Pointer("digits-ps-0", 4, "pod gone")


def test_without_standbys_only_servers_of_the_next_layout_are_left_out() -> None:
    spec, workers = typed(job(ps=2)), [a_pod(names.WORKER, index, "other") for index in (0, 5)]
    servers = [member(0, index) for index in (0, 1, 2)]
    now = seen(*servers[:2], *workers)
    assert failover.without_standbys(spec, now, ()) is now
    later = failover.without_standbys(spec, seen(*servers, *workers), ())
    assert later.pods == (*servers[:2], *workers)
    assert later.job is not None
    assert failover.without_standbys(spec, seen(*servers[:2], a_pod(names.WORKER, 2, "other")), ()).pods[2].index == 2
