"""Validates values in Kubernetes' objects that the API servers of all versions and clusters refuse.

Source of the rules: k8s.io/kubernetes pkg/apis/core/validation and k8s.io/apimachinery pkg/util/validation.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.cli.validation.schema import Finding, Severity, did_you_mean
from pstraining.resources.resource_requests import parse

Steps = tuple[str | int, ...]

_DNS: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WORD: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY: Final = re.compile(rf"(?=[^/]{{1,253}}/)({_DNS}(\.{_DNS})*)/(?=.{{1,63}}$){_WORD}|(?=.{{1,63}}$){_WORD}")
_FIELD: Final = re.compile(
    r"metadata\.(name|namespace|uid|labels|annotations|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_UNIT: Final = re.compile(r"\s*([0-9.]+)\s*([kmgt])(i?)b?\s*", re.IGNORECASE)
_MAPS: Final = ("labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests")
"""Fields whose keys users choose."""
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage", "storage")
_AMOUNTS: Final = ("limits", "requests", "maxAllowed")
"""Fields with amounts of resources."""
_MILLI: Final = re.compile(r"([0-9.]+)m")
_BYTES: Final = re.compile(r"([0-9]+)|[0-9.]+([eE][+-]?[0-9]+)?")
"""A quantity without a unit. The group is a whole number."""
_LEAST: Final = 2**20
"""Bytes of memory or storage below which a quantity without a unit is a mistake."""
_ONE_POD: Final = "ReadWriteOncePod"
_ACTIONS: Final = ("exec", "httpGet", "tcpSocket")
"""Actions of both probes and hooks, which have one."""
_REFERENCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef")
"""Sources of the value of a variable."""
_ABSENCE: Final = ("Exists", "DoesNotExist")
_OF_LABELS: Final = ("In", "NotIn", *_ABSENCE)
"""Operators of label selectors. Those of nodes have two more."""
_AMOUNT: Final = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
_ZEROS: Final = re.compile(r"\b0+(?=\d)")
_DEVICE: Final = re.compile(r"hugepages-.+|.+/.+")
"""Resources that are not overcommitted: a request equals the limit."""


def wrong_values(steps: Steps, value: Any, rule: str = "") -> Iterator[Finding]:
    """Yield the values that Kubernetes refuses, in one of its objects and all values below it.

    Args:
        steps: the object's path.
        value: the object, without nulls, with values of the right types.
        rule: the path for the rules: `*` for the keys that users choose, `#` for the items of lists.
    """
    if isinstance(value, Mapping):
        free = rule.endswith(_MAPS)
        for name, item in value.items():
            if free and (problem := _wrong_key(rule, name)):
                yield Finding(path_of((*steps, name)), problem)
            yield from wrong_values((*steps, name), item, f"{rule}.{'*' if free else name}")
        yield from (Finding(path_of((*steps, name)), problem) for name, problem in _wrong_together(rule, value))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from wrong_values((*steps, index), item, f"{rule}.#")
    elif (check := _check(rule)) and (problem := check(value)):
        yield Finding(path_of(steps), problem)


def tiny_sizes(steps: Steps, value: Any) -> Iterator[Finding]:
    """Yield the amounts of memory and storage without a unit, or with a wrong one, as warnings.

    Args:
        steps: the path of the value.
        value: a value of a job.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            is_size = name == "sizeLimit" or (steps[-1] in _AMOUNTS and name in _STANDARD[1:])
            if is_size and (message := _tiny(str(item))):
                yield Finding(path_of((*steps, name)), message, Severity.WARNING)
            yield from tiny_sizes((*steps, name), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from tiny_sizes((*steps, index), item)


def _tiny(quantity: str) -> str:
    """Return the problem of an amount of memory or storage that is far too small for a program; empty without one."""
    if found := _MILLI.fullmatch(quantity):
        return f"is in thousandths of a byte, {quantity!r}; did you mean {found[1]}Mi?"
    found = _BYTES.fullmatch(quantity)
    if found is None or not 0 < parse(quantity) < _LEAST:
        return ""
    near = f"did you mean {quantity}Gi?" if found[1] and int(quantity) < 1024 else "write a unit, such as Mi or Gi"
    return f"has no unit, and is {quantity} bytes; {near}"


@lru_cache(maxsize=1024)
def _check(rule: str) -> Callable[[Any], str] | None:
    return next((check for end, check in _RULES.items() if rule.endswith(f".{end}")), None)


def _wrong_key(rule: str, name: str) -> str:
    if rule.endswith(("limits", "requests")):
        fits = name in _STANDARD or _DEVICE.fullmatch(name)
        return "" if fits else f"is not a resource such as {', '.join(_STANDARD[:2])} or nvidia.com/gpu"
    # As the API server does, ignore case in the keys of annotations.
    found = _KEY.fullmatch(name.lower() if rule.endswith("annotations") else name)
    return "" if found else "is not a key of the form NAME or PREFIX/NAME"


def _wrong_together(rule: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of one mapping that contradict each other, each with its problem."""
    if rule.endswith(("containers.#", "initContainers.#")):
        yield from _wrong_container(value, ends=rule.endswith("initContainers.#"))
    elif rule.endswith(("Probe", "postStart", "preStop")):
        yield from _wrong_handler(rule, value)
    elif rule.endswith("tolerations.#"):
        yield from _wrong_toleration(value)
    elif rule.endswith("env.#") and value.get("value") and "valueFrom" in value:
        yield "valueFrom", "excludes value"
    elif rule.endswith(("env.#.valueFrom", "envFrom.#")):
        yield from _wrong_source(value, ("configMapRef", "secretRef") if rule.endswith("#") else _REFERENCES)
    elif rule.endswith(("matchExpressions.#", "matchFields.#")):
        yield from _wrong_requirement(value)
    elif rule.endswith("volumes.#") and len(sources := [name for name in value if name != "name"]) > 1:
        yield sources[1], f"excludes {sources[0]}: a volume has one source"
    elif rule.endswith("resources"):
        yield from _wrong_amounts(value)
    elif "accessModes" in value:
        yield from _wrong_claim(value)
    needed = next((name for ends, name in _REQUIRED.items() if rule.endswith(ends)), None)
    if needed is not None and not value.get(needed):
        yield needed, "is required, and not empty"


def _wrong_container(container: Mapping[str, Any], *, ends: bool) -> Iterator[tuple[str, str]]:
    """Yield ports of one name, and what an init container that ends cannot have."""
    ports = Counter(port.get("name") for port in container.get("ports") or ())
    yield from (("ports", f"has the name {name} twice") for name, times in ports.items() if name and times > 1)
    if ends and container.get("restartPolicy") != "Always":
        why = "cannot be set: the container ends before the program starts (sidecars have restartPolicy: Always)"
        yield from ((name, why) for name in container if name == "lifecycle" or name.endswith("Probe"))


def _wrong_handler(rule: str, handler: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a missing action of a probe or a hook, each further one, and successes that a probe cannot demand."""
    ways = (*_ACTIONS, "grpc" if rule.endswith("Probe") else "sleep")
    given = [name for name in ways if name in handler]
    if not given:
        yield ways[0], f"is required, or {', '.join(ways[1:-1])} or {ways[-1]}"
    yield from ((name, f"excludes {given[0]}") for name in given[1:])
    if rule.endswith(("livenessProbe", "startupProbe")) and handler.get("successThreshold") not in (None, 0, 1):
        yield "successThreshold", f"must be 1, is {handler['successThreshold']}"


def _wrong_source(value: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield a missing source of variables, and each further one."""
    if not value.keys() - {"prefix"}:
        yield known[0], f"is required, or {' or '.join(known[1:])}"
    given = [name for name in known if name in value]
    yield from ((name, f"excludes {given[0]}") for name in given[1:])


def _wrong_requirement(requirement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield values that the operator of a selector does not have, or lacks."""
    operator, values = requirement.get("operator"), requirement.get("values") or ()
    if operator in ("In", "NotIn") and not values:
        yield "values", f"is required with operator {operator}"
    elif operator in _ABSENCE and values:
        yield "values", f"must be empty with operator {operator}"
    elif operator in ("Gt", "Lt") and len(values) != 1:
        yield "values", f"must have one number with operator {operator}"


def _wrong_toleration(toleration: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    exists = toleration.get("operator") == "Exists"
    if exists and toleration.get("value"):
        yield "value", "must be empty with operator Exists"
    if not exists and not toleration.get("key"):
        yield "operator", "must be Exists without a key"
    if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
        yield "tolerationSeconds", "needs effect NoExecute"


def _wrong_claim(claim: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    storage, modes = (claim.get("resources") or {}).get("requests", {}).get("storage"), claim["accessModes"]
    if storage in (None, ""):
        yield "resources.requests.storage", "is required"
    elif not _quantity(storage) and parse(storage) == 0:
        yield "resources.requests.storage", f"must be greater than 0, is {storage!r}"
    if _ONE_POD in modes and len(modes) > 1:
        yield "accessModes", f"has {_ONE_POD}, which excludes other modes"


def _wrong_amounts(resources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    limits, requests = (_amounts(resources.get(kind) or {}) for kind in ("limits", "requests"))
    for name in {**limits, **requests}:
        limit, request = limits.get(name), requests.get(name)
        device = _DEVICE.fullmatch(name) is not None
        amount = limit if request is None else request
        if device and "/" in name and amount is not None and amount != int(amount):
            yield f"limits.{name}", "must be a whole number"
        elif device and request is not None and limit != request:
            yield f"requests.{name}", "must equal its limit: devices and huge pages are not overcommitted"
        elif limit is not None and request is not None and request > limit:
            yield f"requests.{name}", f"must be at most its limit, {resources['limits'][name]}"


def _amounts(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: parse(value) for name, value in quantities.items() if not _quantity(value)}


def _quantity(value: Any) -> str:
    try:
        fits = parse(value) >= 0 and str(value) == str(value).strip()
    except ValueError:
        fits = False
    if fits:
        return ""
    near = _UNIT.fullmatch(str(value))
    if near is None:
        return f"must be a quantity such as 500m or 1Gi, is {value!r}"
    binary = f"{near[1]}{near[2].upper()}i"
    return f"must be a quantity such as 500m or 1Gi, is {value!r}; did you mean {binary}?"


def _text(pattern: str, most: int, words: str) -> Callable[[Any], str]:
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        fits = not isinstance(value, str) or (len(value) <= most and compiled.fullmatch(value))
        return "" if fits else f"must be {words}, with at most {most} characters, is {value!r}"

    return check


def _number(least: int, most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        fits = not isinstance(value, int) or least <= value <= most
        return "" if fits else f"must be at least {least} and at most {most}, is {value}"

    return check


def _one_of(*options: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        fits = value == "" or value in options
        return "" if fits else f"must be one of {', '.join(options)}, is {value!r}{did_you_mean(str(value), options)}"

    return check


def _field(value: Any) -> str:
    return "" if _FIELD.fullmatch(value) else f"must be a field such as metadata.labels['app'], is {value!r}"


def _key(value: Any) -> str:
    fits = not isinstance(value, str) or _KEY.fullmatch(value)
    return "" if fits else f"must be the key of a label, NAME or PREFIX/NAME, is {value!r}"


def _key_or_empty(value: Any) -> str:
    return "" if value == "" else _key(value)


def _image(value: Any) -> str:
    return "" if value == value.strip() else f"must not begin or end with a space, is {value!r}"


def _mode(value: Any) -> str:
    if not isinstance(value, int) or 0 <= value <= 0o777:
        return ""
    octal = re.fullmatch("[0-7]{3}", str(value))
    return f"must be at most 511 (octal 0777), is {value}" + (f"; did you mean 0{value}?" if octal else "")


def _amount(value: Any) -> str:
    return "" if _AMOUNT.fullmatch(value) else f"must be an amount such as limits.cpu or requests.memory, is {value!r}"


def _ip(value: Any) -> str:
    try:
        ip_address(_ZEROS.sub("", value))
    except ValueError:
        return f"must be an IP address, is {value!r}"
    return ""


def _host_path(value: Any) -> str:
    fits = value and ".." not in value.split("/")
    return "" if fits else f"must be a path without .., is {value!r}"


def _sub_path(value: Any) -> str:
    fits = not value.startswith("/") and ".." not in value.split("/")
    return "" if fits else f"must be a relative path without .., is {value!r}"


_name: Final = _text(_DNS, 63, "lower-case letters, digits and '-'")
wrong_namespace: Final = _name
"""Returns the problem of a namespace's name, or an empty text."""
_value: Final = _text(f"({_WORD})?", 63, "letters, digits, '-', '_' and '.'")
_object: Final = _text(rf"({_DNS}(\.{_DNS})*)?", 253, "lower-case letters, digits, '-' and '.'")
_port: Final = _number(1, 65535)
_port_name: Final = _text(rf"(?=.*[a-z])(?!.*--){_DNS}", 15, "lower-case letters, digits and '-', with a letter")


def _port_or_name(value: Any) -> str:
    return _port(value) or _port_name(value)


_not_negative: Final = _number(0, 2**31 - 1)
_positive: Final = _number(1, 2**31 - 1)
_of_labels: Final = _one_of(*_OF_LABELS)
_of_nodes: Final = _one_of(*_OF_LABELS, "Gt", "Lt")
_REQUIRED: Final[Mapping[tuple[str, ...], str]] = {
    ("volumes.#.configMap", "volume.configMap", "sources.#.configMap", "sources.#.secret"): "name",
    ("volumes.#.secret", "volume.secret"): "secretName",
    ("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",): "nodeSelectorTerms",
}
"""A field that must not be empty, by the ends of its mapping's path."""
_RULES: Final[Mapping[str, Callable[[Any], str]]] = {
    "metadata.namespace": _text(f"({_DNS})?", 63, "lower-case letters, digits and '-'"),
    "labels.*": _value,
    "nodeSelector.*": _value,
    "matchLabels.*": _value,
    "containers.#.name": _name,
    "initContainers.#.name": _name,
    "volumes.#.name": _name,
    "ports.#.name": _port_name,
    "ports.#.containerPort": _port,
    "ports.#.hostPort": _number(0, 65535),
    "ports.#.protocol": _one_of("TCP", "UDP", "SCTP"),
    "httpGet.port": _port_or_name,
    "tcpSocket.port": _port_or_name,
    "env.#.name": _text(r"[ -<>-~]+", 32768, "printable characters without '='"),
    "fieldRef.fieldPath": _field,
    "containers.#.image": _image,
    "initContainers.#.image": _image,
    "resourceFieldRef.resource": _amount,
    **dict.fromkeys(("initialDelaySeconds", "periodSeconds", "timeoutSeconds"), _not_negative),
    **dict.fromkeys(("successThreshold", "failureThreshold"), _not_negative),
    **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _not_negative),
    "fsGroupChangePolicy": _one_of("OnRootMismatch", "Always"),
    "seccompProfile.type": _one_of("RuntimeDefault", "Unconfined", "Localhost"),
    "terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "spec.preemptionPolicy": _one_of("PreemptLowerPriority", "Never"),
    "hostAliases.#.ip": _ip,
    "hostPath.path": _host_path,
    "volumeMounts.#.subPath": _sub_path,
    "defaultMode": _mode,
    "items.#.mode": _mode,
    "maxSkew": _positive,
    "preferredDuringSchedulingIgnoredDuringExecution.#.weight": _number(1, 100),
    "labelSelector.matchExpressions.#.operator": _of_labels,
    "namespaceSelector.matchExpressions.#.operator": _of_labels,
    "nodeSelectorTerms.#.matchExpressions.#.operator": _of_nodes,
    "preference.matchExpressions.#.operator": _of_nodes,
    "tolerations.#.key": _key_or_empty,
    "limits.*": _quantity,
    "requests.*": _quantity,
    "emptyDir.sizeLimit": _quantity,
    "topologyKey": _key,
    "packTopologyKey": _key,
    "schedulingPolicy.priorityClass": _object,
    "spec.priorityClassName": _object,
    "spec.runtimeClassName": _object,
    "spec.serviceAccountName": _object,
    "imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "tolerations.#.operator": _one_of("Exists", "Equal", "Gt", "Lt"),
    "tolerations.#.effect": _one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
    "dnsPolicy": _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "accessModes.#": _one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", _ONE_POD),
}
"""A check for each value, by the end of its path. A check returns the problem, or an empty text."""
