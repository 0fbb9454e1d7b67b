"""The facts of a pass: each is derived once, and a job that cannot be read has none."""

from dataclasses import replace
from unittest import mock

from pstraining.core.facts import Facts, gather
from pstraining.core.observe import observe
from pstraining.core.policies import failover, failure_counts
from tests.support.builders import NOW, job, pod


def test_a_job_that_cannot_be_read_has_no_facts() -> None:
    manifest = job()
    manifest["spec"]["worker"]["replicas"] = "many"
    error = gather(observe(manifest, (), ()), NOW)
    assert isinstance(error, str)
    assert error.startswith("spec.worker.replicas: ")


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


def test_changed_facts_derive_anew() -> None:
    facts = gather(observe(job(), (), [pod("worker")]), NOW)
    assert isinstance(facts, Facts)
    assert facts.recorded_end is None
    assert replace(facts, now=NOW).__dict__.keys() == {"job", "snapshot", "status", "now", "queue"}
