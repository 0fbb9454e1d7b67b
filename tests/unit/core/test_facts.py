"""The facts of a pass: each is derived once, and an invalid job has none."""

from dataclasses import replace
from unittest import mock

import pytest

from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Outcomes
from pstraining.core.facts import Facts, Unreadable, gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.core.policies import failover, failure_counts
from pstraining.core.status import next_status
from pstraining.resources import fixed_fields, workloads
from tests.support.builders import LAUNCHER, NOW, job, pod
from tests.support.simulation import World


def test_a_job_that_cannot_be_read_has_no_facts() -> None:
    manifest = job()
    manifest["spec"]["worker"]["replicas"] = "many"
    found = gather(observe(manifest, (), ()), NOW)
    assert isinstance(found, Unreadable)
    assert found.error.startswith("spec.worker.replicas: ")


def test_each_fact_is_derived_once() -> None:
    facts = gather(observe(job(), (), [pod("worker"), pod("ps")]), NOW)
    assert isinstance(facts, Facts)
    with (
        mock.patch.object(failure_counts, "count_failures", wraps=failure_counts.count_failures) as counting,
        mock.patch.object(failover, "shards", wraps=failover.shards) as reading,
    ):
        assert facts.failures_recorded == facts.failures_recorded == facts.failures.is_recorded(facts.status)
        assert facts.served_shards <= {s.index for s in facts.shards}
        assert facts.without_standbys is facts.without_standbys
    assert (counting.call_count, reading.call_count) == (1, 1)


def test_changed_facts_are_derived_again() -> None:
    facts = gather(observe(job(), (), [pod("worker")]), NOW)
    assert isinstance(facts, Facts)
    assert facts.recorded_end is None
    assert replace(facts, now=NOW).__dict__.keys() == {"job", "snapshot", "status", "now", "queue", "resharding"}


def test_a_pass_validates_the_job_once_and_hashes_its_fixed_fields_once() -> None:
    world = World(job())
    world.settle()
    snapshot = world.snapshot()
    with (
        mock.patch.object(PSTrainingJob, "model_validate", wraps=PSTrainingJob.model_validate) as validating,
        mock.patch.object(fixed_fields, "_digest", wraps=fixed_fields._digest) as hashing,
    ):
        facts = gather(snapshot, world.now)
        plan(facts, LAUNCHER)
        next_status(facts, Outcomes(()))
    assert (validating.call_count, hashing.call_count) == (1, 1)


@pytest.mark.parametrize(("mode", "renders"), [("None", 0), ("Warm", 0), ("Hot", 2)])
def test_existing_servers_are_rendered_only_where_a_change_replaces_them(mode: str, renders: int) -> None:
    world = World(job(spec={"ps": {"standby": {"mode": mode}}, "training": {"mode": "Async"}}))
    world.settle()
    build = workloads.build_parameter_servers
    with mock.patch.object(workloads, "build_parameter_servers", wraps=build) as rendering:
        assert world.plan().actions == ()
    assert len(world.names_of("StatefulSet")) == (1 if mode == "None" else 2)
    assert rendering.call_count == renders
