"""Validates values in Kubernetes' objects that the API servers of all versions and clusters refuse.

Source of the rules: k8s.io/kubernetes pkg/apis/core/validation and k8s.io/apimachinery pkg/util/validation.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.cli.validation.contradictions import ABSENCE, ONE_POD, wrong_together
from pstraining.cli.validation.quantities import DEVICE, STANDARD, Steps, wrong_quantity
from pstraining.cli.validation.schema import Finding, did_you_mean

_DNS: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WORD: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY: Final = re.compile(rf"(?=[^/]{{1,253}}/)({_DNS}(\.{_DNS})*)/(?=.{{1,63}}$){_WORD}|(?=.{{1,63}}$){_WORD}")
_FIELD: Final = re.compile(
    r"metadata\.(name|namespace|uid|labels|annotations|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_MAPS: Final = ("labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests")
"""Fields whose keys users choose."""
_OF_LABELS: Final = ("In", "NotIn", *ABSENCE)
"""Operators of label selectors. Those of nodes have two more."""
_AMOUNT: Final = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
_ZEROS: Final = re.compile(r"\b0+(?=\d)")


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
        yield from (Finding(path_of((*steps, name)), problem) for name, problem in wrong_together(rule, value))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from wrong_values((*steps, index), item, f"{rule}.#")
    elif (check := _check(rule)) and (problem := check(value)):
        yield Finding(path_of(steps), problem)


@lru_cache(maxsize=1024)
def _check(rule: str) -> Callable[[Any], str] | None:
    return next((check for end, check in _RULES.items() if rule.endswith(f".{end}")), None)


def _wrong_key(rule: str, name: str) -> str:
    if rule.endswith(("limits", "requests")):
        fits = name in STANDARD or DEVICE.fullmatch(name)
        return "" if fits else f"is not a resource such as {', '.join(STANDARD[:2])} or nvidia.com/gpu"
    # As the API server does, ignore case in the keys of annotations.
    found = _KEY.fullmatch(name.lower() if rule.endswith("annotations") else name)
    return "" if found else "is not a key of the form NAME or PREFIX/NAME"


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


def _absolute_path(value: Any) -> str:
    return "" if value == "" or value.startswith("/") else f"must be an absolute path, is {value!r}"


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
    **dict.fromkeys(
        ("seccompProfile.type", "appArmorProfile.type"), _one_of("RuntimeDefault", "Unconfined", "Localhost")
    ),
    "supplementalGroupsPolicy": _one_of("Merge", "Strict"),
    "fsGroupChangePolicy": _one_of("OnRootMismatch", "Always"),
    "terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
    "spec.preemptionPolicy": _one_of("PreemptLowerPriority", "Never"),
    "hostAliases.#.ip": _ip,
    "nameservers.#": _ip,
    "hostPath.path": _host_path,
    "hostPath.type": _one_of(
        *("DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
    ),
    "nfs.path": _absolute_path,
    "httpGet.scheme": _one_of("HTTP", "HTTPS"),
    "serviceAccountToken.expirationSeconds": _number(600, 2**32),
    "mountPropagation": _one_of("None", "HostToContainer", "Bidirectional"),
    "resizePolicy.#.resourceName": _one_of("cpu", "memory"),
    "resizePolicy.#.restartPolicy": _one_of("NotRequired", "RestartContainer"),
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
    "limits.*": wrong_quantity,
    "requests.*": wrong_quantity,
    "emptyDir.sizeLimit": wrong_quantity,
    "topologyKey": _key,
    "packTopologyKey": _key,
    "readinessGates.#.conditionType": _key,
    "schedulingPolicy.priorityClass": _object,
    "spec.priorityClassName": _object,
    "spec.runtimeClassName": _object,
    "spec.serviceAccountName": _object,
    "imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
    "tolerations.#.operator": _one_of("Exists", "Equal", "Gt", "Lt"),
    "tolerations.#.effect": _one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
    "dnsPolicy": _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "accessModes.#": _one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", ONE_POD),
}
"""A check for each value, by the end of its path. A check returns the problem, or an empty text."""
