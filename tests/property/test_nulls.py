"""Null in a template counts as absent, at every path: in the operator's objects, and in the findings of `validate`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.nulls import without_nulls
from pstraining.cli.validation.schema import Severity, validate
from pstraining.cli.validation.templates import refused
from pstraining.core import planner
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from tests.support.builders import LAUNCHER, NOW, job
from tests.support.copying import copied
from tests.support.soak_marks import ALL

Path = tuple[str | int, ...]
PROBE = {"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a", "value": "b"}]}, "periodSeconds": 1}
TERM = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}
CONTAINER: dict[str, Any] = {
    "name": "tensorflow",
    "image": "img:1",
    "command": ["python", "-m", "train"],
    "args": ["--steps", "9"],
    "env": [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}],
    "resources": {
        "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
        "requests": {"cpu": 1},
        "claims": [{"name": "gpu"}],
    },
    "securityContext": {"runAsUser": 7, "capabilities": {"add": ["SYS_PTRACE"], "drop": ["ALL"]}, "privileged": False},
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "readinessProbe": PROBE,
    "livenessProbe": PROBE,
    "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sync"]}}},
    "terminationMessagePolicy": "File",
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "containers": [CONTAINER, {"name": "shipper", "image": "log:1", "resources": {"limits": {"cpu": 1}}}],
        "initContainers": [
            {"name": "proxy", "image": "p:1", "restartPolicy": "Always", "securityContext": {"runAsUser": 0}},
        ],
        "volumes": [
            {"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": "c"}},
        ],
        "securityContext": {"runAsUser": 5, "seccompProfile": {"type": "RuntimeDefault"}, "supplementalGroups": [1]},
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "affinity": {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]},
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "g"}],
        "resources": {"limits": {"cpu": 4}},
        "imagePullSecrets": [{"name": "s"}],
        "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a.example"], "options": [{"name": "ndots"}]},
        "overhead": {"cpu": "1m"},
        "priorityClassName": "high",
        "automountServiceAccountToken": True,
        "enableServiceLinks": True,
        "terminationGracePeriodSeconds": 3,
        "activeDeadlineSeconds": 900,
        "serviceAccountName": "trainer",
        "schedulerName": "mine",
    },
}
SMALL: dict[str, Any] = {"spec": {"containers": [{"name": "tensorflow", "image": "img:1"}]}}
ROLES = (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR)
CONTAINERS: Path = ("spec", "containers")
REQUIRED: set[Path] = {
    *(("spec",), CONTAINERS),
    *((*CONTAINERS, i, "name") for i in (0, 1)),
    *((*CONTAINERS, 0, "env", i, "name") for i in (0, 1)),
}
"""The fields that the CRD requires; items of these lists are rejected where nulls are kept."""
SPEC: dict[str, Any] = {
    "ps": {"standby": {"mode": "Hot", "replicasPerShard": 1}, "server": "Builtin"},
    "training": {"mode": "Sync"},
    "evaluator": {"enabled": True},
    "runPolicy": {"schedulingPolicy": {"gang": "SchedulerPlugins"}},
}


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in items:
        yield (*path, step)
        yield from paths(below, (*path, step))


def at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the part of a value at a path."""
    for step in path:
        value = value[step]
    return value


def changed(path: Path, *, null: bool) -> dict[str, Any]:
    """Return the template with null at a path, or without the path's value; an item of a list is empty instead."""
    found = copied(TEMPLATE)
    *above, last = path
    target = at(found, above)
    if null:
        target[last] = None
    elif isinstance(last, int):
        target[last] = type(target[last])()
    else:
        del target[last]
    return found


def written(template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return job(workers=1, spec={**SPEC, **spec, "worker": {"template": template}})


def whole(template: dict[str, Any], roles: Sequence[str] = ROLES) -> dict[str, Any]:
    """Return a job whose roles, or some of them, have this template."""
    manifest = written({} if names.WORKER in roles else SMALL)
    for role in roles:
        manifest["spec"].setdefault(role, {})["template"] = copied(template)
    return manifest


def borrowed(template: dict[str, Any]) -> dict[str, Any]:
    manifest = written({})
    manifest["spec"]["worker"]["template"] = copied(template)
    return manifest


PATHS = sorted((p for p in paths(TEMPLATE) if p not in REQUIRED), key=str)


def in_schema(path: Path) -> bool:
    """Whether this is an item of a list whose items the CRD's schema knows."""
    *at, last = path
    of_container = tuple(at[:2]) == CONTAINERS and len(at) == 4 and at[3] in ("command", "args", "env")
    return isinstance(last, int) and (tuple(at) == CONTAINERS or of_container)


@pytest.mark.parametrize("make", [whole, borrowed])
def test_the_operator_renders_null_as_absent(make: Any) -> None:
    for path in PATHS:
        if in_schema(path):
            continue  # the API server rejects such an item
        with_null, without = make(changed(path, null=True)), make(changed(path, null=False))
        plans = [planner.plan(gather(observe(m, (), ()), NOW), LAUNCHER) for m in (with_null, without)]
        assert plans[0] == plans[1], path
        assert plans[0].actions, path


def test_validate_treats_null_as_absent() -> None:
    for number, path in enumerate(PATHS):
        roles = ROLES if ALL else (ROLES[number % len(ROLES)],)
        with_null, without = whole(changed(path, null=True), roles), whole(changed(path, null=False), roles)
        if in_schema(path):
            assert any(f.severity is Severity.ERROR for f in validate(with_null)), path
            continue
        said = validate(without)
        assert validate(with_null) == said, path
        if not said:
            assert refused(with_null) == refused(without), path


def test_other_kubernetes_objects_are_read_alike() -> None:
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {}, "storageClassName": None}
    manifest = job(spec={"checkpoint": {"volumeClaimTemplate": claim}, "ps": {"resources": {"limits": None}}})
    bodies = [a.body for a in planner.plan(gather(observe(manifest, (), ()), NOW), LAUNCHER).actions]  # type: ignore[union-attr]
    assert next(b for b in bodies if b["kind"] == "PersistentVolumeClaim")["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {},
    }


def test_a_null_in_a_list_keeps_its_place() -> None:
    assert without_nulls({"volumes": [None, {"name": "a"}], "args": ["a", None], "drop": [None]}) == {
        "volumes": [{}, {"name": "a"}],
        "args": ["a", ""],
        "drop": [""],
    }
