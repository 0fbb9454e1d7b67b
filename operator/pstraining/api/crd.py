"""Generates the CustomResourceDefinition from the models: `python -m pstraining.api.crd > crds/...yaml`.

pydantic's JSON schema is converted to the structural schema that Kubernetes requires: references are inlined, titles
and null defaults removed. Constructs that a structural schema cannot express raise an error at generation.
"""

import sys
from functools import cache
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pstraining.api import autoscaling, cel_rules, names
from pstraining.api.models import PSTrainingJobSpec
from pstraining.api.status import PSTrainingJobStatus

_DROPPED = ("title", "$defs", "discriminator")


class _Structural(GenerateJsonSchema):
    """Optional fields may be absent, but not null, because nullable fields break merge patches and apply."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        inner: JsonSchemaValue = self.generate_inner(schema["schema"])
        return inner


def structural(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Convert a JSON schema to a structural schema.

    Raises:
        ValueError: the schema has constructs that a CRD does not allow (tuples, unions of objects, floats).
    """
    converted: JsonSchemaValue = _convert(schema, schema.get("$defs", {}))
    return converted


def _convert(node: Any, definitions: dict[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        siblings = {k: v for k, v in node.items() if k != "$ref"}
        return _convert({**target, **siblings}, definitions)
    if "allOf" in node and len(node["allOf"]) == 1:
        siblings = {k: v for k, v in node.items() if k != "allOf"}
        return _convert({**node["allOf"][0], **siblings}, definitions)
    for refused in ("prefixItems", "anyOf", "oneOf"):
        if refused in node:
            raise ValueError(f"a CRD schema cannot contain {refused}: {node}")
    if node.get("type") == "number":
        raise ValueError(f"no floats in a CRD: {node}")
    out = {k: v for k, v in node.items() if k not in _DROPPED and not (k == "default" and v is None)}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if out.get("additionalProperties") in (True, False):
        del out["additionalProperties"]
    if "properties" in out:
        out["properties"] = {k: _convert(v, definitions) for k, v in out["properties"].items()}
    if isinstance(out.get("items"), dict):
        out["items"] = _convert(out["items"], definitions)
    if out.get("type") == "integer":
        out["format"] = "int64"
    return out


def _shorten(node: Any) -> Any:
    """Set the defaults of nested models to {}, so that each level has its own defaults and the CRD stays readable."""
    if isinstance(node, dict):
        if node.get("type") == "object" and isinstance(node.get("default"), dict):
            node["default"] = {}
        for value in node.values():
            _shorten(value)
    return node


def _at(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    for step in path:
        schema = schema["properties"][step]
    return schema


def _attach(schema: dict[str, Any], rule_list: list[cel_rules.Rule]) -> None:
    schema.setdefault("x-kubernetes-validations", []).extend(rule_list)


def _spec_schema() -> dict[str, Any]:
    spec = structural(PSTrainingJobSpec.model_json_schema(by_alias=True, schema_generator=_Structural))
    for role in (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR):
        pod_spec = _at(spec, role, "template", "spec")
        _attach(pod_spec, cel_rules.pod_spec(f"spec.{role}.template.spec"))
        if role != names.PS:
            _attach(pod_spec, cel_rules.command(f"spec.{role}.template.spec"))
    _attach(spec, cel_rules.spec())
    _attach(_at(spec, "ps"), cel_rules.ps())
    _attach(_at(spec, "worker"), cel_rules.worker())
    _attach(_at(spec, "checkpoint"), cel_rules.checkpoint())
    _attach(_at(spec, "training"), cel_rules.training())
    _attach(_at(spec, "autoscaling"), autoscaling.rules())
    _attach(_at(spec, "runPolicy", "schedulingPolicy"), cel_rules.scheduling_policy())
    shortened: dict[str, Any] = _shorten(spec)
    return shortened


def _status_schema() -> dict[str, Any]:
    status = structural(PSTrainingJobStatus.model_json_schema(by_alias=True, schema_generator=_Structural))
    _drop_defaults(status)
    return status


def _drop_defaults(node: Any) -> None:
    """Remove defaults from status, which the operator writes completely. Keys of lists keep theirs, as required."""
    if isinstance(node, dict):
        if "type" in node and "default" in node:
            del node["default"]
        items = (node.get("items") or {}).get("properties") or {}
        keys = {k: items[k]["default"] for k in node.get("x-kubernetes-list-map-keys", ()) if "default" in items[k]}
        for value in node.values():
            _drop_defaults(value)
        for key, default in keys.items():
            items[key]["default"] = default


def _columns() -> list[dict[str, Any]]:
    def column(name: str, path: str, description: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
        extra = {"priority": priority} if priority else {}
        return {"name": name, "type": kind, "jsonPath": path, "description": description, **extra}

    return [
        column("State", ".status.phase", "Summary of the job's conditions."),
        column("PS", ".status.ps.summary", "Ready and desired parameter servers."),
        column("Workers", ".status.worker.summary", "Ready and desired workers."),
        column("Step", ".status.training.step", "Parameter updates so far.", "integer"),
        column("Progress", ".status.training.progressPercentage", "Share of training that is done, in %.", "integer"),
        column("Loss", ".status.training.loss", "Mean loss of all workers over the last seconds."),
        column("Restarts", ".status.restarts", "Number of replica restarts, for any reason.", "integer"),
        column("Age", ".metadata.creationTimestamp", "Time since the job was created.", "date"),
        column("Rate", ".status.training.samplesPerSecond", "Samples per second of all workers.", "string", 1),
        column("ETA", ".status.training.estimatedRemainingSeconds", "Estimated seconds until the end.", "integer", 1),
        column("Term", ".status.term", "Number of the chief's newest attempt.", "integer", 1),
        column("Standbys", ".status.standbySummary", "Ready and desired standbys.", "string", 1),
        column("Takeovers", ".status.takeovers", "Number of failovers and switchovers.", "integer", 1),
        column(
            "Reason", '.status.conditions[?(@.type=="Running")].reason', "Reason of the condition Running.", "string", 1
        ),
    ]


@cache
def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as a dict for the API server. All callers share it, so change only a copy."""
    schema = {
        "type": "object",
        "description": "Training of one TensorFlow model with parameter servers.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # The bound is Kubernetes' own; without it CEL's cost estimate of the rules on the name is unbounded.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": _spec_schema(),
            "status": _status_schema(),
        },
        "x-kubernetes-validations": cel_rules.root(),
    }
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.worker.replicas",
                "statusReplicasPath": ".status.worker.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": _columns(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def main() -> None:
    """Write the CRD to standard output."""
    # Imported here, because this package does not need YAML at run time.
    import yaml

    sys.stdout.write("# Generated by `make generate` from operator/pstraining/api: do not edit.\n")
    # No aliases, for readability.
    yaml.Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]
    yaml.dump(custom_resource_definition(), sys.stdout, sort_keys=False, width=120)


if __name__ == "__main__":
    main()
