"""Parts of Kubernetes' own objects in the API: opaque to the models, so that every field of every version passes.

Only the types of the fields that the operator reads are checked; see `read_fields`.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pstraining.api import schemas
from pstraining.api.nulls import without_nulls
from pstraining.api.read_fields import ReadAffinity, ReadResources, ReadTemplate, read_as

_Kubernetes = Annotated[dict[str, Any], BeforeValidator(without_nulls)]
"""Part of one of Kubernetes' own objects."""
PodTemplate = Annotated[_Kubernetes, read_as(ReadTemplate), Field(json_schema_extra=schemas.pod_template)]
"""A pod template, opaque but for a skeleton of its containers."""
Resources = Annotated[_Kubernetes, read_as(ReadResources), Field(json_schema_extra=schemas.resources)]
"""A container's resources: limits and requests."""
VolumeSource = Annotated[_Kubernetes, Field(json_schema_extra=schemas.opaque)]
Toleration = Annotated[_Kubernetes, Field(json_schema_extra=schemas.opaque)]
Affinity = Annotated[_Kubernetes, read_as(ReadAffinity), Field(json_schema_extra=schemas.opaque)]
ClaimTemplate = Annotated[_Kubernetes, Field(json_schema_extra=schemas.claim_template)]
