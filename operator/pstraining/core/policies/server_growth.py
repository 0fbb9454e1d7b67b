"""When are parameter servers added, in mode Full of `spec.autoscaling`?

    memory    a server uses half of the largest memory limit that it may have; this limit is set first
              a node can never grant the memory that a server needs
    CPU       the busiest server has used 85 % of its CPU limit for five minutes

A server that stays holds its part of both layouts for a while, or its part and the copy that is saved. With the new
number, this needs at most 85 % of the limit; a server that is filled further could be killed by the change.

The new number is that of the Horizontal Pod Autoscaler: with it, the servers would use 30 % of the largest memory
limit, or 60 % of the CPU limit, on average.
https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/#algorithm-details

The number is kept in status.autoscaling. The next pass changes the number of servers as after a change of `ps.replicas`
(policies/grown_sizes.py, policies/resharding.py). Servers are never removed by themselves.
"""

from decimal import ROUND_CEILING, Decimal
from typing import Final

from pstraining.api import names
from pstraining.api.autoscaling import AutoscalingMode, RoleSizing
from pstraining.api.conditions import Condition, Reason
from pstraining.core import role_status
from pstraining.core.facts import Facts
from pstraining.core.policies import durability, grown_sizes
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.core.usage import RoleUsage
from pstraining.resources import sizes
from pstraining.resources.resource_requests import parse

MEMORY_SHARE: Final = Decimal("0.5")
"""Share of the largest memory limit in use from which servers are added."""
MEMORY_AIM: Final = Decimal("0.3")
"""Share of this limit that the servers shall use on average afterwards."""
CPU_AIM: Final = Decimal("0.6")
"""Share of the CPU limit that the servers shall use on average after servers were added."""


def next_number(servers: int, most: int, factor: Decimal) -> int:
    """Return the number of parameter servers that a job needs: at least one more, at most twice as many.

    Args:
        servers: the present number.
        most: the largest number that is allowed; larger than the present one.
        factor: the use of the largest or busiest server as a multiple of the use that is the aim.
    """
    needed = int((servers * factor).to_integral_value(ROUND_CEILING))
    return min(max(servers + 1, needed), 2 * servers, most)


def adapted(facts: Facts, sizing: RoleSizing, usage: RoleUsage | None, *, is_withdrawn: bool) -> RoleSizing:
    """Return the sizing of the parameter servers, with the number of servers that the job needs now.

    Args:
        facts: the facts of this pass, of a job in mode Full.
        sizing: the sizing, with the memory limit that the servers need.
        usage: the servers' resource usage; None if it is not known.
        is_withdrawn: whether this pass withdraws a larger memory limit, which a node can never grant.
    """
    servers, most = facts.resharding.current, _most(facts)
    if servers >= most:
        return sizing
    need = None if usage is None else _need(facts, sizing, usage, is_withdrawn=is_withdrawn)
    # The largest memory limit was set for this change, so the time between two changes of memory does not count.
    is_prepared = sizing.grown_from is not None or is_withdrawn
    # Servers can still be added, so the maximum of their memory needs no report.
    sizing = sizing.model_copy(update={"at_maximum": False})
    is_rested = is_prepared or grown_sizes.is_rested(sizing, facts.now)
    if need is None or not is_rested or _has_just_changed(facts) or facts.resharding.step is not ReshardingStep.STEADY:
        return sizing
    factor, cause = need
    number = next_number(servers, most, factor)
    message = f"{cause}: ps.replicas {servers} -> {number}."
    updates = {"grown_replicas": number, "grown_from": None, "grown_time": facts.timestamp, "message": message}
    return sizing.model_copy(update=updates)


def obstacle(facts: Facts) -> str:
    """Return why no server may be added; empty if one may.

    Training may resume from a checkpoint with the new number, and without one it would restart from the beginning. A
    leader that has succeeded would run again, because the new servers get the parameters from it.
    """
    if why := durability.why_lost(facts.job.spec.checkpoint):
        return why
    is_over = facts.chief.succeeded if facts.job.spec.chief.enabled else 0 in facts.succeeded_workers
    return f"{role_status.leader(facts)} has succeeded, and would run again" if is_over else ""


def is_memory_high(facts: Facts, role: str, usage: RoleUsage | None) -> bool:
    """Whether servers are to be added for memory, so that they first get the largest memory limit."""
    autoscaling = facts.job.spec.autoscaling
    largest = autoscaling.maximum(role)
    if role != names.PS or autoscaling.mode is not AutoscalingMode.FULL or usage is None or largest is None:
        return False
    limit = sizes.limit_of(facts.sizes[role].text) or Decimal(0)  # that of the spec may be larger than the maximum
    return facts.resharding.current < _most(facts) and usage.memory >= MEMORY_SHARE * max(limit, parse(largest))


def outlook(facts: Facts) -> str:
    """Return whether servers may be added, as a sentence of the condition Autoscaling; empty in other modes."""
    autoscaling = facts.job.spec.autoscaling
    if autoscaling.mode is not AutoscalingMode.FULL:
        return ""
    if why := obstacle(facts):
        return f" ps.replicas does not grow, because {why}."
    most = autoscaling.most_servers
    has_all = most is not None and facts.resharding.current >= most
    return f" ps.replicas has its maximum of {most}." if has_all else f" ps.replicas may grow to {most}."


def _most(facts: Facts) -> int:
    """Return the largest number of servers that may be given to the job; 0 if none may be added."""
    return 0 if obstacle(facts) else facts.job.spec.autoscaling.most_servers or 0


def _has_just_changed(facts: Facts) -> bool:
    """Whether the number of servers changes, or has changed within ten minutes, also by a user."""
    found = next((c for c in facts.status.conditions if c.type == Condition.RESCALING), None)
    if found is None or found.status == "True":
        return found is not None
    return found.reason == Reason.RESCALED and facts.now - found.last_transition_time < grown_sizes.REST


def _need(facts: Facts, sizing: RoleSizing, usage: RoleUsage, *, is_withdrawn: bool) -> tuple[Decimal, str] | None:
    """Return the use as a multiple of the aim, and the cause for more servers; None if they suffice."""
    size = facts.sizes[names.PS].text
    memory, cpu = sizes.limit_of(size), sizes.cpu_limit_of(size)
    if memory is not None:
        share = usage.memory / memory
        is_high = not facts.snapshot.installation.resizes_pods and share >= MEMORY_SHARE
        if sizing.at_maximum or is_high or is_withdrawn:
            used = sizes.memory_text(sizes.whole_mebibytes(Decimal(usage.memory)))
            largest = "its memory limit, and a node can grant no larger one"
            limit = largest if is_withdrawn else "the largest memory limit that it may have"
            cause = f"{usage.pod} uses {used}, {100 * share:.0f} % of {limit}"
            return max(share, MEMORY_SHARE) / MEMORY_AIM, cause
    if cpu is not None and usage.mean_cpu is not None:
        share = Decimal(usage.mean_cpu) / (1000 * cpu)
        if share >= grown_sizes.GROW_SHARE:
            used = f"{usage.mean_cpu}m, {100 * share:.0f} % of its CPU limit"
            return share / CPU_AIM, f"The busiest parameter server has used {used}, for five minutes"
    return None
