"""The logs of an epoch whose steps a restore has taken back."""

import pytest

from pstraining.runtime.chief.reports.epoch_sums import EpochSums
from pstraining.runtime.data.epochs import Ends, Epochs, by_splits
from pstraining.runtime.telemetry.aggregation import METRIC, WEIGHT, CounterAggregate, SessionCounters, encode


class Job:
    """A worker whose step `n` has the loss `n` and the metric `10 n`, plus an offset; epochs have 10 steps."""

    def __init__(self, epochs: Epochs | None = None) -> None:
        self.aggregate = CounterAggregate()
        self.sums, self.ends = EpochSums(self.aggregate), Ends(epochs or Epochs(10, 4), 0)
        self._counters, self._session = {METRIC + "m": 0.0, WEIGHT + "m": 0.0}, SessionCounters()
        self._generation = self.step = 0
        self._begin()
        self.aggregate.note([])

    def _begin(self) -> None:
        self._generation += 1
        self._session.begin(1, self._generation, lambda: dict(self._counters))

    def train(self, until: int, *, offset: float = 0.0, reported: bool = True) -> None:
        """Train steps; those that are not reported are lost with the first server."""
        while self.step < until:
            self.step += 1
            self._counters[METRIC + "m"] += 10 * self.step + offset
            self._counters[WEIGHT + "m"] += 1
            if reported:
                self.sums.window.add_losses(self.step + offset, 1)
        if reported:
            self.aggregate.note([encode(1, self._counters, session=self._session)])

    def restore(self, step: int) -> None:
        """Restore all servers, and let the worker train on."""
        self.step = step
        self.sums.restored(step)
        self._begin()

    def look(self) -> int | None:
        """Follow a restore as the chief does at its next look, and return what is missing."""
        if self.sums.has_caught_up(self.ends, self.step):
            self.sums.begin()
        return self.sums.missing_before(self.ends, self.step, by_splits=False)

    def logs(self) -> tuple[float, float]:
        """End the epoch, and return the means of losses and the metric."""
        loss, found = self.sums.window.loss, self.sums.window.metrics()["m"]
        self.ends.report(self.ends.waiting(self.step))
        self.sums.begin()
        return loss, found


def test_steps_that_a_restore_takes_back_do_not_count() -> None:
    job = Job()
    job.train(3)
    job.sums.saved(3)
    job.train(7, offset=100)
    job.train(8, offset=100, reported=False)
    job.restore(3)
    job.train(6)
    assert job.look() is None
    job.sums.saved(6)
    job.train(9, offset=100)
    job.restore(6)
    job.train(10)
    assert job.look() is None
    assert job.logs() == (5.5, 55.0)
    job.train(20)
    assert job.logs() == (15.5, 155.0)


def test_without_a_checkpoint_the_first_epoch_begins_again() -> None:
    job = Job()
    job.train(7, offset=100)
    job.restore(0)
    job.train(10)
    assert job.look() is None
    assert job.logs() == (5.5, 55.0)


def test_steps_of_reported_epochs_that_are_trained_again_count_for_no_epoch() -> None:
    job = Job()
    job.train(8)
    job.sums.saved(8)
    job.train(10)
    job.logs()
    job.train(14, offset=100)
    job.restore(8)
    job.train(9)
    assert job.look() is None
    job.train(10)
    assert job.look() is None
    job.train(20)
    assert job.logs() == (15.5, 155.0)


def test_steps_before_a_checkpoint_of_a_former_chief_are_reported_as_missing() -> None:
    job = Job()
    job.restore(4)  # this chief has not saved it
    job.train(10)
    assert job.look() == 4
    assert job.look() is None
    assert job.logs() == (7.5, 75.0)
    job.restore(10)  # all steps of the epoch under way are known: none
    job.train(11)
    assert job.look() is None


def test_sums_of_a_later_checkpoint_are_not_those_of_the_steps_that_are_trained_again() -> None:
    job = Job()
    for step in (2, 4):
        job.train(step)
        job.sums.saved(step)
    job.restore(2)  # the newest checkpoint was damaged
    job.train(5)
    job.look()
    job.restore(4)
    job.train(6)
    assert job.look() == 4


@pytest.mark.parametrize(("done", "missing"), [(10, None), (12, 7)])
def test_positions_in_splits_are_compared_with_splits(done: int, missing: int | None) -> None:
    """The number of a step says nothing of the splits that are trained."""
    job = Job(by_splits(4, 10))
    job.ends.report(1)
    job.sums.restored(7)
    assert job.sums.missing_before(job.ends, done, by_splits=True) == missing
