"""Sums of the workers' metrics."""

import math

from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.view import Ballot
from pstraining.runtime.telemetry.aggregation import (
    METRIC,
    SAMPLES,
    WEIGHT,
    CounterAggregate,
    SessionCounters,
    Window,
    encode,
)
from pstraining.runtime.telemetry.counters import Histogram, Traffic, WorkerCounters


def test_counters_are_added_over_workers_and_their_successors() -> None:
    tally = CounterAggregate()
    tally.note(["", encode(7, {SAMPLES: 1000})])  # a new chief, which does not count earlier values
    assert tally.total[SAMPLES] == 0
    window = Window(tally)
    tally.note([encode(1, {SAMPLES: 10}), encode(7, {SAMPLES: 1030})])
    assert window.counted(SAMPLES) == 40
    tally.note(["", encode(7, {SAMPLES: 1030})])  # a server that came back empty: no count is lost
    tally.note([encode(1, {SAMPLES: 25}), encode(9, {SAMPLES: 5})])  # a new process of a worker
    assert tally.total[SAMPLES] == 60
    assert Window(tally).counted(SAMPLES) == 0


def test_a_new_chief_whose_servers_came_back_empty_counts_from_its_term_on() -> None:
    """A worker outlives the loss of the chief and the first server; its counters then have all that it has trained."""
    worker = SessionCounters()
    worker.begin(1, 7, lambda: {SAMPLES: 99.0})
    assert worker.before == {}, "the process began under this term"
    worker.begin(1, 7, lambda: {SAMPLES: 500.0})
    worker.begin(2, 7, lambda: {SAMPLES: 1000.0, METRIC + "hits": 100.0, WEIGHT + "hits": 1000.0})
    worker.begin(2, 7, lambda: {SAMPLES: 1010.0})
    tally = CounterAggregate()
    tally.note([])
    window = Window(tally)
    counters = {SAMPLES: 1040.0, METRIC + "hits": 130.0, WEIGHT + "hits": 1040.0}
    tally.note([encode(7, counters, session=worker)])
    assert window.counted(SAMPLES) == 40
    assert window.metrics() == {"hits": 30 / 40}
    tally.note([encode(7, counters | {SAMPLES: 1050.0}, session=worker)])
    assert window.counted(SAMPLES) == 50


def test_batches_that_a_restore_takes_back_are_no_part_of_metrics() -> None:
    """A worker that was not replaced continues its sums; it had trained more than it had reported."""

    def counted(samples: float, hits: float) -> dict[str, float]:
        return {SAMPLES: samples, METRIC + "hits": hits, WEIGHT + "hits": samples}

    worker, tally = SessionCounters(), CounterAggregate()
    worker.begin(1, 7, lambda: counted(0, 0))
    tally.note([])
    tally.note([encode(1, counted(100, 50), session=worker)])
    worker.begin(1, 8, lambda: counted(140, 90))
    window = Window(tally)
    for samples, hits in ((150, 91), (160, 95)):
        tally.note([encode(1, counted(samples, hits), session=worker)])
    assert window.metrics() == {"hits": (95 - 90) / (160 - 140)}
    assert tally.total[SAMPLES] == 160, "the job has computed them"
    tally.note([encode(2, counted(10, 3))])
    assert window.metrics() == {"hits": (5 + 3) / (20 + 10)}


def test_a_chief_that_was_renewed_in_its_term_counts_from_the_loss_on() -> None:
    """Its servers came back empty: the worker's counts since the beginning of the term are of earlier epochs."""
    worker, tally = SessionCounters(), CounterAggregate()
    worker.begin(encoding.number(Ballot(1, 4)), 7, dict)
    worker.begin(encoding.number(Ballot(1, 5)), 7, lambda: {SAMPLES: 900.0, METRIC + "m": 9.0, WEIGHT + "m": 900.0})
    tally.note([])
    window = Window(tally)
    tally.note([encode(1, {SAMPLES: 910.0, METRIC + "m": 14.0, WEIGHT + "m": 910.0}, session=worker)])
    assert (window.counted(SAMPLES), window.metrics()) == (10, {"m": 0.5})


def test_a_failover_without_a_restore_takes_nothing_back() -> None:
    """The chief has the reports of the time before; what was not reported before the failover counts."""
    worker, tally = SessionCounters(), CounterAggregate()
    worker.begin(encoding.number(Ballot(1, 4)), 7, dict)
    tally.note([])
    tally.note([encode(1, {METRIC + "m": 2.0, WEIGHT + "m": 10.0}, session=worker)])
    window = Window(tally)
    worker.begin(encoding.number(Ballot(1, 5)), 7, lambda: {METRIC + "m": 6.0, WEIGHT + "m": 20.0})
    tally.note([encode(1, {METRIC + "m": 8.0, WEIGHT + "m": 30.0}, session=worker)])
    assert window.metrics() == {"m": 6 / 20}


def test_a_new_chief_leaves_out_what_the_first_reports_have() -> None:
    worker, tally = SessionCounters(), CounterAggregate()
    worker.begin(1, 7, dict)
    worker.begin(1, 8, lambda: {METRIC + "hits": 4.0, WEIGHT + "hits": 10.0})
    tally.note([encode(1, {METRIC + "hits": 8.0, WEIGHT + "hits": 20.0}, session=worker)])
    window = Window(tally)
    tally.note([encode(1, {METRIC + "hits": 9.0, WEIGHT + "hits": 30.0}, session=worker)])
    assert window.metrics() == {"hits": 0.1}


def test_reports_that_a_returning_member_still_has_count_once() -> None:
    """A member that was cut off has the last reports from before; workers may have been replaced meanwhile."""
    tally = CounterAggregate()
    tally.note([])
    tally.note([encode(1, {SAMPLES: 10}), encode(2, {SAMPLES: 10})])
    tally.note([encode(5, {SAMPLES: 3}), encode(2, {SAMPLES: 30})])
    tally.note([encode(1, {SAMPLES: 8}), encode(2, {SAMPLES: 10})])  # the former reports
    assert tally.total[SAMPLES] == 10 + 3 + 30
    tally.note([encode(5, {SAMPLES: 4}), encode(2, {SAMPLES: 31})])
    assert tally.total[SAMPLES] == 10 + 4 + 31


def test_metrics_are_means_over_the_samples_of_a_window() -> None:
    tally = CounterAggregate()
    tally.note([])
    tally.note([encode(1, {METRIC + "hits": 5.0, WEIGHT + "hits": 10.0})])
    window = Window(tally)
    assert window.metrics() == {}
    counters = {METRIC + "hits": 35.0, WEIGHT + "hits": 50.0, METRIC + "odd": math.nan, WEIGHT + "odd": 1.0}
    tally.note([encode(1, counters)])
    assert window.metrics()["hits"] == 30 / 40
    assert math.isnan(window.loss)
    assert window.losses == {}
    window.add_losses(3.0, 2.0)
    window.add_losses(1.0, 2.0)
    assert window.losses == {"loss": 1.0}


def test_the_order_of_data_is_that_of_workers_that_report_now() -> None:
    """A former run of the job may have left the reports of its workers on the servers."""
    tally = CounterAggregate()
    former = encode(7, {SAMPLES: 1000}, order="former")
    tally.note(["", former])
    tally.note(["", former])
    assert tally.orders == {}
    tally.note([encode(1, {}, order="a"), encode(9, {}, order="b")])
    assert tally.orders == {0: "a", 1: "b"}
    tally.note([encode(1, {}, order="a"), encode(9, {}, order="b")])
    assert tally.orders == {0: "a", 1: "b"}


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram([1.0, 5.0])
    for value in (0.5, 1.0, 3.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("5.0", 3), ("+Inf", 4)]
    assert histogram.sum == 13.5


def test_a_worker_counts_steps_gaps_and_staleness() -> None:
    times = iter([10.0, 11.0, 11.5, 90.0, 90.25])
    account = WorkerCounters(lambda: next(times))
    account.begin()
    account.record_step(5, 0.5, samples=32, applied=True)
    account.record_step(9, 0.4, samples=32, applied=True, staleness=3)
    account.record_step(9, 0.3, samples=32, applied=False, staleness=7)
    account.begin()  # the minute without a session is not a step
    account.record_step(20, 0.2, samples=16, applied=True)
    account.record_step(21, 0.1, samples=16, applied=True)
    assert (account.steps, account.dropped, account.samples, account.step) == (4, 1, 96, 21)
    assert account.longest_gap == 1.0
    assert account.seconds.sum == 1.0 + 0.5 + 0.25
    assert account.staleness.sum == 3
    assert account.staleness.cumulative()[0] == ("0.0", 3)
    assert account.report({"ps-0": Traffic(1, 2)}, {"hits": (3.0, 4.0)})[SAMPLES] == 96
