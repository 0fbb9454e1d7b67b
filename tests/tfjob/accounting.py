"""The destination of each leaf of a TFJob: the PSTrainingJob, or a note."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pstraining.cli.tfjob.job import Conversion
from pstraining.cli.tfjob.source import cleaned, join

REFUSED = "refuses the job"
"""Notes with messages of the API server. They are found at the end, and name no dropped field."""
KEPT = re.compile(f"{REFUSED}|Kubernetes refuses it|is kept|selects no pod|excludes no pod")
"""Words of notes about values that are kept."""

Leaf = tuple[str, Any]


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """Return scalars and empty containers with their paths, as notes write them."""
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from leaves(below, join(path, name))
    elif isinstance(value, list) and value:
        for index, below in enumerate(value):
            yield from leaves(below, f"{path}[{index}]")
    elif value is not None:
        yield path, value


def wild(path: str) -> str:
    """Return a path without indices in lists, because preceding items may be missing."""
    return re.sub(r"\[\d+\]", "[]", path)


ROLES = {"ps": "ps", "worker": "worker", "chief": "chief", "master": "chief", "evaluator": "evaluator"}


def counterparts(path: str, value: Any, spec: dict[str, Any]) -> list[list[Leaf]]:
    """Return the possible destinations of a leaf of a TFJob: any of these, with all leaves of each."""
    if path == "apiVersion" or path == "kind" or (path, value) == ("spec.successPolicy", ""):
        return [[]]
    if path.endswith("unPolicy.cleanPodPolicy"):
        return [[(f"{path}.{outcome}", value) for outcome in ("onSuccess", "onFailure")]] if value else [[]]
    if path.endswith(".schedulingPolicy.scheduleTimeoutSeconds"):
        return [[(path.replace("scheduleTimeoutSeconds", "timeoutSeconds"), value)]]
    found = re.fullmatch(r"spec\.tfReplicaSpecs\.(\w+)\.(.*)", path, re.DOTALL)
    if not found:
        nothing: list[list[Leaf]] = [[]] if value in ({}, [], "") else []
        return [[(path, value)], *nothing]
    role, rest = ROLES[found[1].lower()], found[2]
    if rest == "replicas" and role in ("chief", "evaluator") and value == 1:
        return [[]]
    own = [(f"spec.{role}.{rest}", value)]
    if not rest.startswith("template.") or "template" in spec.get(role, {}):
        return [own]
    if rest.split(".")[-1] in ("resources", "limits", "requests", "env") and value in ({}, []):
        return [[]]
    resources = re.fullmatch(r"template\.spec\.containers\[\d+\]\.(resources\..*)", rest)
    borrowed = [(f"spec.worker.{rest}", value)]
    return [borrowed] if resources is None else [borrowed, [(f"spec.{role}.{resources[1]}", value)]]


def unaccounted(job: dict[str, Any], made: Conversion) -> list[Leaf]:
    """Return the leaves that are neither in the converted job nor in a note."""
    spec = (made.manifest or {})["spec"]
    # Notes about a whole role or template, and those of the final check, name none of its leaves.
    whole = re.compile(r"spec\.tfReplicaSpecs\.\w+(\.template)?")
    gone = [n.path for n in made.notes if "replicas: 0" in n.message]
    named = [n.path for n in made.notes if not (whole.fullmatch(n.path) or KEPT.search(n.message))] + gone
    there: Counter[tuple[str, str]] = Counter((wild(p), repr(v)) for p, v in leaves(made.manifest))
    lost = []
    for path, value in leaves(cleaned(job)):
        if any(path == n or path.startswith((f"{n}.", f"{n}[")) for n in named):
            continue
        if "CUDA_VISIBLE_DEVICES" in device_of(job, path):
            continue
        options = counterparts(path, value, spec)
        if not any(all(there[wild(p), repr(v)] for p, v in option) for option in options):
            lost.append((path, value))
    return lost


def device_of(job: dict[str, Any], path: str) -> str:
    """Return the name of the environment variable at the path; the operator sets those that hide devices."""
    found = re.fullmatch(r"spec\.tfReplicaSpecs\.(\w+)\.template\.spec\.containers\[(\d+)\]\.env\[(\d+)\]\..*", path)
    if not found or found[1].lower() == "worker":
        return ""
    containers = cleaned(job)["spec"]["tfReplicaSpecs"][found[1]]["template"]["spec"]["containers"]
    variable = containers[int(found[2])]["env"][int(found[3])]
    return str(variable["name"]) if not variable.get("value") else ""
