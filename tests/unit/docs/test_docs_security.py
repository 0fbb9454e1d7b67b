"""SECURITY.md agrees with the chart and the code on rights and ports."""

import re
from collections.abc import Iterator

import yaml

from hack.docs.pages import ROOT
from pstraining.api import contract
from pstraining.api.models import Isolation

TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
TEMPLATES = ROOT / "charts" / "pstraining" / "templates"


def granted() -> Iterator[tuple[str, str]]:
    """Return every resource and verb in the chart's rules for the operator."""
    for name in ("_rules.tpl", "rbac.yaml"):
        text = (TEMPLATES / name).read_text(encoding="utf-8")
        for found in re.finditer(r"^( *)- apiGroups: .*\n(?:\1  .*\n)+", text, re.MULTILINE):
            (rule,) = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", found[0]))
            yield from ((resource, verb) for resource in rule["resources"] for verb in rule["verbs"])


def reported() -> Iterator[tuple[str, str]]:
    """Return every resource and verb in the page's table."""
    table = TEXT.partition("| resource | verbs |")[2].partition("\n\n")[0]
    for line in table.strip().splitlines()[1:]:
        resources, verbs = line.strip("| ").split(" | ")
        for resource in re.findall(r"`([a-z/]+)`", resources):
            yield from ((resource, verb) for verb in verbs.split(", "))


def test_the_operators_rights() -> None:
    assert sorted(set(reported())) == sorted(set(granted()))


def test_ports() -> None:
    assert f"TCP port {contract.TF_PORT} of every task" in TEXT
    assert f"TCP ports {contract.TF_PORT} to {contract.WITNESS_PORT}" in TEXT
    assert f"ports {contract.RING_PORTS[0]} to {contract.WITNESS_PORT}" in TEXT
    assert f"on port {contract.STATUS_PORT}" in TEXT
    assert f"port {contract.METRICS_PORT}" in TEXT


def test_every_isolation_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)`(?: \(default\))? \|", TEXT, re.MULTILINE)
    assert [*Isolation] == [row for row in rows if row in set(Isolation)]
