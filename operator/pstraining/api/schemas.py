"""Hand-written pieces of the CRD's schema that no model can say: opaque objects, the skeleton of a pod template.

Pod templates are opaque, so that every field of every Kubernetes version passes; the skeleton names just the fields
that the CEL rules look into, each list with a bound, because CEL's cost estimate multiplies them.
"""

from typing import Any, Final

MAX_CONTAINERS: Final = 16
MAX_ENV: Final = 128
MAX_COMMAND: Final = 256
QUANTITY_PATTERN: Final = r"^(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[kMGTPE])?$"

_PRESERVE: Final = {"x-kubernetes-preserve-unknown-fields": True}
_QUANTITIES: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": {"x-kubernetes-int-or-string": True},
}
_STRINGS: Final[dict[str, Any]] = {"type": "array", "maxItems": MAX_COMMAND, "items": {"type": "string"}}


def _replace(schema: dict[str, Any], new: dict[str, Any]) -> None:
    kept = {k: schema[k] for k in ("description", "default") if k in schema}
    schema.clear()
    schema.update(new | kept)


def opaque(schema: dict[str, Any]) -> None:
    """Any object."""
    _replace(schema, {"type": "object", **_PRESERVE})


def resources(schema: dict[str, Any]) -> None:
    """A container's resources."""
    properties = {
        "limits": {**_QUANTITIES, "description": "Upper bounds for the container, such as memory: 8Gi."},
        "requests": {**_QUANTITIES, "description": "Resources reserved for the container on its node, such as cpu: 2."},
    }
    _replace(schema, {"type": "object", "properties": properties})


def quantity(schema: dict[str, Any]) -> None:
    """A positive quantity, as a text or a whole number."""
    _replace(schema, {"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN})


def claim_template(schema: dict[str, Any]) -> None:
    """The spec of a PersistentVolumeClaim; the two fields without which none can be made are asked for."""
    properties: dict[str, Any] = {
        "accessModes": {
            "type": "array",
            "description": "Access modes of the claim, such as ReadWriteOnce.",
            "minItems": 1,
            "maxItems": 4,
            "items": {"type": "string"},
        },
        "resources": {
            "type": "object",
            "description": "Storage that the claim requests, such as {requests: {storage: 10Gi}}.",
            **_PRESERVE,
        },
    }
    _replace(
        schema, {"type": "object", "required": ["accessModes", "resources"], "properties": properties, **_PRESERVE}
    )


def exit_codes(schema: dict[str, Any]) -> None:
    """A set of exit codes."""
    schema["items"] = {"type": "integer", "minimum": 1, "maximum": 255}
    schema["x-kubernetes-list-type"] = "set"


def pod_template(schema: dict[str, Any]) -> None:
    """A pod template: opaque, but for what the rules need."""
    variable = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string", "description": "Name of the variable.", "maxLength": 256}},
        **_PRESERVE,
    }
    container = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {
                "type": "string",
                "description": "Name of the container. With several containers, the one that trains is tensorflow.",
                "maxLength": 63,
            },
            "command": {
                **_STRINGS,
                "description": "Command of the container. The training container needs one, because the launcher "
                "runs it; not with ps.server Builtin.",
            },
            "args": {**_STRINGS, "description": "Arguments of the command."},
            "env": {
                "type": "array",
                "description": "Environment variables. TF_CONFIG and most names that start with PSTRAINING_ belong to "
                "the operator and are refused.",
                "maxItems": MAX_ENV,
                "items": variable,
            },
        },
        **_PRESERVE,
    }
    spec = {
        "type": "object",
        "description": "Pod spec (core/v1 PodSpec). Every field of a pod is accepted except hostNetwork and "
        "restartPolicy; see `kubectl explain pod.spec`.",
        "required": ["containers"],
        "properties": {
            "containers": {
                "type": "array",
                "description": "Containers of the pod, as in a core/v1 PodSpec.",
                "minItems": 1,
                "maxItems": MAX_CONTAINERS,
                "items": container,
            },
            "hostNetwork": {"type": "boolean", "description": "Not supported: true is refused."},
            "restartPolicy": {
                "type": "string",
                "description": "Not supported. Use restartPolicy of the role.",
                "maxLength": 32,
            },
        },
        **_PRESERVE,
    }
    metadata = {"type": "object", "description": "Labels and annotations of the pods.", **_PRESERVE}
    _replace(
        schema,
        {"type": "object", "required": ["spec"], "properties": {"metadata": metadata, "spec": spec}, **_PRESERVE},
    )


def map_list(*keys: str) -> Any:
    """A list whose items these fields identify."""

    def extend(schema: dict[str, Any]) -> None:
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = list(keys)

    return extend


def atomic_list(most: int) -> Any:
    """A bounded list that one writer replaces as a whole: managedFields has one entry for it, not one for each item."""

    def extend(schema: dict[str, Any]) -> None:
        schema["x-kubernetes-list-type"] = "atomic"
        schema["maxItems"] = most

    return extend
