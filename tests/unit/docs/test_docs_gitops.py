"""The page on Argo CD and Flux: its expressions judge a job as the page says, and it names what the operator writes."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from hack.docs.pages import ROOT, pages
from pstraining.api.conditions import Condition
from pstraining.cli.validation import cel
from pstraining.core.actions import Create, Kind
from pstraining.resources import kueue
from tests.support.builders import job
from tests.support.queued_world import queued
from tests.support.simulation import World

PAGE = pages()[ROOT / "docs" / "operators" / "gitops.md"]
ORDER = ("inProgress", "failed", "current")
"""The order in which Flux evaluates the expressions (RFC 0009). If none is true, the object is in progress."""


def expressions() -> dict[str, str]:
    """Return the expressions of Flux by their result."""
    shown = [found for block in PAGE.blocks if block.language == "yaml" for found in yaml.safe_load_all(block.text)]
    (kustomization,) = (found for found in shown if found["kind"] == "Kustomization")
    (check,) = kustomization["spec"]["healthCheckExprs"]
    return {name: check[name] for name in ORDER if name in check}


def judged(world: World) -> str:
    """Return what Flux takes a job to be."""
    assert world.job is not None
    variables = cel.context({"status": world.job["status"]})
    return next((name for name, one in expressions().items() if cel.evaluate(one, variables)), "inProgress")


def running(**options: Any) -> World:
    world = World(job(), **options)
    world.settle()
    return world


def refusing(world: World) -> World:
    """Let the API server reject a worker that is added to a job that trains."""
    world.refuse = lambda action: "no" if isinstance(action, Create) and action.kind is Kind.DEPLOYMENT else ""
    world.edit({"worker": {"replicas": 4}})
    world.settle()
    return world


def ended(world: World, code: int = 0) -> World:
    world.end("chief", code=code)
    world.settle()
    return world


def suspended() -> World:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    return world


def waiting(**options: Any) -> World:
    world = World(job(), **options)
    world.reconcile()
    return world


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (waiting, "inProgress"),
        (running, "current"),
        (suspended, "current"),
        (lambda: ended(running()), "current"),
        (lambda: ended(running(), code=78), "failed"),
        (lambda: running(refuse=lambda action: "no" if action.kind is Kind.STATEFUL_SET else ""), "failed"),
        (lambda: waiting(foreign={("Service", "digits-hs")}), "failed"),
        (lambda: refusing(running()), "failed"),
        (lambda: ended(refusing(running())), "current"),
    ],
    ids=[
        *("waits", "runs", "is suspended", "has succeeded", "has failed", "is invalid", "lacks a name"),
        *("has an invalid change", "has succeeded beside an invalid change"),
    ],
)
def test_flux_judges_a_job_as_the_page_says(made: Callable[[], World], verdict: str) -> None:
    assert judged(made()) == verdict


def test_the_page_names_what_flux_evaluates_without_expressions() -> None:
    """kstatus, which Flux uses for every kind, reads these three conditions of an object."""
    read = {"Ready", "Reconciling", "Stalled"} & {*Condition}
    assert read == {"Stalled"}
    assert read <= {span.text for span in PAGE.spans}


def test_argo_cd_reads_the_same_conditions() -> None:
    (script,) = (block.text for block in PAGE.blocks if "resource.customizations.health" in block.text)
    for name in ("Failed", "Succeeded", "InvalidTemplate", "NameConflict", "Suspended", "Running"):
        assert f'"{name}"' in script
        assert f"'{name}'" in str(expressions().values())


def test_the_page_names_the_label_that_the_operator_writes() -> None:
    world = queued()
    world.default_queue = True
    assert world.job is not None
    del world.job["metadata"]["labels"]
    world.reconcile()
    ((name, value),) = world.job["metadata"]["labels"].items()
    assert name == kueue.LABEL_QUEUE
    assert f"{name}: {value}" in {span.text for span in PAGE.spans}
