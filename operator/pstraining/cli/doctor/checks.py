"""The checks of `doctor`: each maps data to a result and the action to take. Pure: no requests."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pstraining import __version__
from pstraining.api import names
from pstraining.api.crd import custom_resource_definition
from pstraining.cli.errors import DEFINITION
from pstraining.cli.formatting import plain
from pstraining.resources.resource_requests import of_pod, parse

Object = Mapping[str, Any]

OLDEST, OLDEST_FOR_STANDBYS = (1, 29), (1, 31)
"""Oldest Kubernetes versions: CEL rules and pod-index labels; for standbys, matchLabelKeys in anti-affinity."""
INSTALL = "Install the chart: docs/operators/install.md."
ENFORCERS = (
    *("calico-node", "canal", "cilium", "anetd", "antrea-agent", "kube-router", "weave-net", "azure-npm"),
    *("ovnkube-node", "kube-ovn-cni", "kube-network-policies"),
)
"""Names of DaemonSets of network plugins that enforce NetworkPolicies."""
RIGHTS = (("get", ""), ("list", ""), ("create", ""), ("patch", ""), ("delete", ""), ("patch", "scale"))
"""Users' rights on PSTrainingJobs: verb and subresource."""
NEEDED = (("get", ""), ("create", ""), ("patch", ""))
"""Rights that are required to submit a job."""


class CheckResult(StrEnum):
    """The result of a check, in ascending severity."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """A check with its result."""

    name: str
    result: CheckResult
    message: str
    todo: str = ""
    """The action to take next; empty without one."""


@dataclass(frozen=True)
class Unavailable:
    """The reason that data could not be read."""

    why: str

    def as_check(self, name: str) -> Check:
        """Return a warning that the check's result is unknown."""
        return Check(name, CheckResult.WARN, f"unknown: {self.why}")


@dataclass(frozen=True)
class Amount:
    """CPU in cores and memory in bytes."""

    cpu: Decimal
    memory: Decimal

    @classmethod
    def of(cls, quantities: Object) -> "Amount":
        """Parse the quantities of `cpu` and `memory`; a missing one is 0."""
        return cls(*(parse(quantities.get(name, 0)) for name in ("cpu", "memory")))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu - other.cpu, self.memory - other.memory)

    def holds(self, other: "Amount") -> bool:
        """Return whether another amount fits into this one."""
        return self.cpu >= other.cpu and self.memory >= other.memory


NOTHING = Amount(Decimal(0), Decimal(0))


def version(found: Object) -> Check:
    """Check the version of Kubernetes, from the response of /version."""
    shown = str(found.get("gitVersion", "of an unknown version"))
    numbers = tuple(int(re.sub(r"\D", "", str(found.get(part) or "0")) or 0) for part in ("major", "minor"))
    wanted = ".".join(map(str, OLDEST))
    if numbers < OLDEST:
        return Check("api server", CheckResult.FAIL, f"Kubernetes {shown}, older than {wanted}", "Upgrade the cluster.")
    if numbers < OLDEST_FOR_STANDBYS:
        return Check(
            "api server", CheckResult.WARN, f"Kubernetes {shown}: standbys (spec.ps.standby) need 1.31 or newer"
        )
    return Check("api server", CheckResult.OK, f"Kubernetes {shown}")


def definition(found: Object | None) -> Check:
    """Check that the CRD is installed, established and equal to this version's."""
    if found is None:
        return Check("crd", CheckResult.FAIL, f"{DEFINITION} is not installed", INSTALL)
    conditions = (found.get("status") or {}).get("conditions") or ()
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        why = "; ".join(c.get("message", "") for c in conditions if c["status"] == "False")
        return Check(
            "crd", CheckResult.FAIL, f"{DEFINITION} is not established: {why}", f"kubectl describe crd {DEFINITION}"
        )
    versions = {v["name"]: v for v in found["spec"]["versions"] if v["served"]}
    if names.VERSION not in versions:
        served = ", ".join(versions)
        return Check(
            "crd", CheckResult.FAIL, f"{names.VERSION} is not served, only {served}", "Use the CLI of that version."
        )
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    apart = list(differences(ours, versions[names.VERSION]["schema"]["openAPIV3Schema"]))
    if not apart:
        return Check("crd", CheckResult.OK, f"{names.VERSION}, the same as this CLI's ({__version__})")
    first = ", ".join(apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
    message = f"differs from this CLI's ({__version__}): {first}; the findings of validate may also differ"
    return Check("crd", CheckResult.WARN, message, "Upgrade the older one, chart or CLI: docs/operators/install.md.")


def differences(ours: Any, theirs: Any, path: str = "") -> Iterable[str]:
    """Yield the fields that differ between two schemas, outermost first."""
    if ours == theirs:
        return
    mine, other = ((s.get("properties") if isinstance(s, Mapping) else None) or {} for s in (ours, theirs))
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        yield path
        return
    rest, others = ({k: v for k, v in s.items() if k not in ("properties", "description")} for s in (ours, theirs))
    if rest != others:
        yield path or "the object's own rules"
    for name in dict.fromkeys((*mine, *other)):
        below = f"{path}.{name}".lstrip(".")
        if name not in other:
            yield f"{below} (only in this CLI)"
        elif name not in mine:
            yield f"{below} (only in the cluster)"
        else:
            yield from differences(mine[name], other[name], below)


def operators(found: Sequence[Object], namespace: str) -> list[Check]:
    """Check the operators, and that one of them watches a namespace."""
    if not found:
        return [Check("operator", CheckResult.FAIL, "no operator is installed", INSTALL)]
    checks = [_operator(one) for one in found]
    watched = [watches(one) for one in found]
    if not any(not listed or namespace in listed for listed in watched):
        listed = ", ".join(n for names_ in watched for n in names_)
        todo = f"Add it to watch.namespaces of the chart, or use one of: {listed}."
        checks.append(Check("operator", CheckResult.FAIL, f"no operator watches namespace {namespace}", todo))
    return checks


def environment(deployment: Object) -> dict[str, str]:
    """Return the environment variables of an operator."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value") or "" for c in containers for e in c.get("env") or ()}


def watches(deployment: Object) -> list[str]:
    """Return the namespaces that an operator watches; empty if it watches all."""
    listed = environment(deployment).get("PSTRAINING_NAMESPACES", "").split(",")
    return [name for part in listed if (name := part.strip())]


def operator_version(deployment: Object) -> str:
    """Return an operator's version from the chart's label; empty without it."""
    return str((deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version", ""))


def _operator(deployment: Object) -> Check:
    metadata = deployment["metadata"]
    where = f"{metadata['namespace']}/{metadata['name']}"
    image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
    shown = f"{where}, image {image}"
    if not int((deployment.get("status") or {}).get("readyReplicas") or 0):
        here = f"kubectl -n {metadata['namespace']}"
        todo = f"{here} get pods; {here} logs deployment/{metadata['name']}"
        return Check("operator", CheckResult.FAIL, f"{shown}, is not ready", todo)
    labelled = operator_version(deployment)
    if labelled and labelled != __version__:
        message = f"{shown}, has version {labelled}, this CLI has {__version__}"
        return Check("operator", CheckResult.WARN, message, "Upgrade the older one.")
    return Check("operator", CheckResult.OK, f"{shown}, is ready")


def lease(found: Object | None, name: str, now: datetime) -> Check:
    """Check that an operator holds its Lease and has renewed it recently."""
    if found is None:
        return Check(
            "lease",
            CheckResult.FAIL,
            f"there is no Lease {name}: no operator has started yet",
            "Check the operator's log.",
        )
    spec = found.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "")
    if not holder:
        return Check("lease", CheckResult.FAIL, f"no operator holds Lease {name}", "Check the operator's log.")
    ago = (now - datetime.fromisoformat(str(spec["renewTime"]))).total_seconds()
    limit = 2 * int(spec.get("leaseDurationSeconds") or 0)
    if ago > limit:
        message = f"{holder} last renewed Lease {name} {ago:.0f} s ago by this machine's clock; the limit is {limit} s"
        return Check("lease", CheckResult.FAIL, message, "Check the operator's log, and this machine's clock.")
    return Check("lease", CheckResult.OK, f"{holder} holds Lease {name}")


def no_namespace(namespace: str) -> Check:
    """Return the failed check of rights in a namespace that does not exist."""
    todo = f"kubectl create namespace {namespace}, or select another one with -n."
    return Check("rights", CheckResult.FAIL, f"there is no namespace {namespace}", todo)


def rights(found: Mapping[tuple[str, str], bool], namespace: str) -> Check:
    """Check the user's rights on jobs."""
    missing = [right for right, may in found.items() if not may]
    if not missing:
        return Check("rights", CheckResult.OK, f"you may read, create, change and delete jobs in namespace {namespace}")
    listed = ", ".join(f"{verb} {names.PLURAL}{'/' * bool(sub)}{sub}" for verb, sub in missing)
    result = CheckResult.FAIL if {*missing} & {*NEEDED} else CheckResult.WARN
    todo = "Request the role edit in that namespace: the chart adds jobs to it (rbac.aggregate)."
    return Check("rights", result, f"you may not {listed} in namespace {namespace}", todo)


def nodes(found: Sequence[Object], pods: Sequence[Object] | Unavailable, need: Amount) -> Check:
    """Check that a node has room for a parameter server, and a second one for its standby."""
    usable = [n for n in found if _is_usable(n)]
    if not usable:
        message = f"none of {len(found)} nodes is ready, schedulable and without taints"
        return Check("nodes", CheckResult.FAIL, message, "kubectl get nodes")
    taken: dict[str, Amount] = {}
    for pod in () if isinstance(pods, Unavailable) else pods:
        node = str(pod["spec"].get("nodeName") or "")
        taken[node] = taken.get(node, NOTHING) + requests(pod)
    free = {n["metadata"]["name"]: Amount.of(n["status"]["allocatable"]) for n in usable}
    fitting = [name for name, all_of_it in free.items() if (all_of_it - taken.get(name, NOTHING)).holds(need)]
    guess = f" (if the nodes run nothing else: {pods.why})" if isinstance(pods, Unavailable) else ""
    asked = f"a parameter server of {need.cpu.normalize():f} CPU and {plain(float(need.memory) / 2**30, 3)} GiB{guess}"
    if not fitting:
        todo = "Free capacity unless the cluster adds nodes on demand. Set --cpu and --memory to your needs."
        return Check("nodes", CheckResult.WARN, f"none of {len(usable)} nodes has room for {asked}", todo)
    if len(fitting) == 1:
        message = f"only {fitting[0]} has room for {asked}: standbys require a second node"
        return Check("nodes", CheckResult.WARN, message, "Add a node, or leave spec.ps.standby.mode at None.")
    result = CheckResult.WARN if guess else CheckResult.OK
    return Check("nodes", result, f"{len(fitting)} of {len(found)} nodes have room for {asked}")


def requests(pod: Object) -> Amount:
    """Return a pod's requests as the scheduler counts them; nothing once the pod has ended."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return NOTHING
    found = of_pod(pod["spec"])
    return Amount(found.get("cpu", Decimal(0)), found.get("memory", Decimal(0)))


def _is_usable(node: Object) -> bool:
    spec = node.get("spec") or {}
    kept_away = any(t["effect"] != "PreferNoSchedule" for t in spec.get("taints") or ())
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not kept_away and not spec.get("unschedulable")


def storage(classes: Sequence[Object]) -> Check:
    """Check that there is a default StorageClass, for checkpoint claims that do not name one."""
    mark = "storageclass.kubernetes.io/is-default-class"
    default = [c["metadata"]["name"] for c in classes if (c["metadata"].get("annotations") or {}).get(mark) == "true"]
    if default:
        return Check("storage", CheckResult.OK, f"the default StorageClass is {default[0]}")
    todo = "Set one in checkpoint.volumeClaimTemplate.storageClassName, or use checkpoint.volume."
    there = ", ".join(c["metadata"]["name"] for c in classes) or "none"
    return Check("storage", CheckResult.WARN, f"no StorageClass is the default (available: {there})", todo)


def network(daemon_sets: Sequence[Object]) -> Check:
    """Check that a known network plugin enforces NetworkPolicies."""
    there = {d["metadata"]["name"] for d in daemon_sets}
    known = next((name for name in ENFORCERS if name in there), None)
    if known:
        return Check("network", CheckResult.OK, f"{known} enforces NetworkPolicies")
    message = "no network plugin known to enforce NetworkPolicies was found: every pod may reach TensorFlow's ports"
    return Check("network", CheckResult.WARN, message, "Ask the cluster's administrator; see SECURITY.md.")


def metrics(text: Any) -> Check:
    """Check the operator's metrics."""
    if isinstance(text, str) and "pstraining_" in text:
        return Check("metrics", CheckResult.OK, "the operator's metrics can be read")
    return Check("metrics", CheckResult.WARN, "the operator's metrics have an unexpected format")
