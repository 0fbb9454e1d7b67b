"""The page about the installation names every kind of a job's objects that may stay behind."""

import re

from hack.docs.pages import ROOT
from pstraining.core.actions import Kind
from pstraining.kube.paths import RESOURCES

PAGE = (ROOT / "docs" / "operators" / "install.md").read_text(encoding="utf-8")
KEPT = {Kind.CLAIM, Kind.POD}
"""Claims hold data, and pods are deleted with what creates them."""
NOT_CREATED = {
    *(Kind.PS_TRAINING_JOB, Kind.RESOURCE_FLAVOR, Kind.WORKLOAD_PRIORITY_CLASS, Kind.PRIORITY_CLASS, Kind.LOCAL_QUEUE),
}


def test_the_command_for_leftovers_names_every_kind_of_child() -> None:
    section = PAGE[PAGE.index("Delete such leftovers") :].partition("\n## ")[0]
    (command,) = re.findall(r"kubectl delete (\S+)", section)
    optional = re.findall(r"`(podgroups|workloads)`", section)
    plurals = {RESOURCES[kind].plural for kind in Kind if kind not in KEPT | NOT_CREATED}
    named = {kind.removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s" for kind in command.split(",")}
    assert named | set(optional) == plurals
