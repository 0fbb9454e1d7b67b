"""Rules of spec.failurePolicy that decide no failure of the job. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pstraining.api import contract
from pstraining.api.models import PSTrainingJobSpec
from pstraining.api.run_policy import FailureAction, FailurePolicy, FailureReason, FailureRule, RunPolicy
from pstraining.core.policies.failures import matches

Failure = tuple[str, FailureReason, int | None]
"""The role, the cause and the exit code of a failure; without a code if there is no end of a container."""
_CODES: Final = {
    FailureReason.START_TIMEOUT: contract.EXIT_START_TIMEOUT,
    FailureReason.BAD_SETTINGS: contract.EXIT_BAD_SETTINGS,
}
"""Causes that have one exit code. The cause Error has all others."""


@dataclass(frozen=True)
class Ineffective:
    """A field that has no effect, or cannot work, together with other fields."""

    field: str
    message: str
    """The problem and what to do, as a predicate whose subject is the field."""


def found(spec: PSTrainingJobSpec, roles: Sequence[str]) -> Iterator[Ineffective]:
    """Yield the rules that decide nothing, and a number of restarts of the job that no rule requests.

    Args:
        spec: the spec of a job.
        roles: the roles of the job.
    """
    rules = spec.failure_policy.rules
    if rules:
        yield from _idle(spec.failure_policy.model_dump_json(by_alias=True), tuple(roles))
    most = spec.run_policy.max_restarts
    if most != RunPolicy().max_restarts and not any(rule.action is FailureAction.RESTART_JOB for rule in rules):
        message = f"is {most}, but no rule of spec.failurePolicy restarts the job; add one with action RestartJob, or "
        yield Ineffective("spec.runPolicy.maxRestarts", f"{message}remove it")


@lru_cache(maxsize=256)
def _idle(policy: str, roles: Sequence[str]) -> tuple[Ineffective, ...]:
    """Return the rules that decide nothing. Many rules take milliseconds, and every pass asks.

    Args:
        policy: the failure policy, as JSON.
        roles: the roles of the job.
    """
    rules = FailurePolicy.model_validate_json(policy).rules
    failures, decided, idle = list(_failures(rules, roles)), set[Failure](), list[Ineffective]()
    for index, rule in enumerate(rules):
        own = {failure for failure in failures if matches(rule, *failure)}
        if message := _problem(rule, own, decided, roles):
            idle.append(Ineffective(f"spec.failurePolicy.rules[{index}]", message))
        decided |= own
    return tuple(idle)


def _problem(rule: FailureRule, own: set[Failure], decided: set[Failure], roles: Sequence[str]) -> str:
    """Return why a rule decides nothing; empty if it may decide.

    Args:
        rule: the rule.
        own: the failures that it matches.
        decided: the failures that earlier rules match.
        roles: the roles of the job.
    """
    if rule.role is not None and rule.role not in roles:
        return f"matches no failure: the job has no {rule.role}; remove it"
    if not own:
        codes = ", ".join(f"{code} is {reason}" for reason, code in _CODES.items())
        return (
            f"matches no failure: none of its reasons occurs with these exit codes ({codes}, and pods that Kubernetes "
            "ends have none); change it"
        )
    return "" if own - decided else "decides nothing: earlier rules match all of its failures; move it up, or remove it"


def _failures(rules: Sequence[FailureRule], roles: Sequence[str]) -> Iterator[Failure]:
    """Yield failures of all kinds that the rules can distinguish."""
    named = {code for rule in rules if rule.exit_codes for code in rule.exit_codes.values} | {*_CODES.values()}
    others = [code for code in range(1, 256) if code not in named][:1]
    for role in roles:
        for reason in FailureReason:
            if (only := _CODES.get(reason)) is not None:
                yield role, reason, only
                continue
            left = {*_CODES.values()} if reason is FailureReason.ERROR else set()
            for code in (None, *sorted(named - left), *others):
                yield role, reason, code
