"""The output of `status`: a table of jobs or a tree of one. Plain Text, because markup would interpret brackets."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pstraining.api.conditions import Phase
from pstraining.cli.formatting import devices, several, since
from pstraining.cli.jobs import listed, one_line
from pstraining.cli.output import UncutTable
from pstraining.cli.status.pod_state import READY, TERMINATING

Found = Mapping[str, Any]

_COLOURS: Final = {
    Phase.RUNNING: "green",
    Phase.SUCCEEDED: "green",
    READY: "green",
    Phase.FAILED: "red",
    Phase.INVALID: "red",
    Phase.SUSPENDED: "blue",
    TERMINATING: "blue",
}
"""Colours of phases and of pods' states. All others wait and are yellow."""


def table(jobs: Sequence[Found], now: datetime, *, namespaces: bool) -> Table:
    """Render a table with a row for each job.

    Args:
        jobs: the summaries of jobs.
        now: the present time.
        namespaces: whether to show namespaces.
    """
    found = UncutTable(box=None, pad_edge=False, header_style="")
    for name in (*["NAMESPACE"] * namespaces, "NAME", "STATE", "PS", "WORKERS", "RESTARTS", "AGE"):
        found.add_column(name, no_wrap=True)
    found.add_column("WHY")
    for job in jobs:
        cells = [*[job["namespace"]] * namespaces, job["name"], _word(job["phase"]), job["ps"], job["workers"]]
        cells += [str(job["restarts"]), since(job["created"], now)]
        # The only column that is cut in a narrow terminal.
        cells.append(Text(job["why"], no_wrap=True, overflow="ellipsis"))
        found.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return found


def tree(job: Found, now: datetime) -> Tree:
    """Render a tree of one job with its conditions, roles, pods, shards and events."""
    age = f"namespace {job['namespace']}, {since(job['created'], now)} old"
    root = Tree(Text.assemble((job["name"], "bold"), "  ", _word(job["phase"]), f"  {age}"))
    for note in job["notes"]:
        root.add(Text(note, "yellow"))
    _conditions(root, job["conditions"], now)
    for role in job["roles"]:
        _role(root, role, now)
    _shards(root, job["shards"])
    _events(root, job["events"], now)
    return root


def _conditions(root: Tree, conditions: Sequence[Found], now: datetime) -> None:
    if not conditions:
        return
    branch = root.add("conditions")
    for condition in conditions:
        holds = condition["status"] == "True"
        message = one_line(condition.get("message") or "")
        age = since(condition.get("lastTransitionTime"), now)
        line = f"{condition['type']} {condition['status']} for {age}, {condition['reason']}"
        branch.add(Text(f"{line}: {message}" if message else line, "" if holds else "dim"))


def _role(root: Tree, role: Found, now: datetime) -> None:
    counts = [f"{role['ready']}/{role['desired']} ready"]
    counts += [f"{role['succeeded']} succeeded"] if role["succeeded"] else []
    counts += [several(role["restarts"], "restart")] if role["restarts"] else []
    branch = root.add(Text.assemble((role["role"], "bold"), "  ", ", ".join(counts)))
    for pod in role["pods"]:
        _pod(branch, pod, now)
    if role["sizing"]:
        branch.add(Text(role["sizing"], "dim"))
    if role["givenUp"]:
        branch.add(Text(f"given up, and the job continues without: {listed(role['givenUp'])}", "yellow"))
    if role["withoutPod"]:
        branch.add(Text(f"no pod: {listed(role['withoutPod'])}", "yellow"))
    if failure := role["lastFailure"]:
        branch.add(Text(_failure(failure, now), "dim"))


def _pod(branch: Tree, pod: Found, now: datetime) -> None:
    parts = [pod["pod"], f"on {pod['node']}" if pod["node"] else "not on a node yet", since(pod["created"], now)]
    parts += ["primary" if pod["primary"] else "standby"] if "primary" in pod else []
    parts += [several(pod["restarts"], "restart")] if pod["restarts"] else []
    parts += [f"computes on {devices(pod['devices'])}"] if pod.get("devices") else []
    line = Text.assemble((pod["task"], "bold"), "  ", _word(pod["state"]), "  ", ", ".join(parts))
    node = branch.add(line)
    for reason in pod["why"]:
        node.add(Text(reason, "yellow"))


def _failure(failure: Found, now: datetime) -> str:
    code = failure.get("exitCode")
    parts = [failure["pod"], failure.get("reason") or "", "" if code is None else f"exit code {code}"]
    ago = f"{since(failure['time'], now)} ago" if failure.get("time") else ""
    line = ", ".join(part for part in (*parts, ago) if part)
    return f"last failure: {line}" + (f": {one_line(failure['message'])}" if failure.get("message") else "")


def _shards(root: Tree, shards: Sequence[Found]) -> None:
    if not shards:
        return
    branch = root.add("shards")
    for shard in shards:
        ready, others = shard.get("readyStandbys", 0), shard["standbys"]
        line = f"shard {shard['index']}: primary {shard.get('primary') or 'none'}, {ready}/{others} standbys ready"
        if takeovers := shard.get("takeovers", 0):
            line += f", {several(takeovers, 'failover')}"
            line += f" (the last one: {one_line(shard['lastCause'])})" if shard.get("lastCause") else ""
        branch.add(Text(line, "" if ready >= others and shard.get("primary") else "yellow"))


def _events(root: Tree, events: Sequence[Found], now: datetime) -> None:
    if not events:
        return
    branch = root.add("events")
    for event in events:
        times = f" (x{event['count']})" if event["count"] > 1 else ""
        line = f"{since(event['time'], now)} ago  {event['reason']}{times}: {one_line(event['message'])}"
        branch.add(Text(line, "yellow" if event["type"] == "Warning" else ""))


def _word(word: str) -> Text:
    return Text(word, _COLOURS.get(word, "yellow"))
