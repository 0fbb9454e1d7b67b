"""Hand-written parts of the CRD's schema that models cannot express: opaque objects and the skeleton of pod templates.

Pod templates are opaque, so that every field of every Kubernetes version passes. The skeleton has only the fields that
the CEL rules read. Each list has a bound, because CEL's cost estimate multiplies them.
"""

from typing import Any, Final

MAX_CONTAINERS: Final = 16
MAX_ENV: Final = 128
MAX_COMMAND: Final = 256
QUANTITY_PATTERN: Final = r"^(\d*[1-9]\d*\.?\d*|\d*\.\d*[1-9]\d*)([eE][+-]?\d+|[KMGTPE]i|[kMGTPE])?$"

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
    """Replace a schema with that of any object."""
    _replace(schema, {"type": "object", **_PRESERVE})


def resources(schema: dict[str, Any]) -> None:
    """Replace a schema with that of a container's resources."""
    properties = {
        "limits": {**_QUANTITIES, "description": "Upper bounds for the container, such as memory: 8Gi."},
        "requests": {**_QUANTITIES, "description": "Resources reserved for the container on its node, such as cpu: 2."},
    }
    _replace(schema, {"type": "object", "properties": properties})


def quantity(schema: dict[str, Any]) -> None:
    """Replace a schema with that of a positive quantity, as a text or a whole number."""
    _replace(schema, {"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "minimum": 1})


def claim_template(schema: dict[str, Any]) -> None:
    """Replace a schema with that of a PersistentVolumeClaim's spec with its two required fields."""
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
    """Extend a schema to that of a set of exit codes."""
    schema["items"] = {"type": "integer", "minimum": 1, "maximum": 255}
    schema["x-kubernetes-list-type"] = "set"


def pod_template(schema: dict[str, Any]) -> None:
    """Replace a schema with that of a pod template: opaque, except for the fields that the CEL rules read."""
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
            "hostNetwork": {
                "type": "boolean",
                "description": "Must be false or absent: host networking is not supported.",
            },
            "restartPolicy": {
                "type": "string",
                "description": "Must be absent: use restartPolicy of the role.",
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
    """Return an extension for a list whose items are identified by these fields."""

    def extend(schema: dict[str, Any]) -> None:
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = list(keys)

    return extend


def atomic_list(most: int) -> Any:
    """Return an extension for a bounded list that one writer replaces as a whole, without managedFields per item."""

    def extend(schema: dict[str, Any]) -> None:
        schema["x-kubernetes-list-type"] = "atomic"
        schema["maxItems"] = most

    return extend
