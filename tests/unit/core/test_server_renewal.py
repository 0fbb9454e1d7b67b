"""The hot standbys and primaries that are replaced next, by one observation, and the progress of the update."""

from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import StatusCondition
from pstraining.core.actions import Delete, Kind, Outcome, Replace, Verdict
from pstraining.core.policies.rolling_update import deletions, progress, replacements
from pstraining.core.snapshot import Child, Container, Pod
from pstraining.resources.standbys import server_template
from tests.support.builders import NOW, job, typed
from tests.support.snapshots import a_child, a_pod, facts_of

SPEC: dict[str, Any] = {"ps": {"replicas": 2, "standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}}
NONE: dict[str, Any] = {"ps": {"replicas": 2, "standby": {"mode": "None"}}}
NEW = server_template(typed(job(spec=SPEC)))


def servers(template: Any, name: str = "digits-ps", **more: Any) -> Child:
    annotations = None if template is None else {names.ANNOTATION_SERVER_TEMPLATE: template}
    template = {"metadata": {"annotations": annotations}} if template != "none" else None
    return a_child(Kind.STATEFUL_SET, name, spec={"template": template}, **more)


def server(member: int, index: int, template: str = "old", **more: Any) -> Pod:
    name = f"digits-{'standby' if member else 'ps'}-{index}"
    known = {"name": name, "uid": name, "member": member, "server_template": template}
    return a_pod(names.PS, index, "n", **known | more)


def all_but(*others: Pod) -> Iterator[Pod]:
    """Return the four servers, with some of them as given."""
    given = {each.name: each for each in others}
    for member in (0, 1):
        for index in (0, 1):
            found = server(member, index)
            yield given.get(found.name, found)


def due(*seen: Pod | Child, spec: dict[str, Any] = SPEC) -> list[str]:
    found = list(deletions(facts_of(spec, *seen)))
    assert all(each == Delete(Kind.POD, each.name, each.name, Reason.SPEC_CHANGED) for each in found)
    return [each.name for each in found]


CURRENT = (servers(NEW), servers(NEW, "digits-standby"))
STOPPED: dict[str, Any] = {"container": Container(), "ready": False}
UNREADY: dict[str, Any] = {"ready": False}
DUE: dict[str, tuple[tuple[Pod, ...], list[str]]] = {
    "a standby first": ((), ["digits-standby-0"]),
    "the other standby": ((server(1, 0, NEW),), ["digits-standby-1"]),
    "a primary": ((server(1, 0, NEW), server(1, 1, NEW)), ["digits-ps-0"]),
    "the last": ((server(1, 0, NEW), server(1, 1, NEW), server(0, 0, NEW)), ["digits-ps-1"]),
    "nobody": (tuple(server(m, i, NEW) for m in (0, 1) for i in (0, 1)), []),
    "nobody while a current one learns": ((server(1, 0, NEW, **UNREADY),), []),
    "nobody while an outdated one learns": ((server(1, 1, **UNREADY),), []),
    "nobody while one goes": ((server(1, 0, NEW, deleting=True),), []),
    "at once one that does not run": ((server(1, 1, **STOPPED),), ["digits-standby-1"]),
    "at once all that do not run": (
        (server(0, 1, **STOPPED), server(1, 1, **STOPPED)),
        ["digits-ps-1", "digits-standby-1"],
    ),
    "not one that runs as it is to": ((server(1, 1, NEW, **STOPPED),), []),
    "not again one that goes": ((server(1, 1, deleting=True, **STOPPED),), []),
    "not one that has ended": ((server(1, 1, phase="Failed", **STOPPED),), []),
    "not one of an unknown template": (tuple(server(m, i, "") for m in (0, 1) for i in (0, 1)), []),
    "the primary of the moment last": (
        (server(1, 0, NEW), server(1, 1, NEW), server(0, 1, NEW)),
        ["digits-ps-0"],
    ),
}


@pytest.mark.parametrize("who", DUE)
def test_one_server_at_a_time_standbys_first(who: str) -> None:
    others, expected = DUE[who]
    assert due(*CURRENT, *all_but(*others)) == expected


def test_the_higher_member_and_the_lower_shard_are_replaced_first() -> None:
    spec = {**SPEC, "ps": {"replicas": 2, "standby": {"mode": "Hot", "replicasPerShard": 2}}}
    third = [server(2, i, name=f"digits-standby-2-{i}", uid=f"digits-standby-2-{i}") for i in (0, 1)]
    assert due(*CURRENT, *all_but(), *third, spec=spec) == ["digits-standby-2-0"]
    assert due(*CURRENT, *all_but(), spec=spec) == [], "a member has no pod"


def test_no_server_is_replaced_before_the_template_is_updated() -> None:
    for first in (servers("old"), servers(NEW), servers(""), servers(None), servers("none")):
        assert bool(due(first, CURRENT[1], *all_but())) is (first != servers("old"))


def test_servers_without_hot_standbys_stay() -> None:
    outdated = server(0, 0, **STOPPED)
    assert due(*CURRENT, outdated) == ["digits-ps-0"]
    assert due(outdated, spec=NONE) == []


def condition(
    reason: Reason, generation: int = 1, status: str = "False", kind: Any = Condition.UPDATING
) -> StatusCondition:
    return StatusCondition(
        type=kind, status=status, reason=reason, message="", last_transition_time=NOW, observed_generation=generation
    )


REFUSED = condition(Reason.UPDATE_REFUSED)


@pytest.mark.parametrize(
    ("current", "wanted", "stored", "replaced"),
    [
        ("old", NEW, (), True),
        (NEW, NEW, (), False),
        (None, NEW, (), False),
        ("none", NEW, (), False),
        ("old", None, (), False),
        ("old", NEW, (REFUSED,), False),
        ("old", NEW, (condition(Reason.UPDATE_REFUSED, 0),), True),
        ("old", NEW, (condition(Reason.SERVERS_UPDATED),), True),
        ("old", NEW, (condition(Reason.UPDATE_REFUSED, kind=Condition.RUNNING),), True),
        ("old", NEW, (condition(Reason.SERVERS_UPDATED, kind=Condition.RUNNING), REFUSED), False),
    ],
)
def test_a_template_is_replaced_unless_it_was_rejected(
    current: Any, wanted: Any, stored: tuple[StatusCondition, ...], replaced: bool
) -> None:
    child, made = servers(current, uid="7"), servers(wanted).manifest
    facts = facts_of(SPEC, conditions=[each.model_dump(by_alias=True, mode="json") for each in stored])
    parts = {"/spec/template": made["spec"]["template"]}
    expected = [Replace(Kind.STATEFUL_SET, "digits-ps", "7", parts, Reason.SPEC_CHANGED)] if replaced else []
    assert list(replacements(facts, child, made)) == expected


def test_an_object_without_a_template_is_not_replaced() -> None:
    service = a_child(Kind.SERVICE, "digits-hs")
    assert list(replacements(facts_of(SPEC), service, {"kind": "Service"})) == []


RUNS = condition(Reason.REPLACING_SERVERS, status="True")
WORDS = (
    "parameter servers are in sync and created from the current spec.ps; "
    "they are replaced one at a time, standbys first."
)
DONE = tuple(server(m, i, NEW) for m in (0, 1) for i in (0, 1))
STEPS: dict[str, tuple[tuple[Pod | Child, ...], StatusCondition | None, tuple[bool, str, str] | None]] = {
    "one is outdated": ((*CURRENT, *all_but(*DONE[1:])), None, (True, "ReplacingServers", f"3 of 4 {WORDS}")),
    "one learns": ((*CURRENT, *DONE[1:]), RUNS, (True, "ReplacingServers", f"3 of 4 {WORDS}")),
    "one learns that was replaced for another reason": (
        (*CURRENT, *DONE[1:]),
        condition(Reason.SERVERS_UPDATED),
        (False, "ServersUpdated", ""),
    ),
    "a template is to be replaced": ((servers("old"), *DONE), None, (True, "ReplacingServers", f"4 of 4 {WORDS}")),
    "all are current": ((*CURRENT, *DONE), RUNS, (False, "ServersUpdated", "")),
    "nothing was to do": ((*CURRENT, *DONE), None, None),
    "it was refused": ((*CURRENT, *all_but()), REFUSED, None),
    "another change was refused": (
        (*CURRENT, *all_but()),
        condition(Reason.UPDATE_REFUSED, 0),
        (True, "ReplacingServers", f"0 of 4 {WORDS}"),
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_of_the_update_is_reported(step: str) -> None:
    seen, stored, expected = STEPS[step]
    assert progress(facts_of(SPEC, *seen), stored, None) == expected
    assert progress(facts_of(NONE, *seen), stored, None) is None


def test_a_rejection_is_reported_with_the_api_servers_message() -> None:
    action = Replace(Kind.STATEFUL_SET, "digits-ps", "u", {}, Reason.SPEC_CHANGED)
    found = progress(facts_of(SPEC, *CURRENT, *DONE), None, Outcome(action, Verdict.INVALID, "memory: too much"))
    message = "StatefulSet digits-ps was refused, and all servers are unchanged: memory: too much"
    assert found == (False, Reason.UPDATE_REFUSED, message)
