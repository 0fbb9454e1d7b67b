"""Epochs as numbers: by steps, by splits, and each reported once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.data.epochs import Ends, Epochs, by_splits, by_steps


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((100, None, None), (100, Epochs(None, 1))),
        ((None, 5, 20), (100, Epochs(20, 5))),
        ((70, 5, 20), (70, Epochs(20, 4))),  # the step budget is smaller; the last epoch is not complete
        ((200, 5, 20), (100, Epochs(20, 5))),  # the epochs are fewer
        ((100, None, 20), (100, Epochs(20, 5))),
        ((None, None, 20), (None, Epochs(20, None))),
    ],
)
def test_steps_and_epochs_set_one_budget(
    given: tuple[int | None, int | None, int | None], expected: tuple[int | None, Epochs]
) -> None:
    assert by_steps(*given) == expected


@pytest.mark.parametrize(
    ("epochs", "done", "under_way", "ended", "ended_when_over"),
    [
        (Epochs(10, 3), 0, 0, 0, 0),
        (Epochs(10, 3), 9, 0, 0, 1),
        (Epochs(10, 3), 10, 1, 1, 1),
        (Epochs(10, 3), 25, 2, 2, 3),
        (Epochs(10, 3), 34, 2, 3, 3),  # Async made a few additional steps
        (Epochs(None, 1), 99, 0, 0, 1),
        (by_splits(None, 4), 9, 2, 2, 3),
    ],
)
def test_an_epoch_runs_until_all_of_it_is_trained(
    epochs: Epochs, done: int, under_way: int, ended: int, ended_when_over: int
) -> None:
    assert epochs.under_way(done) == under_way
    assert epochs.ended(done, over=False) == ended
    assert epochs.ended(done, over=True) == ended_when_over


@given(st.integers(1, 9), st.integers(0, 40), st.lists(st.integers(0, 60), max_size=20))
def test_every_epoch_is_reported_once_despite_rollbacks(size: int, begin: int, looks: list[int]) -> None:
    ends = Ends(Epochs(size), begin)
    reported = []
    for done in looks:
        if number := ends.waiting(done):
            last = ends.report(number)
            reported += list(range(last - number + 1, last + 1))
    assert reported == list(range(begin // size, max([begin, *looks]) // size))


def test_every_started_epoch_has_ended_after_training() -> None:
    ends = Ends(Epochs(10, 3), 12)
    assert ends.waiting(25) == 1
    assert ends.report(1) == 1
    assert ends.waiting(25, over=True) == 1
    assert ends.report(1) == 2
    assert ends.waiting(30, over=True) == 0
