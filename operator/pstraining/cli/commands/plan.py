"""`plan -f FILE`: show what the operator would do with a job, and the job's network traffic.

The operator's own planner decides, for a job that does not exist yet, or with --live for the job and its objects in
the cluster.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from string import digits
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import ArgumentError
from pstraining.cli.formatting import count, plain, several
from pstraining.cli.manifests import Document, documents
from pstraining.cli.options import Context, Files, Format, Recursive
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.planning import bandwidth_table
from pstraining.cli.planning.bandwidth_table import Carried
from pstraining.cli.planning.planned import Change, Planned, planned_for
from pstraining.cli.submission import all_placed
from pstraining.cli.validation.documents import check_documents, require_valid
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Manifest, PatchStatus, Replace, Resize
from pstraining.resources import kueue, sizes
from pstraining.resources.resource_requests import Amounts, of_pod

WORDS: Final = {
    Create: ("create", "green"),
    **dict.fromkeys((Apply, Replace, PatchStatus), ("correct", "yellow")),
    Resize: ("resize", "yellow"),
    Delete: ("delete", "red"),
}


def plan(
    files: Files,
    recursive: Recursive = False,
    live: Annotated[
        bool, typer.Option("--live", help="Compare with the job and its objects in the cluster. Nothing is stored.")
    ] = False,
    parameters: Annotated[
        str, typer.Option(help="Dense parameters of the model, such as 25.6M. Adds the network traffic to the output.")
    ] = "",
    bandwidth: Annotated[
        str,
        typer.Option(help="Bandwidth of a node in bits per second each way, such as 10G. Default: the job's hint."),
    ] = "",
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the job. With --live, the context's is the default."),
    ] = None,
    context: Context = None,
    output: Format = Output.TEXT,
) -> None:
    """Show every object that the operator would create, change or delete for jobs. Nothing is stored.

    The operator's own planner decides, offline for jobs that do not exist yet. With --live, the command compares with
    existing jobs in a dry run, which requires the right to change them. With --parameters, the output adds the bytes on
    every link when each worker processes one batch, their duration at the bandwidth, the best number of parameter
    servers, and the traffic of other settings. A job with generateName is shown with an example of its name.
    """
    if not live and context not in (None, Overrides()):
        raise ArgumentError("Without --live, no cluster is asked: add --live, or remove the options of the cluster.")
    if bandwidth and not parameters:
        raise ArgumentError("--bandwidth: give the model's --parameters too, whose traffic it carries.")
    values = _number(parameters, "--parameters") if parameters else 0
    asked = _number(bandwidth, "--bandwidth") / 1e6 if bandwidth else None
    found = _named(require_valid(check_documents(documents(files, recursive)), "planned"))
    cluster = KubeconfigClient(context) if live else None
    default = cluster.namespace if cluster else "default"
    planned = [planned_for(cluster, job, datetime.now(UTC)) for job in all_placed(found, namespace, default)]
    carried = [
        bandwidth_table.carried(p.job, values, bandwidth_megabits(p.job, asked)) if values else None for p in planned
    ]
    reports = [report(p, c) for p, c in zip(planned, carried, strict=True)]
    pictures = [picture(p, c) for p, c in zip(planned, carried, strict=True)]
    show(PrintedKind.PLAN, reports[0] if len(reports) == 1 else reports, output, lambda: Group(*pictures))


def _named(found: Sequence[Document]) -> list[Document]:
    """Return the documents; jobs with generateName have a name, such as digits-00001, in place of a random one."""
    made = []
    for index, document in enumerate(found, 1):
        metadata, body = document.body["metadata"], document.body
        if not metadata.get("name") and (prefix := metadata.get("generateName")):
            body = {**body, "metadata": {**metadata, "name": f"{prefix}{index:05}"}}
        made.append(replace(document, body=body))
    return made


def bandwidth_megabits(job: Manifest, asked: float | None) -> float | None:
    """Return the bandwidth in megabits per second: that of the option, or else the job's hint; None without both."""
    hint = (job["spec"].get("network") or {}).get("bandwidthMegabits")
    return asked if asked is not None else hint


def details(planned: Planned, action: Action) -> str:
    """Return the details of an action, for display; empty without any."""
    if isinstance(action, (Delete, PatchStatus)):
        return ""
    if isinstance(action, (Apply, Replace)) and action.kind is Kind.CLAIM:
        return _fate(action.body if isinstance(action, Apply) else {})
    if isinstance(action, Replace):
        return _replaced(action)
    if isinstance(action, Resize):
        carried = sizes.text({"resources": sizes.asked(planned.sizes.get(action.name, ""))})
        return ", ".join(sizes.changes(carried, sizes.text({"resources": action.resources})))
    if isinstance(action, Apply):
        there = planned.there.get((action.kind, action.name))
        fields = {k: v for k, v in action.body.items() if k not in ("apiVersion", "kind", "metadata")}
        return "; ".join(str(c) for k in fields for c in _rendered((there or {}).get(k), fields[k], k))
    spec, template = action.body.get("spec") or {}, template_of(action)
    match action.kind:
        case Kind.SERVICE:
            return "ports " + ", ".join(str(port["port"]) for port in spec["ports"])
        case Kind.CLAIM:
            size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
            words = (size, spec.get("storageClassName"))
            return f"{' '.join(str(word) for word in words if word)}, {_fate(action.body)}"
        case Kind.CONFIG_MAP:
            return several(len(action.body.get("data") or {}), "file")
        case Kind.POD_DISRUPTION_BUDGET:
            return f"minAvailable {spec['minAvailable']}"
        case Kind.POD_GROUP | Kind.VOLCANO_POD_GROUP:
            return f"minMember {spec['minMember']}"
        case Kind.WORKLOAD:
            number, asked = _summed((int(item["count"]), item["template"]) for item in spec["podSets"])
            amount = amount_text(asked)
            return f"for {several(number, 'pod')}" + (f", {amount} in total" if amount else "")
        case _ if template:
            amount = amount_text(of_pod(template["spec"]))
            return f"{several(pods_of(action), 'pod')}" + (f", {amount} each" if amount else "")
    return ""


def _replaced(action: Replace) -> str:
    """Describe the fields that are replaced."""
    if action.kind is Kind.PS_TRAINING_JOB:
        return f"label {kueue.LABEL_QUEUE}: {action.parts['/metadata/labels'][kueue.LABEL_QUEUE]}"
    return ", ".join(pointer.replace("~1", "/") for pointer in action.parts)


def _fate(claim: Manifest) -> str:
    """Describe whether a claim is deleted with the job."""
    owned = (claim.get("metadata") or {}).get("ownerReferences")
    return "deleted with the job" if owned else "kept when the job is deleted"


def runs(planned: Planned) -> Iterator[tuple[Action, str, int]]:
    """Group consecutive actions that differ only in a number: yield the first, the last one's name and the count."""

    def alike(action: Action) -> tuple[object, ...]:
        return type(action), action.kind, action.name.rstrip(digits), details(planned, action)

    for _, group in groupby(planned.actions, alike):
        found = list(group)
        yield found[0], found[-1].name, len(found)


def template_of(action: Create) -> Manifest | None:
    """Return the pod template of a created object, if it has one."""
    found: Manifest | None = (action.body.get("spec") or {}).get("template")
    return found


def pods_of(action: Create) -> int:
    """Return the number of pods of a created object."""
    return int(action.body["spec"].get("replicas", 1))


def amount_text(amounts: Amounts) -> str:
    """Format CPU, memory and devices; empty without any."""
    cpu, memory = amounts.get("cpu"), amounts.get("memory")
    parts = [f"{cpu.normalize():f} CPU"] if cpu else []
    unit, length = ("Gi", 2**30) if memory and memory >= 2**30 else ("Mi", 2**20)
    parts += [f"{plain(float(memory) / length, 5)}{unit}"] if memory else []
    parts += [f"{number} {name}" for name, number in devices_of(amounts).items()]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def devices_of(amounts: Amounts) -> dict[str, int]:
    """Return the extended resources, such as GPUs. Their names have a domain."""
    return {name: int(amount) for name, amount in sorted(amounts.items()) if "/" in name and amount}


def total(planned: Planned) -> tuple[int, Amounts]:
    """Return the number of pods that would be created, and the sum of their requests."""
    templates = [
        (pods_of(action), template)
        for action in planned.actions
        if isinstance(action, Create) and (template := template_of(action))
    ]
    return _summed(templates)


def _summed(templates: Iterable[tuple[int, Manifest]]) -> tuple[int, Amounts]:
    """Return the number of pods of templates, and the sum of their requests."""
    pods, asked = 0, dict[str, Decimal]()
    for number, template in templates:
        pods += number
        for name, amount in of_pod(template["spec"]).items():
            asked[name] = asked.get(name, Decimal(0)) + amount * number
    return pods, asked


def report(planned: Planned, carried: Carried | None) -> dict[str, Any]:
    """Return a job's plan and its network traffic, for programs."""
    metadata = planned.job["metadata"]
    pods, asked = total(planned)
    actions = [
        {
            "action": WORDS[type(action)][0],
            "kind": str(action.kind),
            "name": action.name,
            "reason": str(action.reason),
            "details": details(planned, action),
        }
        for action in planned.actions
    ]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "exists": planned.exists,
        "changes": [{"field": c.field, "before": c.before, "after": c.after} for c in planned.changes],
        "actions": actions,
        **({"resizes": list(planned.resizes)} if planned.resizes else {}),
        **({"sizings": list(planned.sizings)} if planned.sizings else {}),
        "newPods": {
            "number": pods,
            "cpu": float(asked.get("cpu", 0)),
            "memoryBytes": int(asked.get("memory", 0)),
            "devices": devices_of(asked),
        },
        **({"queue": planned.queue} if planned.queue else {}),
        **({"notes": list(planned.notes)} if planned.notes else {}),
        **({"network": bandwidth_table.report(carried)} if carried else {}),
    }


def picture(planned: Planned, carried: Carried | None) -> RenderableType:
    """Render a job's plan and its network traffic as text."""
    metadata = planned.job["metadata"]
    where = f"{metadata['name']} in {metadata['namespace']}"
    parts: list[RenderableType] = [Text(_headline(planned, where))]
    parts += [Text(f"  {change}") for change in planned.changes]
    if planned.actions:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("ACTION", "KIND", "NAME", "DETAILS"):
            table.add_column(title, overflow="fold")
        for action, last, number in runs(planned):
            word, style = WORDS[type(action)]
            name = action.name if number == 1 else f"{action.name} ... {last} ({number})"
            table.add_row(Text(word, style=style), str(action.kind), name, details(planned, action))
        pods, amount = total(planned)
        summed = f"{several(len(planned.actions), 'object')}; {several(pods, 'new pod')}"
        asked = f" that request {amount_text(amount)} in total" if amount_text(amount) else ""
        parts += [Text(), table, Text(), Text(summed + (asked if pods else "") + ".")]
    parts += [Text(f"Size of {way}") for way in (*planned.resizes, *planned.sizings)]
    if planned.queue:
        waits = "an operator with kueue.enabled creates pods once it is admitted."
        parts.append(Text(f"The job waits in the queue {planned.queue}: {waits}"))
    parts += [Text(note) for note in planned.notes]
    if planned.exists and planned.actions:
        parts.append(Text("These are the next actions. Later ones depend on their results."))
    if carried:
        parts += [Text(), bandwidth_table.picture(carried)]
    return Group(*parts)


def _headline(planned: Planned, where: str) -> str:
    if not planned.exists:
        return f"{where} would be created" + (":" if planned.actions else ", without objects: see suspend, managedBy.")
    if not planned.changes:
        return f"{where} already matches the manifest" + (":" if planned.actions else ": nothing to do.")
    return f"{where} would be changed" + ("" if planned.actions else ", without a change of its objects") + ":"


def _rendered(before: Any, after: Any, path: str) -> Iterator[Change]:
    """Yield the rendered fields that differ. Fields that only other managers set are ignored."""
    if isinstance(after, Mapping):
        for name, value in after.items():
            yield from _rendered((before or {}).get(name), value, f"{path}.{name}")
    elif before != after:
        yield Change(path, before, after)


def _number(text: str, option: str) -> int:
    try:
        return count(text)
    except ValueError as error:
        raise ArgumentError(f"{option}: {error}") from None
