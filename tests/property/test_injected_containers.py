"""Admission adds containers to pods at any place, and the operator still observes the program's container."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.api import names
from pstraining.cli.tasks import tasks_of
from pstraining.controller.transform import transform
from pstraining.core.observe import observe
from pstraining.core.snapshot import Pod
from pstraining.resources import pods
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask
from tests.support.builders import job, pod, terminated, typed

ROLES = (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR)
STATES: tuple[dict[str, Any], ...] = ({"running": {}}, terminated(0), terminated(3), {"waiting": {"reason": "x"}})
PROXIES = st.lists(
    st.tuples(st.sampled_from(["istio-proxy", "linkerd-proxy", "shipper"]), st.sampled_from(STATES)),
    max_size=3,
    unique_by=lambda found: found[0],
)


def made_by(name: str, role: str, *, annotated: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job whose templates have one container of that name, and a pod of the job."""
    template = {"spec": {"containers": [{"name": name, "image": "img:1", "command": ["python"]}]}}
    manifest = job(spec={"worker": {"template": template}, "evaluator": {"enabled": True}})
    found = pod(role, term=1 if role in (names.CHIEF, names.EVALUATOR) else 0, state=terminated(3))
    rendered = pods.build(typed(manifest), PodTask(role, 0, 1), LauncherMap("l"))["metadata"]["annotations"]
    found["metadata"]["annotations"] = rendered if annotated else {}
    found["spec"]["containers"] = [{"name": name}]
    found["status"]["containerStatuses"][0]["name"] = name
    return manifest, found


def observed(manifest: dict[str, Any], found: dict[str, Any]) -> Pod:
    return observe(manifest, (), [transform(found)]).pods[0]


@given(
    name=st.sampled_from([names.MAIN_CONTAINER, "trainer"]),
    role=st.sampled_from(ROLES),
    annotated=st.booleans(),
    proxies=PROXIES,
    at=st.integers(0, 3),
)
def test_the_program_is_known_at_any_place(
    name: str, role: str, annotated: bool, proxies: list[tuple[str, dict[str, Any]]], at: int
) -> None:
    manifest, found = made_by(name, role, annotated=annotated)
    alone = observed(manifest, found)
    spec, status = found["spec"]["containers"], found["status"]["containerStatuses"]
    spec[:] = _around(spec, [{"name": n} for n, _ in proxies], at)
    status[:] = _around(status, [{"name": n, "state": state, "restartCount": 7} for n, state in proxies], at)
    seen = observed(manifest, found)
    assert (seen.main, seen.container, seen.finished) == (name, alone.container, alone.finished)
    assert tasks_of(manifest, [found])[0].container == name


def _around(own: list[dict[str, Any]], others: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    return [*others[:at], *own, *others[at:]]


def test_an_injected_container_may_have_the_default_name() -> None:
    """An injected container may have the default name, because the annotation names our container."""
    manifest, found = made_by("trainer", names.CHIEF, annotated=True)
    found["spec"]["containers"].insert(0, {"name": names.MAIN_CONTAINER})
    found["status"]["containerStatuses"].insert(0, {"name": names.MAIN_CONTAINER, "state": {"running": {}}})
    assert observed(manifest, found).main == "trainer"


def test_a_pod_keeps_its_container_when_the_template_gets_another_name() -> None:
    """The template of servers with hot standbys may change while they run."""
    _, found = made_by("former", names.PS, annotated=True)
    manifest, _ = made_by("trainer", names.PS, annotated=True)
    assert observed(manifest, found).container.terminated is not None


@pytest.mark.parametrize("role", ROLES)
def test_every_pod_names_its_training_container(role: str) -> None:
    manifest, _ = made_by("trainer", role, annotated=True)
    annotations = pods.build(typed(manifest), PodTask(role, 0, 1), LauncherMap("l"))["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_CONTAINER] == "trainer"
