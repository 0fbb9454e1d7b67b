"""A requested switchover that waits for a standby: without a word, it would surprise its user hours later."""

from typing import Any

import pytest

from pstraining.api import names
from tests.support.builders import job
from tests.support.simulation import World, running
from tests.unit.core.test_hot_standby import hot

WARM = {"ps": {"standby": {"mode": "Warm"}}}


def stop_standby(world: World) -> None:
    """Let the pod of the only standby become not ready."""
    status = world.pods["digits-standby-0"]["status"]
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    status["containerStatuses"][0] |= {"ready": False, "state": {"running": {"startedAt": "2030-01-01T12:00:05Z"}}}
    world.settle()


def request(world: World, text: str) -> None:
    stored(world)["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: text}
    world.settle()


def stored(world: World) -> dict[str, Any]:
    assert world.job is not None
    return world.job


def test_it_is_reported_at_once_until_it_is_withdrawn() -> None:
    world, why = running(**WARM), "Shard 0: pod digits-standby-0 is not ready yet"
    stop_standby(world)
    assert world.condition("Degraded")["message"] == why
    request(world, "0@0")
    assert world.condition("Degraded")["message"] == (
        f"{why}; the requested switchover of shard 0 waits for a standby: to withdraw it, remove the job's annotation "
        "pstraining.dev/takeover"
    )
    written = world.status_writes
    world.settle()
    assert world.status_writes == written
    del stored(world)["metadata"]["annotations"]
    world.settle()
    assert world.condition("Degraded")["message"] == why


def test_it_is_reported_although_the_only_standby_starts_for_the_first_time() -> None:
    world = World(job(spec=WARM))
    world.reconcile()
    world.controllers()
    stop_standby(world)
    assert "Degraded" not in {c["type"] for c in stored(world)["status"]["conditions"]}
    request(world, "0@0")
    assert "waits for a standby" in world.condition("Degraded")["message"]
    assert [e.reason for e in world.reported].count("Degraded") == 1


def test_a_request_for_an_earlier_epoch_does_not_wait() -> None:
    world = running(**WARM)
    stop_standby(world)
    request(world, "0@1")
    assert "switchover" not in world.condition("Degraded")["message"]


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (
            hot(),
            "Every shard has its standbys; the job's annotation pstraining.dev/takeover has no effect: with hot "
            "standbys, the chief selects the primary: to move a member, delete its pod.",
        ),
        (running(), "The job has no standbys; the job's annotation pstraining.dev/takeover has no effect."),
    ],
    ids=["hot", "none"],
)
def test_a_request_that_the_operator_ignores_is_reported(world: World, expected: str) -> None:
    request(world, "0@0")
    found = world.condition("Degraded")
    assert (found["status"], found["message"]) == ("False", expected)
    del stored(world)["metadata"]["annotations"]
    world.settle()
    assert "takeover" not in world.condition("Degraded")["message"]
