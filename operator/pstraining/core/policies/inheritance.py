"""Which settings do other roles inherit from the worker's template although they only suit workers on GPU nodes? Pure.

Status, event and CLI use the same text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJobSpec
from pstraining.api.values import copied
from pstraining.resources import devices, pods

_WHO: Final = {
    names.PS: "pods of parameter servers",
    names.CHIEF: "the chief's pods",
    names.EVALUATOR: "the evaluator's pods",
}


@dataclass(frozen=True)
class Inherited:
    """A field that is not set, with the consequence."""

    field: str
    message: str
    """The consequence, as a predicate whose subject is the field."""


def inherited(spec: PSTrainingJobSpec) -> list[Inherited]:
    """Return the settings that other roles inherit from the worker's template and that do not suit them.

    These are settings of workers with accelerators, and the lack of accelerators that a role itself requests.

    Args:
        spec: a job's spec whose templates have containers.
    """
    worker, own = spec.worker.template["spec"], spec.worker.resources
    has_devices = devices.are_requested(worker, own)
    roles = (
        (names.PS, True, spec.ps.template, spec.ps.resources),
        (names.CHIEF, spec.chief.enabled, spec.chief.template, spec.chief.resources),
        (names.EVALUATOR, spec.evaluator.enabled, spec.evaluator.template, spec.evaluator.resources),
    )
    found: list[Inherited] = []
    for role, exists, template, resources in roles:
        if exists and template is None:
            found += _hidden_devices(role, resources or {})
            found += _of_role(role, copied(worker), own, has_resources=resources is not None) if has_devices else ()
    return found


def _hidden_devices(role: str, resources: Mapping[str, Any]) -> Iterator[Inherited]:
    if asked := devices.extended(resources):
        yield Inherited(
            f"spec.{role}.template",
            f"is not set: {_WHO[role]} request {asked[0]}, but run a copy of worker.template without its GPUs, with "
            "CUDA_VISIBLE_DEVICES empty, so that their programs see none. Set it.",
        )


def _of_role(
    role: str, spec: dict[str, Any], own: Mapping[str, Any] | None, *, has_resources: bool
) -> Iterator[Inherited]:
    labels = devices.kept_selectors(spec, own)
    pods.drop_devices(spec, own)
    if labels:
        kept = f"the labels {', '.join(labels)}" if len(labels) > 1 else f"the label {labels[0]}"
        yield Inherited(
            f"spec.{role}.template",
            f"is not set: {_WHO[role]} run a copy of worker.template without its GPUs, only on nodes with {kept}, as "
            "the workers do. Set it if other nodes suit.",
        )
    elif spec.get("runtimeClassName"):
        yield Inherited(
            f"spec.{role}.template",
            f"is not set: {_WHO[role]} run a copy of worker.template without its GPUs, with its runtimeClassName "
            f"{spec['runtimeClassName']}. Set it if another class suits.",
        )
    resources = pods.main_container(spec).get("resources") or {}
    requested = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    if requested and not has_resources:
        amounts = ", ".join(f"{name}: {amount}" for name, amount in sorted(requested.items()))
        yield Inherited(f"spec.{role}.resources", f"is not set: {_WHO[role]} request a worker's {amounts}. Set it.")
