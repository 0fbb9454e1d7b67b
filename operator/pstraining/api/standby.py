"""Standbys of parameter servers: their kind, their number and their nodes."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pstraining.api.base import ApiModel
from pstraining.api.kubernetes_types import Affinity, Toleration

NodeLabel = Annotated[str, Field(max_length=63)]


class StandbyMode(StrEnum):
    """Kind of standbys."""

    NONE = "None"
    WARM = "Warm"
    HOT = "Hot"


class StandbyPlacement(ApiModel):
    """The nodes of the standbys, if they differ from those of the primaries."""

    node_selector: dict[str, NodeLabel] | None = Field(
        default=None,
        max_length=16,
        description="Labels of the standbys' nodes, instead of nodeSelector of the template. {} selects every node.",
    )
    tolerations: list[Toleration] | None = Field(
        default=None,
        max_length=32,
        description="Tolerations of the standbys (core/v1 Toleration), instead of those of the template.",
    )
    affinity: Affinity | None = Field(
        default=None,
        description="Affinity of the standbys (core/v1 Affinity), instead of that of the template. The members of a "
        "shard are always on different nodes.",
    )


class Standby(ApiModel):
    """The standbys of each shard."""

    mode: StandbyMode = Field(
        default=StandbyMode.NONE,
        description="Kind of standbys. None (default): a lost server restarts, and training resumes from the "
        "checkpoint. Warm: an idle server becomes the primary, and training resumes from the checkpoint. Hot: "
        "standbys apply every update, so no acknowledged update is lost. Hot needs pstraining.runtime and "
        "training.mode. Both need Kubernetes 1.31 or newer, and a node for each member of a shard.",
    )
    replicas_per_shard: int = Field(
        default=1,
        ge=1,
        le=4,
        description="Standbys per shard: 1 to 4 when mode is Warm, 1 or 2 when mode is Hot. Default 1.",
    )
    placement: StandbyPlacement | None = Field(
        default=None,
        description="Nodes for the standbys, such as reliable nodes if the primaries are on spot nodes. A field that "
        "is not set is that of the parameter servers' template.",
    )
