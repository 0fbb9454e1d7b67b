"""The decision whether compression pays: tables of decisions, and a simulated worker."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.compression import auto_select
from pstraining.runtime.compression.auto_select import (
    BLOCK,
    CODED,
    FEW,
    FIRST_EXPLOIT_STEPS,
    MANY,
    MARGIN,
    PLAIN,
    Auto,
    decide,
)


@pytest.mark.parametrize(
    ("plain", "coded", "expected"),
    [
        ([], [], None),
        ([9.0] * (FEW - 1), [1.0] * MANY, None),
        ([9.0] * FEW, [1.0] * FEW, CODED),
        ([1.0] * FEW, [9.0] * FEW, PLAIN),
        ([1.0] * FEW, [1.2] * FEW, None),
        ([9.0] * (FEW - 1) + [1.0], [1.0] * FEW, None),  # one value is not above the other format's
        ([1.2] * MANY, [1.0] * MANY, CODED),
        ([1.0] * MANY, [1.2] * MANY, PLAIN),
        ([1.0] * MANY, [1.0] * MANY, PLAIN),
        ([1.0] * MANY, [MARGIN + 0.01] * MANY, PLAIN),
        ([1.0] * MANY, [MARGIN - 0.01] * MANY, CODED),
        ([1.0] * MANY, [0.8] * (MANY - 2) + [90.0] * 2, CODED),  # a pause of the machine does not count
    ],
)
def test_the_decision(plain: list[float], coded: list[float], expected: int | None) -> None:
    assert decide((tuple(plain), tuple(coded))) == expected


@dataclass
class Played:
    """A worker whose step takes the time that `seconds` returns for the step's number and format."""

    seconds: Callable[[int, int], float]
    known: Auto = field(default_factory=Auto)
    made: int = 0

    def step(self, form: int | None = None) -> int:
        """Make one step, in the format that another process proposes or in the worker's own; return its format."""
        form = auto_select.propose(self.known) if form is None else form
        self.known = auto_select.update(self.known, form, self.seconds(self.made, form))
        self.made += 1
        return form

    def steps(self, number: int) -> list[int]:
        return [self.step() for _ in range(number)]


def constant(plain: float, coded: float) -> Callable[[int, int], float]:
    return lambda _, form: (plain, coded)[form]


def noisy(plain: float, coded: float, seed: int, noise: float) -> Callable[[int, int], float]:
    drawn = random.Random(seed)
    return lambda _, form: (plain, coded)[form] * drawn.uniform(1, 1 + noise)


@given(plain=st.floats(1e-3, 1e3), ratio=st.floats(0.05, 20), seed=st.integers(0, 2**32), noise=st.floats(0, 0.08))
def test_the_faster_format_is_found_and_equal_ones_cost_little(
    plain: float, ratio: float, seed: int, noise: float
) -> None:
    worker = Played(noisy(plain, plain * ratio, seed, noise))
    worker.steps(2 * BLOCK * MANY)
    assert not worker.known.exploring
    if ratio < 0.85:
        assert worker.known.chosen == CODED
    elif ratio > 1.15:
        assert worker.known.chosen == PLAIN
    else:
        costs = {PLAIN: plain, CODED: plain * ratio}
        assert min(costs.values()) / costs[worker.known.chosen or PLAIN] > 0.85


@given(seed=st.integers(0, 2**32))
def test_formats_alternate_while_exploring_and_drift_does_not_decide(seed: int) -> None:
    drawn = random.Random(seed)
    worker = Played(lambda made, form: (1.0, 0.8)[form] * (1 + made / 30) * drawn.uniform(1, 1.05))
    forms = []
    while worker.known.exploring:
        forms.append(worker.step())
    assert forms[: 4 * BLOCK] == ([PLAIN] * BLOCK + [CODED] * BLOCK) * 2
    assert worker.known.chosen == CODED


def test_a_clear_case_is_settled_early() -> None:
    worker = Played(constant(10.0, 1.0))
    forms = []
    while worker.known.exploring:
        forms.append(worker.step())
    assert len(forms) == 4 * BLOCK


def test_exploration_becomes_rarer() -> None:
    worker = Played(constant(1.0, 2.0))
    looked = [step for step, form in enumerate(worker.steps(10_000)) if form == CODED]
    begins = [step for step in looked if step - 1 not in looked and step - BLOCK - 1 not in looked]
    begins = [
        begin for begin, former in zip(begins, [-FIRST_EXPLOIT_STEPS, *begins], strict=False) if begin - former > 50
    ]
    gaps = [b - a for a, b in pairwise(begins)]
    assert len(gaps) >= 4
    assert all(1.8 < later / earlier < 2.2 for earlier, later in pairwise(gaps))
    assert len(looked) < 100


@pytest.mark.parametrize("chosen", [PLAIN, CODED])
def test_exploration_is_earlier_when_the_speed_changes(chosen: int) -> None:
    """Exploration is earlier when the speed changes: a link becomes slow, or fast again, at step 400."""
    fast, slow = (1.0, 1.2), (10.0, 3.0)
    before, then = (fast, slow) if chosen == PLAIN else (slow, fast)
    worker = Played(lambda made, form: before[form] if made < 400 else then[form])
    worker.steps(400)
    assert worker.known.chosen == chosen
    worker.steps(100)
    assert worker.known.chosen == 1 - chosen


def test_a_hold_that_is_over_once_begins_short_again_after_another_choice() -> None:
    worker = Played(lambda made, form: ((1.0, 2.0) if made < 2000 else (9.0, 1.0))[form])
    worker.steps(2000)
    assert worker.known.exploit_steps > FIRST_EXPLOIT_STEPS
    worker.steps(200)
    assert (worker.known.chosen, worker.known.exploit_steps) == (CODED, FIRST_EXPLOIT_STEPS)


@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.1, 0.5]))
def test_workers_that_follow_each_others_proposals_agree(seed: int, share: float) -> None:
    """Workers that follow each other's proposals agree: in Sync every worker uses the format that one of them proposed,
    and the proposer may change.
    """
    workers, drawn = [Played(noisy(1.0, 0.6, number, 0.05)) for number in range(2)], random.Random(seed)
    form = PLAIN
    for _ in range(400):
        for worker in workers:
            worker.step(form)
        form = auto_select.propose(workers[drawn.random() < share].known)
    assert [worker.known.chosen for worker in workers] == [CODED, CODED]


@pytest.mark.parametrize("first", [PLAIN, CODED])
def test_a_worker_that_decides_a_step_ahead_settles_on_either_format(first: int) -> None:
    worker, form = Played(noisy(1.0, 0.6, 1, 0.05)), first
    for _ in range(100):
        wish = auto_select.propose(worker.known, form)
        worker.step(form)
        form = wish
    assert worker.known.chosen == CODED
