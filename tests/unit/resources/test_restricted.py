"""Every rendered pod passes the Pod Security Standard "restricted" for any job."""

from itertools import product
from typing import Any

import pytest

from pstraining.core import desired_state
from pstraining.resources import security, workloads
from pstraining.resources.launcher import LauncherMap
from tests.support.builders import LAUNCHER, TEMPLATE, deep_merge, job, typed
from tests.support.pod_security import violations
from tests.support.simulation import World

INIT = {"spec": {"initContainers": [{"name": "fetch", "image": "i"}]}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
CHECKPOINTS: tuple[dict[str, Any], ...] = ({}, {"checkpoint": {"volumeClaimTemplate": CLAIM}})


def pod_specs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    made = typed(job(spec=spec))
    children = [
        *desired_state.children(made, LauncherMap("l"), LAUNCHER),
        *(workloads.build_attempt(made, role, 1, LauncherMap("l")) for role in ("chief", "evaluator")),
    ]
    # The pods of a running world are checked as well, because some kinds appear only later.
    world = World(job(spec=spec))
    world.settle()
    found = [*children, *world.children.values()]
    return [c["spec"]["template"]["spec"] for c in found if "template" in c.get("spec", {})]


@pytest.mark.parametrize(
    ("chief", "server", "standby", "evaluator", "checkpoint"),
    list(product((True, False), ("Program", "Builtin"), ("None", "Warm"), (True, False), CHECKPOINTS)),
)
def test_every_role_in_every_mode(
    chief: bool, server: str, standby: str, evaluator: bool, checkpoint: dict[str, Any]
) -> None:
    spec = {
        "ps": {"server": server, "standby": {"mode": standby, "replicasPerShard": 2}},
        "worker": {"template": deep_merge(TEMPLATE, INIT)},
        "chief": {"enabled": chief},
        "evaluator": {"enabled": evaluator},
        **checkpoint,
    }
    found = pod_specs(spec)
    assert len(found) >= 6
    assert [v for s in found for v in violations(s)] == []


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"hostPID": True}, "hostPID"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume v"),
        ({"securityContext": {"runAsUser": 0}}, "tensorflow: root"),
    ],
)
def test_the_users_violations_are_not_hidden(spec: dict[str, Any], word: str) -> None:
    """The user's violations are not hidden, because the cluster's admission decides, and not the operator."""
    template = deep_merge(TEMPLATE, {"spec": spec})
    assert word in [v for s in pod_specs({"worker": {"template": template}}) for v in violations(s)]


@pytest.mark.parametrize(
    ("added", "expected"), [("CAP_SYS_ADMIN", None), ("SYS_ADMIN", None), ("ALL", None), ("NET_ADMIN", False)]
)
def test_a_container_that_may_escalate_in_any_case_is_not_forbidden_to(added: str, expected: bool | None) -> None:
    """A container that may escalate in any case is not forbidden to: the API server rejects allowPrivilegeEscalation:
    false with CAP_SYS_ADMIN, which a FUSE sidecar has.
    """
    sidecar = {"name": "fuse", "image": "i", "securityContext": {"capabilities": {"add": [added]}}}
    found: dict[str, Any] = {"containers": [sidecar]}
    security.restrict(found)
    assert found["containers"][0]["securityContext"].get("allowPrivilegeEscalation") is expected
