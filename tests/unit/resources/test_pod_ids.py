"""User and group IDs of pods: the operator's, the template's, or none, so that the platform can assign them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pstraining.core.actions import Create
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.resources import security
from pstraining.resources.installation import Installation
from pstraining.resources.security import PodIds, sets_ids
from tests.support.builders import LAUNCHER, TEMPLATE, deep_merge, job
from tests.support.pod_security import violations

IDS = {"runAsUser", "runAsGroup", "fsGroup"}
SPEC = {"ps": {"standby": {"mode": "Warm"}}, "evaluator": {"enabled": True}}


@pytest.mark.parametrize(
    ("setting", "platform_assigns_ids", "expected"),
    [
        (PodIds.AUTO, False, True),
        (PodIds.AUTO, True, False),
        (PodIds.SET, True, True),
        (PodIds.SET, False, True),
        (PodIds.PLATFORM, False, False),
        (PodIds.PLATFORM, True, False),
    ],
)
def test_the_assigner_of_ids_is_detected(setting: PodIds, platform_assigns_ids: bool, expected: bool) -> None:
    assert sets_ids(setting, platform_assigns_ids=platform_assigns_ids) is expected


def pod_specs(*, ids: bool, spec: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Return the pods of all roles that the first passes create."""
    manifest = job(spec=deep_merge(SPEC, spec or {}))
    snapshot = observe(manifest, [], [], installation=Installation(sets_ids=ids))
    actions = plan(gather(snapshot, datetime.now(UTC)), LAUNCHER).actions
    for action in actions:
        if isinstance(action, Create) and "template" in action.body.get("spec", {}):
            yield action.body["spec"]["template"]["spec"]


def test_pods_have_no_ids_where_the_platform_assigns_them() -> None:
    specs = list(pod_specs(ids=False))
    assert len(specs) == 6, "two workers, the servers and their standbys, the chief and the evaluator"
    for spec in specs:
        contexts = [spec, *spec["containers"], *(spec.get("initContainers") or ())]
        assert not IDS & {key for found in contexts for key in found.get("securityContext") or {}}
        assert violations(spec) == []


def test_pods_have_the_operators_ids_elsewhere() -> None:
    assert all(spec["securityContext"].keys() >= IDS for spec in pod_specs(ids=True))


@pytest.mark.parametrize("ids", [True, False])
def test_ids_of_the_template_are_kept(ids: bool) -> None:
    template = deep_merge(TEMPLATE, {"spec": {"securityContext": {"runAsUser": 7, "fsGroup": 8}}})
    contexts = [s["securityContext"] for s in pod_specs(ids=ids, spec={"worker": {"template": template}})]
    kept = [c for c in contexts if c.get("runAsUser") == 7]
    assert len(kept) >= 2
    assert {c["fsGroup"] for c in kept} == {8}


def contexts(pod: dict[str, Any], *containers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the security contexts of a restricted pod and of its containers; the last one is an init container."""
    made: list[dict[str, Any]] = [{"name": "c", "securityContext": own} if own else {"name": "c"} for own in containers]
    spec: dict[str, Any] = {"securityContext": pod, "containers": made[:-1], "initContainers": made[-1:]}
    security.restrict(spec)
    return [found["securityContext"] for found in (spec, *made)]


def test_a_pod_that_may_run_as_root_has_its_images_user() -> None:
    """A plain pod with this setting runs as its image's user; the runtime refuses a group without a user."""
    of_pod, *own = contexts({"runAsNonRoot": False}, {}, {"runAsNonRoot": True}, {"runAsUser": 0})
    assert of_pod["runAsNonRoot"] is False
    assert not {"runAsUser", "runAsGroup"} & {*of_pod, *own[0]}
    assert of_pod["fsGroup"] == 1000, "volumes stay writable for any user"
    assert [(c["runAsUser"], c["runAsGroup"]) for c in own[1:]] == [(1000, 1000), (0, 1000)]


def test_one_container_that_may_run_as_root_leaves_the_others_their_user() -> None:
    of_pod, *own = contexts({}, {}, {"runAsNonRoot": False}, {})
    assert of_pod["runAsNonRoot"] is True
    assert "runAsUser" not in of_pod | own[1]
    assert [own[i]["runAsUser"] for i in (0, 2)] == [1000] * 2
    with_group = contexts({"runAsGroup": 7}, {}, {"runAsNonRoot": False}, {})
    assert [c.get("runAsGroup") for c in with_group] == [7, None, None, None]


@pytest.mark.parametrize("ids", [True, False])
def test_a_privileged_container_has_its_images_user(ids: bool) -> None:
    """As user 1000 it has no right that `privileged` gives, and an image of root does not start with runAsNonRoot."""
    privileged = {"privileged": True}
    spec: dict[str, Any] = {
        "containers": [{"name": "c"}],
        "initContainers": [{"name": "sysctl", "securityContext": dict(privileged)}],
    }
    security.restrict(spec, ids=ids)
    assert spec["initContainers"][0]["securityContext"] == {**privileged, "runAsNonRoot": False}
    assert "runAsUser" not in spec["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"].get("runAsUser") == (1000 if ids else None)


@pytest.mark.parametrize(
    "own",
    [{"runAsNonRoot": False, "runAsUser": 7}, {"runAsNonRoot": True}, {"runAsNonRoot": True, "privileged": True}],
)
def test_other_containers_have_the_user_of_the_pod(own: dict[str, Any]) -> None:
    of_pod, *_ = contexts({}, own, {})
    assert (of_pod["runAsUser"], of_pod["runAsGroup"]) == (1000, 1000)
    assert contexts({"runAsUser": 5}, {"runAsNonRoot": False}, {})[0]["runAsUser"] == 5
    assert contexts({"runAsUser": 5}, {"privileged": True}, {})[1] == {"privileged": True}
