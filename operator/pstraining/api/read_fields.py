"""Types of the fields that the operator reads in Kubernetes' own objects.

The CRD's schema does not check these objects, so that every field of every Kubernetes version passes. A wrong type in a
field that the operator reads makes the job unreadable: its condition InvalidTemplate names the field.
"""

import re
from typing import Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pstraining.api.values import path_of

WRONG_TYPE: Final = "kubernetes_type"
"""The type of errors about these fields, in pydantic's errors."""
_CLASS: Final = re.compile(r" or instance of \w+")

_Object = dict[str, Any]
_Objects = list[_Object]


class _ReadFields(BaseModel):
    """The fields of one kind of object; the others are ignored."""

    model_config = ConfigDict(alias_generator=to_camel)


class _Metadata(_ReadFields):
    labels: _Object = {}
    annotations: _Object = {}


class ReadResources(_ReadFields):
    """A container's or a pod's resources."""

    limits: _Object = {}
    requests: _Object = {}


class _Capabilities(_ReadFields):
    add: list[Any] = []


class _ContainerSecurity(_ReadFields):
    capabilities: _Capabilities | None = None


class _Port(_ReadFields):
    container_port: int | None = None


class _Container(_ReadFields):
    resources: ReadResources | None = None
    security_context: _ContainerSecurity | None = None
    ports: list[_Port] = []
    resize_policy: _Objects = []
    volume_mounts: _Objects = []
    volume_devices: _Objects = []
    env: _Objects = []
    command: list[Any] = []
    args: list[Any] = []


class _PodAntiAffinity(_ReadFields):
    required_during_scheduling_ignored_during_execution: _Objects = []
    preferred_during_scheduling_ignored_during_execution: _Objects = []


class ReadAffinity(_ReadFields):
    """A pod's affinity."""

    pod_anti_affinity: _PodAntiAffinity | None = None


class _PodSpec(_ReadFields):
    containers: list[_Container] = []
    init_containers: list[_Container] = []
    volumes: _Objects = []
    tolerations: _Objects = []
    affinity: ReadAffinity | None = None
    security_context: _Object = {}
    resources: ReadResources | None = None
    overhead: _Object = {}


class ReadTemplate(_ReadFields):
    """A pod template."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


def must(message: str) -> str:
    """Return a message of pydantic's about a wrong type or value in the words of ours."""
    return _CLASS.sub("", message).replace("Input should", "must")


def read_as(kind: type[BaseModel]) -> AfterValidator:
    """Return a validator that checks an object's types and leaves the object unchanged.

    Args:
        kind: the model with the fields to check; others pass.
    """

    def checked(value: _Object) -> _Object:
        try:
            kind.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            context = {"path": path_of(first["loc"]), "must": must(first["msg"])}
            raise PydanticCustomError(WRONG_TYPE, "{path} {must}", context) from error
        return value

    return AfterValidator(checked)
