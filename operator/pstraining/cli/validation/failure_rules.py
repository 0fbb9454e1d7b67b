"""Rules of spec.failurePolicy that decide no failure of the job. All findings are warnings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pstraining.api import contract
from pstraining.api.run_policy import FailureAction, FailurePolicy, FailureReason, FailureRule, RunPolicy
from pstraining.cli.validation.schema import Finding, Severity
from pstraining.core.policies.failures import matches

Failure = tuple[str, FailureReason, int | None]
"""The role, the cause and the exit code of a failure; without a code if there is no end of a container."""
_CODES: Final = {
    FailureReason.START_TIMEOUT: contract.EXIT_START_TIMEOUT,
    FailureReason.BAD_SETTINGS: contract.EXIT_BAD_SETTINGS,
}
"""Causes that have one exit code. The cause Error has all others."""


def without_effect(of_job: Mapping[str, Any], roles: Sequence[str]) -> Iterator[Finding]:
    """Yield the rules that decide nothing, and a number of restarts of the job that no rule requests.

    Args:
        of_job: the spec of a job without errors and nulls.
        roles: the roles of the job.
    """
    rules = FailurePolicy.model_validate(of_job.get("failurePolicy") or {}).rules
    failures, decided = list(_failures(rules, roles)), set[Failure]()
    for index, rule in enumerate(rules):
        own = {failure for failure in failures if matches(rule, *failure)}
        if message := _problem(rule, own, decided, roles):
            yield Finding(f"spec.failurePolicy.rules[{index}]", message, Severity.WARNING)
        decided |= own
    most, default = (of_job.get("runPolicy") or {}).get("maxRestarts"), RunPolicy().max_restarts
    if most not in (None, default) and not any(rule.action is FailureAction.RESTART_JOB for rule in rules):
        message = f"is {most}, but no rule of spec.failurePolicy restarts the job; add one with action RestartJob, or "
        yield Finding("spec.runPolicy.maxRestarts", f"{message}remove it", Severity.WARNING)


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
