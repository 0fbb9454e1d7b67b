"""The part of a partitioned cluster that may continue by itself."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pstraining.api import names
from pstraining.core.policies import cut_off
from pstraining.core.policies.cut_off import KNOWN, TOGETHER, may_go_on
from pstraining.core.snapshot import Container, Node, Pod, Snapshot
from tests.support.builders import NOW, job, typed
from tests.support.snapshots import NODES, a_node, a_pod

HOT = typed(job(spec={"ps": {"replicas": 1, "standby": {"mode": "Hot"}}, "worker": {"replicas": 3}}))
PLAIN = typed(job(spec={"ps": {"replicas": 1}, "worker": {"replicas": 3}}))
"""Five voters: two members and three witnesses."""


@pytest.mark.parametrize(("silent", "voters"), [(1, 1), (2, 3), (3, 4), (3, 5), (4, 6)])
def test_most_of_the_voters_may_continue(silent: int, voters: int) -> None:
    assert may_go_on(silent, voters, members_elsewhere=True)
    assert not may_go_on(voters - silent, voters, members_elsewhere=True)


@pytest.mark.parametrize("voters", [2, 4, 6])
def test_half_of_the_voters_may_continue_only_with_all_members(voters: int) -> None:
    assert not may_go_on(voters // 2, voters, members_elsewhere=True)
    assert may_go_on(voters // 2, voters, members_elsewhere=False)


MEMBER, STANDBY = a_pod(names.PS, 0, "cut"), a_pod(names.PS, 0, "other", member=1)
WORKERS = [a_pod(names.WORKER, index, "cut") for index in range(3)]


def seen(*pods: Pod, nodes: dict[str, Node] | None = NODES) -> Snapshot:
    return Snapshot(job(), pods=pods, nodes=nodes)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([MEMBER, STANDBY, *WORKERS[:2]], True),
        ([MEMBER, STANDBY, WORKERS[0]], False),
        ([MEMBER, WORKERS[0]], True),
        ([MEMBER, STANDBY, WORKERS[0], replace(WORKERS[1], phase="Failed")], False),
        ([MEMBER, STANDBY, WORKERS[0], a_pod(names.WORKER, 7, "cut")], False),
        ([MEMBER, STANDBY, WORKERS[0], a_pod(names.WORKER, 1, "other")], False),
        ([MEMBER, replace(STANDBY, deleting=True), WORKERS[0]], True),
        ([MEMBER, replace(STANDBY, phase="Failed"), WORKERS[0]], True),
        ([MEMBER, replace(STANDBY, container=Container()), WORKERS[0]], True),
        ([MEMBER, replace(STANDBY, ready=False), WORKERS[0]], True),
        ([replace(MEMBER, deleted_at=NOW + KNOWN), replace(STANDBY, ready=False), WORKERS[0]], False),
        ([replace(MEMBER, deleted_at=NOW + KNOWN), replace(STANDBY, ready=False, created=NOW + KNOWN)], True),
        ([MEMBER, replace(STANDBY, ready=False, deleted_at=NOW + KNOWN), WORKERS[0]], True),
        (
            [
                replace(MEMBER, deleted_at=NOW + KNOWN - timedelta(seconds=1)),
                replace(WORKERS[0], deleted_at=NOW + 2 * KNOWN),
                replace(STANDBY, ready=False),
            ],
            True,
        ),
    ],
    ids=[
        "most voters",
        "two of five",
        "no member elsewhere",
        "an ended pod is no voter",
        "a later worker is no voter",
        "a worker elsewhere",
        "the other member is being deleted",
        "the other member has ended",
        "the other member does not run yet",
        "the other member may be new",
        "the other member was known before",
        "the other member was created later",
        "the other member's deletion does not count",
        "the first deletion counts",
    ],
)
def test_pods_on_unreachable_nodes_may_continue_with_a_quorum(pods: list[Pod], expected: bool) -> None:
    assert cut_off.goes_on(HOT, seen(*pods)) is expected
    assert cut_off.goes_on(PLAIN, seen(*pods)) is False


def test_unreachable_nodes_are_those_that_may_still_run_pods() -> None:
    out = NODES | {"cut": a_node("cut", out_of_service=True)}
    assert cut_off.silent_nodes(seen(MEMBER, STANDBY)) == {"cut"}
    assert cut_off.silent_nodes(seen(MEMBER, STANDBY, nodes=out)) == frozenset()
    assert cut_off.silent_nodes(seen(MEMBER, nodes={"other": NODES["other"]})) == frozenset()
    given_up = replace(STANDBY, disruption="DeletionByTaintManager")
    assert cut_off.silent_nodes(seen(MEMBER, given_up)) == {"cut"}
    assert cut_off.silent_nodes(seen(MEMBER, given_up, nodes=None)) == {"cut", "other"}
    assert cut_off.silent_nodes(seen(MEMBER, replace(given_up, phase="Failed"), nodes=None)) == {"cut"}
    assert cut_off.silent_nodes(seen(MEMBER, STANDBY, nodes=None)) == {"cut"}


def test_a_pod_is_held_until_all_nodes_are_known_and_while_its_side_may_continue() -> None:
    few, most = seen(MEMBER, STANDBY, WORKERS[0]), seen(MEMBER, STANDBY, *WORKERS)
    for now, held in ((NOW, True), (NOW + TOGETHER - timedelta(seconds=1), True), (NOW + TOGETHER, False)):
        assert cut_off.is_held(HOT, few, MEMBER, now) is held
        assert cut_off.is_held(HOT, most, MEMBER, now) is True
        assert cut_off.is_held(HOT, most, STANDBY, now) is False
        assert cut_off.is_held(PLAIN, most, MEMBER, now) is False


@pytest.mark.parametrize("nodes", [NODES, None], ids=["nodes are watched", "nodes are not watched"])
def test_a_node_that_reports_on_pods_again_has_time_to_report_that_it_is_ready(nodes: dict[str, Node] | None) -> None:
    """A cut is over, and the workers have ended, so that the last member seems to be one voter of five."""
    member, now = replace(MEMBER, silent=True, lost=True), NOW + 5 * TOGETHER
    few, second = replace(seen(member, STANDBY, nodes=nodes), last_reports={"cut": now}), timedelta(seconds=1)
    assert not cut_off.is_held(HOT, replace(few, last_reports={"other": now}), member, now)
    assert cut_off.is_held(HOT, few, member, now + TOGETHER - second)
    assert not cut_off.is_held(HOT, few, member, now + TOGETHER)
    assert cut_off.requeue_at(HOT, few, now) == now + TOGETHER


def test_the_job_gets_a_pass_once_all_nodes_are_known() -> None:
    lost, second = replace(MEMBER, lost=True), timedelta(seconds=1)
    assert cut_off.requeue_at(HOT, seen(lost), NOW) == NOW + TOGETHER
    assert cut_off.requeue_at(HOT, seen(lost), NOW + TOGETHER - second) == NOW + TOGETHER
    assert cut_off.requeue_at(HOT, seen(lost), NOW + TOGETHER) is None
    assert cut_off.requeue_at(PLAIN, seen(lost), NOW) is None
    assert cut_off.requeue_at(HOT, seen(MEMBER), NOW) is None
    assert cut_off.requeue_at(HOT, seen(replace(lost, forced=True)), NOW) is None
    two = {**NODES, "late": a_node("late", silent_since=NOW + second)}
    later = replace(WORKERS[0], lost=True, node="late")
    assert cut_off.requeue_at(HOT, seen(later, lost, nodes=two), NOW) == NOW + TOGETHER
    assert cut_off.requeue_at(HOT, seen(later, lost, nodes=two), NOW + TOGETHER) == NOW + TOGETHER + second


def test_without_a_node_the_deletion_time_counts_then_the_creation_time() -> None:
    lost, hour = replace(MEMBER, lost=True), timedelta(hours=1)
    assert cut_off.requeue_at(HOT, seen(lost, nodes=None), NOW) == NOW + TOGETHER
    deleted = replace(lost, deleted_at=NOW + hour)
    assert cut_off.requeue_at(HOT, seen(deleted, nodes=None), NOW) == NOW + hour + TOGETHER
    assert cut_off.requeue_at(HOT, seen(deleted, nodes={}), NOW) == NOW + hour + TOGETHER
    assert cut_off.requeue_at(HOT, seen(deleted), NOW) == NOW + TOGETHER
