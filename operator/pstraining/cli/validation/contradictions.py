"""Fields of one mapping in Kubernetes' objects that contradict each other, or one of which is missing.

Source of the rules: k8s.io/kubernetes pkg/apis/core/validation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from pstraining.cli.validation.quantities import DEVICE, wrong_quantity
from pstraining.resources.resource_requests import parse

ONE_POD: Final = "ReadWriteOncePod"
_ACTIONS: Final = ("exec", "httpGet", "tcpSocket")
"""Actions of both probes and hooks, which have one."""
_REFERENCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef")
"""Sources of the value of a variable."""
ABSENCE: Final = ("Exists", "DoesNotExist")
"""Operators of selectors without values."""
_HOSTS: Final = ("hostPID", "hostIPC")
"""Namespaces of the node that a pod with users of its own cannot have. The CRD refuses hostNetwork."""
_MOST_NAMESERVERS: Final = 3
_REQUIRED: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("volumes.#.configMap", "volume.configMap", "sources.#.configMap", "sources.#.secret"): ("name",),
    ("volumes.#.secret", "volume.secret"): ("secretName",),
    ("volumes.#.persistentVolumeClaim", "volume.persistentVolumeClaim"): ("claimName",),
    ("volumes.#.nfs", "volume.nfs"): ("server", "path"),
    ("volumes.#.csi", "volume.csi"): ("driver",),
    (".configMapKeyRef", ".secretKeyRef"): ("name", "key"),
    ("envFrom.#.configMapRef", "envFrom.#.secretRef"): ("name",),
    (".volumeMounts.#",): ("mountPath",),
    ("volumes.#.ephemeral",): ("volumeClaimTemplate",),
    ("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",): ("nodeSelectorTerms",),
}
"""Fields that must not be empty, by the ends of their mapping's path."""


def wrong_together(rule: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
    elif rule.endswith("matchExpressions.#"):
        yield from _wrong_requirement(value)
    elif rule.endswith("matchFields.#"):
        yield from _wrong_field(value)
    elif rule.endswith("volumes.#") and len(sources := [name for name in value if name != "name"]) > 1:
        yield sources[1], f"excludes {sources[0]}: a volume has one source"
    elif rule.endswith("resources"):
        yield from _wrong_amounts(value)
    elif "accessModes" in value:
        yield from _wrong_claim(value)
    else:
        yield from _wrong_in_pod(rule, value)
    needed = next((names for ends, names in _REQUIRED.items() if rule.endswith(ends)), ())
    yield from ((name, "is required, and not empty") for name in needed if not value.get(name))


def _wrong_in_pod(rule: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what contradicts itself in a pod's spec, and in parts of it that only a pod has."""
    if rule.endswith(".template.spec"):
        yield from _wrong_pod(value)
    elif rule.endswith("topologySpreadConstraints.#"):
        if value.get("minDomains") and value.get("whenUnsatisfiable") == "ScheduleAnyway":
            yield "minDomains", "needs whenUnsatisfiable DoNotSchedule"
        if value.get("matchLabelKeys") and "labelSelector" not in value:
            yield "labelSelector", "is required with matchLabelKeys"
    elif rule.endswith(("seccompProfile", "appArmorProfile")):
        is_local, profile = value.get("type") == "Localhost", value.get("localhostProfile")
        if is_local is not bool(profile):
            yield "localhostProfile", "is required with type Localhost" if is_local else "needs type Localhost"
    elif rule.endswith(("ontainers.#.securityContext",)) and value.get("allowPrivilegeEscalation") is False:
        added = (value.get("capabilities") or {}).get("add") or ()
        if cause := "privileged" if value.get("privileged") else "CAP_SYS_ADMIN" if "CAP_SYS_ADMIN" in added else "":
            yield "allowPrivilegeEscalation", f"must not be false with {cause}"
    elif rule.endswith("resourceClaims.#"):
        given = [name for name in ("resourceClaimName", "resourceClaimTemplateName") if value.get(name)]
        if len(given) != 1:
            yield "resourceClaimName", f"{'excludes' if given else 'is required, or'} resourceClaimTemplateName"
    elif rule.endswith("downwardAPI.items.#"):
        yield from _wrong_source({k: v for k, v in value.items() if k not in ("path", "mode")}, _REFERENCES[:2])
    elif rule.endswith("volumeMounts.#") and value.get("subPath") and value.get("subPathExpr"):
        yield "subPathExpr", "excludes subPath"


def _wrong_pod(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a pod's spec that contradict each other."""
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        yield "shareProcessNamespace", "excludes hostPID"
    if spec.get("hostUsers") is False:
        yield from ((name, "excludes hostUsers: false") for name in _HOSTS if spec.get(name))
    nameservers = (spec.get("dnsConfig") or {}).get("nameservers") or ()
    if spec.get("dnsPolicy") == "None" and not nameservers:
        yield "dnsConfig.nameservers", "is required with dnsPolicy None"
    if len(nameservers) > _MOST_NAMESERVERS:
        yield "dnsConfig.nameservers", f"has {len(nameservers)} addresses, but at most {_MOST_NAMESERVERS} are allowed"
    spreads = spec.get("topologySpreadConstraints") or ()
    pairs = Counter((one.get("topologyKey"), one.get("whenUnsatisfiable")) for one in spreads)
    yield from (("topologySpreadConstraints", f"has {k} with {w} twice") for (k, w), n in pairs.items() if n > 1)
    ports = [port for container in spec.get("containers") or () for port in container.get("ports") or ()]
    own = Counter((p.get("hostPort"), p.get("protocol") or "TCP", p.get("hostIP") or "") for p in ports)
    yield from (("containers", f"use hostPort {port} twice") for (port, *_), n in own.items() if port and n > 1)
    known = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            for claim in (container.get("resources") or {}).get("claims") or ():
                if claim.get("name") not in known:
                    problem = f"container {container.get('name')} claims {claim.get('name')}, which is not in"
                    yield kind, f"{problem} resourceClaims"


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
    if rule.endswith("readinessProbe") and "terminationGracePeriodSeconds" in handler:
        yield "terminationGracePeriodSeconds", "cannot be set: a readiness probe ends no container"
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
    elif operator in ABSENCE and values:
        yield "values", f"must be empty with operator {operator}"
    elif operator in ("Gt", "Lt") and len(values) != 1:
        yield "values", f"must have one number with operator {operator}"


def _wrong_field(requirement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what no requirement on fields of a node may have: they only select one by its name."""
    if (key := requirement.get("key")) != "metadata.name":
        yield "key", f"must be metadata.name, the only field by which a node is selected, is {key!r}"
    if (operator := requirement.get("operator")) not in ("In", "NotIn"):
        yield "operator", f"must be In or NotIn for a field, is {operator!r}"
    elif len(requirement.get("values") or ()) != 1:
        yield "values", f"must have one name with operator {operator}"


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
    elif not wrong_quantity(storage) and parse(storage) == 0:
        yield "resources.requests.storage", f"must be greater than 0, is {storage!r}"
    if ONE_POD in modes and len(modes) > 1:
        yield "accessModes", f"has {ONE_POD}, which excludes other modes"


def _wrong_amounts(resources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    limits, requests = (_amounts(resources.get(kind) or {}) for kind in ("limits", "requests"))
    for name in {**limits, **requests}:
        limit, request = limits.get(name), requests.get(name)
        device = DEVICE.fullmatch(name) is not None
        amount = limit if request is None else request
        if device and "/" in name and amount is not None and amount != int(amount):
            yield f"limits.{name}", "must be a whole number"
        elif device and request is not None and limit != request:
            yield f"requests.{name}", "must equal its limit: devices and huge pages are not overcommitted"
        elif limit is not None and request is not None and request > limit:
            yield f"requests.{name}", f"must be at most its limit, {resources['limits'][name]}"


def _amounts(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: parse(value) for name, value in quantities.items() if not wrong_quantity(value)}
