"""The connections that NetworkPolicies allow, derived from their text as Kubernetes defines it.

A pod that no policy selects accepts every connection. A selected pod accepts those that a rule of any policy allows.
Only ingress is implemented. An unknown field raises an error, so that no test passes because a field was ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """A pod as a policy sees it: its namespace and labels."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)


def allowed(policies: Iterable[Mapping[str, Any]], source: Place, target: Place, protocol: str, port: int) -> bool:
    """Whether a pod may open a connection to a port of another pod."""
    selecting = [p for p in policies if _selects_pod(p, target)]
    if not selecting:
        return True
    return any(
        _from(rule, policy["metadata"]["namespace"], source) and _port(rule, protocol, port)
        for policy in selecting
        for rule in _known(policy["spec"], "podSelector", "policyTypes", "ingress").get("ingress") or ()
    )


def _selects_pod(policy: Mapping[str, Any], pod: Place) -> bool:
    assert policy["spec"]["policyTypes"] == ["Ingress"], "no other type is known here"
    return policy["metadata"]["namespace"] == pod.namespace and _matches(policy["spec"]["podSelector"], pod.labels)


def _from(rule: Mapping[str, Any], namespace: str, source: Place) -> bool:
    peers = _known(rule, "from", "ports").get("from")
    # A missing or empty list selects all pods.
    return not peers or any(_is(_known(peer, "podSelector"), namespace, source) for peer in peers)


def _is(peer: Mapping[str, Any], namespace: str, source: Place) -> bool:
    # A selector with pod labels only selects pods of the policy's own namespace.
    return source.namespace == namespace and _matches(peer["podSelector"], source.labels)


def _port(rule: Mapping[str, Any], protocol: str, port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(_in(_known(p, "protocol", "port", "endPort"), protocol, port) for p in ports)


def _in(entry: Mapping[str, Any], protocol: str, port: int) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    first = int(entry.get("port", 0))
    return first == 0 or first <= port <= int(entry.get("endPort", first))


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted: Mapping[str, str] = _known(selector, "matchLabels").get("matchLabels", {})
    return wanted.items() <= labels.items()


def _known(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    assert value.keys() <= set(names), f"not understood here: {value.keys() - set(names)}"
    return value
