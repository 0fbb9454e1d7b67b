"""The generated CRD is structural, current and as its users expect it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import V1CustomResourceDefinition
from pydantic import BaseModel

from hack.docs.reference import fields
from pstraining.api.cel_rules import FIXED_WHILE_RUNNING, FREE_WITH_HOT_STANDBYS
from pstraining.api.crd import custom_resource_definition, structural
from pstraining.api.models import PSTrainingJobSpec

CRD = custom_resource_definition()
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
FILE = Path(__file__).parents[3] / "crds" / "pstraining.dev_pstrainingjobs.yaml"


def nodes(schema: dict[str, Any], path: str = "") -> Any:
    yield path, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[{key}]")


def test_the_committed_file_is_the_generated_one() -> None:
    assert yaml.load(FILE.read_text(), Loader=yaml.CSafeLoader) == CRD, "run `make generate`"


def test_the_crd_passes_the_clients_strict_model() -> None:
    V1CustomResourceDefinition.model_validate(CRD)


def test_the_crd_is_structural() -> None:
    forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "title", "nullable", "exclusiveMinimum"}
    for path, node in nodes(SCHEMA):
        assert not forbidden & node.keys(), path
        assert node.get("type") or node.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_keys_of_lists_are_always_present() -> None:
    """Keys of lists are always present, because the API server rejects the CRD otherwise."""
    for path, node in nodes(SCHEMA):
        for key in node.get("x-kubernetes-list-map-keys", ()):
            items = node["items"]
            assert key in items.get("required", ()) or "default" in items["properties"][key], f"{path}: {key}"


def test_the_crd_is_small_enough_for_client_side_apply() -> None:
    """The annotation with the last applied object has no indentation. All annotations may have 256 KiB."""
    applied = json.dumps(yaml.load(FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader), separators=(",", ":"))
    assert len(applied.encode()) < 262144 // 2


def test_every_field_is_described() -> None:
    """`kubectl explain` describes every field except those of every Kubernetes object."""
    for path, node, _ in fields({"properties": {p: SCHEMA["properties"][p] for p in ("spec", "status")}}):
        assert len(node.get("description", "")) > 8, path


def test_every_level_of_the_smallest_job_is_defaulted() -> None:
    properties = SCHEMA["properties"]["spec"]["properties"]
    for name in ("chief", "training", "runPolicy"):
        assert properties[name]["default"] == {}
    assert properties["chief"]["properties"]["enabled"]["default"] is True
    assert "default" not in properties["checkpoint"]


@pytest.mark.parametrize("path", [*FIXED_WHILE_RUNNING, *FREE_WITH_HOT_STANDBYS])
def test_a_rule_that_reads_a_field_knows_whether_it_may_be_absent(path: str) -> None:
    """A rule that reads an optional field checks its presence. An evaluation error would reject every update of the
    object, including the operator's status.
    """
    node, always_there = SCHEMA["properties"]["spec"], True
    for part in path.rstrip("?").split("."):
        always_there = part in node.get("required", ()) or "default" in node["properties"][part]
        node = node["properties"][part]
    assert always_there != path.endswith("?")


def test_defaults_of_schema_and_models_agree() -> None:
    """Defaults of the schema and of the models agree: the API server fills in what the operator would assume."""
    template = {"spec": {"containers": [{"name": "c", "command": ["x"]}]}}
    spec = PSTrainingJobSpec.model_validate({"ps": {"replicas": 1}, "worker": {"replicas": 1, "template": template}})
    dumped = spec.model_dump(by_alias=True, mode="json")
    for path, node in nodes(SCHEMA["properties"]["spec"]):
        if "default" in node and node["default"] != {} and "checkpoint" not in path and "[items]" not in path:
            found: Any = dumped
            for step in path.strip(".").split("."):
                found = found[step]
            assert found == node["default"], path


class _Floats(BaseModel):
    ratio: float


class _Pairs(BaseModel):
    pair: tuple[int, int]


class _Either(BaseModel):
    either: _Floats | _Pairs


@pytest.mark.parametrize("model", [_Floats, _Pairs, _Either])
def test_a_model_that_a_crd_cannot_express_is_rejected(model: type[BaseModel]) -> None:
    with pytest.raises(ValueError, match="CRD"):
        structural(model.model_json_schema())
