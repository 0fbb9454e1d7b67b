"""Sizes that follow from measurements: `spec.autoscaling`, and the operator's report of them in status."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from pstraining.api import names, schemas
from pstraining.api.base import ApiModel
from pstraining.api.cel_rules import Rule

Quantity = Annotated[str, BeforeValidator(str), Field(json_schema_extra=schemas.quantity)]
"""A positive quantity, such as 8Gi, as a text or a number."""


class AutoscalingMode(StrEnum):
    """Use of the measurements."""

    OFF = "Off"
    RECOMMEND = "Recommend"
    GROW = "Grow"
    FULL = "Full"


class SizedRole(StrEnum):
    """The roles, by their names in the spec."""

    PS = names.PS
    WORKER = names.WORKER
    CHIEF = names.CHIEF
    EVALUATOR = names.EVALUATOR


class MaxAllowed(ApiModel):
    """The upper bounds of a role's size."""

    memory: Quantity = Field(
        description="Largest memory limit that Grow and Full give to the training container of each pod of the role, "
        "such as 16Gi. A larger limit in the spec still applies."
    )


class RolePolicy(ApiModel):
    """Growth of the pods of one role."""

    role: SizedRole = Field(description="Role whose pods may grow: ps, worker, chief or evaluator.")
    max_allowed: MaxAllowed = Field(description="Upper bounds of the size of a pod.")
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Largest number of parameter servers that Full gives to the job; role ps alone has it. A larger "
        "ps.replicas still applies.",
    )


class Autoscaling(ApiModel):
    """Measures the pods, recommends sizes for them, and lets their memory grow."""

    mode: AutoscalingMode = Field(
        default=AutoscalingMode.OFF,
        description="Use of the measurements. Off (default): nothing is measured. Recommend: status.autoscaling has "
        "the measured peaks and the sizes that follow from them. Grow: as Recommend. For the roles in rolePolicies, "
        "memory also grows in place at 85 % of its limit, and doubles after an OOM kill. Full: as Grow. Parameter "
        "servers are added, too.",
    )
    role_policies: list[RolePolicy] = Field(
        default_factory=list,
        max_length=4,
        json_schema_extra=schemas.map_list("role"),
        description="Roles whose memory may grow in modes Grow and Full, each with its maximum.",
    )

    def maximum(self, role: str) -> str | None:
        """Return the largest memory limit that may be given to a role; None if the role does not grow."""
        return next((policy.max_allowed.memory for policy in self.role_policies if policy.role == role), None)

    @property
    def most_servers(self) -> int | None:
        """The largest number of parameter servers that may be given to the job; None if their number stays."""
        return next((policy.max_replicas for policy in self.role_policies if policy.role == SizedRole.PS), None)

    @property
    def grows(self) -> bool:
        """Whether memory may grow."""
        return self.mode in (AutoscalingMode.GROW, AutoscalingMode.FULL)


class RoleSizing(ApiModel):
    """Measurements of one role, and the sizes that follow from them. Each figure is that of the role's largest pod."""

    role: str = Field(description="Role of the pods.")
    peak_memory: str | None = Field(
        default=None,
        description="Largest working set that was measured, as a quantity. It is written when it has risen by 10 %.",
    )
    recommended_memory: str | None = Field(default=None, description="Recommended memory limit: the peak plus 20 %.")
    recommended_cpu: str | None = Field(
        default=None,
        alias="recommendedCPU",
        description="Recommended CPU request: the 95th percentile of the last hour. It is written when it has changed "
        "by 10 %.",
    )
    grown_memory: str | None = Field(
        default=None,
        description="Memory limit that Grow or Full has set; it applies while it is larger than that of the spec.",
    )
    grown_replicas: int | None = Field(
        default=None,
        description="Number of parameter servers that Full has set; it applies while it is larger than ps.replicas.",
    )
    grown_from: str | None = Field(default=None, description="Memory limit before the last change.")
    grown_time: datetime | None = Field(default=None, description="Time of the last change.")
    message: str = Field(default="", description="Reason of the last change, or of its failure.")
    at_maximum: bool = Field(default=False, description="Marks a role that needs more memory than maxAllowed allows.")


def rules() -> list[Rule]:
    """Return the rules on spec.autoscaling."""
    return [
        {
            "rule": "!has(self.mode) || self.mode != 'Grow' || (has(self.rolePolicies) && "
            "self.rolePolicies.size() > 0)",
            "message": "spec.autoscaling.rolePolicies: mode Grow needs the maximum of at least one role, such as "
            "{role: ps, maxAllowed: {memory: 16Gi}}; add it, or set spec.autoscaling.mode to Recommend",
            "fieldPath": ".rolePolicies",
        },
        {
            "rule": "!has(self.mode) || self.mode != 'Full' || (has(self.rolePolicies) && "
            "self.rolePolicies.exists(p, p.role == 'ps' && has(p.maxReplicas)))",
            "message": "spec.autoscaling.rolePolicies: mode Full needs maxReplicas of role ps, such as "
            "{role: ps, maxAllowed: {memory: 16Gi}, maxReplicas: 8}; add it, or set spec.autoscaling.mode to Grow",
            "fieldPath": ".rolePolicies",
        },
        {
            "rule": "!has(self.rolePolicies) || self.rolePolicies.all(p, p.role == 'ps' || !has(p.maxReplicas))",
            "message": "spec.autoscaling.rolePolicies: only role ps may have maxReplicas, because only parameter "
            "servers are added; remove it from the other roles",
            "fieldPath": ".rolePolicies",
        },
    ]
