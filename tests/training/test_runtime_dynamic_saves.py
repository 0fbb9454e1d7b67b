"""Each save of tables with rows by key shows one moment, while asynchronous workers insert keys."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.ps.tables.dynamic_table import RowCount
from tests.support.soak_marks import ALL, THOROUGH, in_all
from tests.support.worker_threads import Crew
from tests.training.test_runtime_dynamic_embedding import PATIENCE, WIDTH, batches, by_key, equal, model, rig_of

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(600)]
SAVES = 200 if THOROUGH else 6
LONGEST_PAUSE = 0.03
"""Maximum of seconds between two saves: the time of some updates of both workers."""


def shares(ended: threading.Event, seed: int) -> Iterator[Any]:
    """Yield batches without end, a third of whose keys are new."""
    import tensorflow as tf

    dice = np.random.default_rng(seed)
    while not ended.is_set():
        known = np.minimum(dice.zipf(1.3, (16, 2)), 500)
        keys = np.concatenate([known, dice.integers(-(2**62), 2**62, (16, 1))], 1)
        yield tf.constant(keys), tf.constant(dice.integers(0, 2, (16, 1)).astype("float32"))


def check(state: Any, initializer: Any) -> dict[int, list[Any]]:
    """Demand that rows and slots have the same keys and are of one moment; return them by key.

    An element has left its first value if, and only if, the optimizer has had a gradient for it.
    """
    import tensorflow as tf

    found = by_key(state)
    rows, first, second = (np.array([columns[place] for columns in found.values()]) for place in range(3))
    begun = initializer.rows(tf.constant(list(found), tf.int64), WIDTH, tf.float32).numpy()
    assert np.isfinite([rows, first, second]).all()
    np.testing.assert_array_equal((first != 0)[rows != begun], True)
    np.testing.assert_array_equal((rows != begun)[second > 1e-9], True)
    np.testing.assert_array_equal((first != 0)[second > 1e-9], True)
    return found


def test_saves_at_random_moments_are_of_one_moment_and_restore_bit_equal(client: Any) -> None:
    rig = rig_of(client, ps=2 if ALL else 1, workers=2, mode="Async")
    rig.start()
    (initializer,) = rig.model.row_initializers
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, ended = random.Random(seed), threading.Event()
    crew = Crew(rig, [shares(ended, seed + worker) for worker in range(2)])
    numbers, deadline = [0], time.monotonic() + PATIENCE
    try:
        while len(numbers) <= SAVES:
            assert not crew.errors, crew.errors
            assert time.monotonic() < deadline
            time.sleep(dice.uniform(0, LONGEST_PAUSE))
            state = rig.control.snapshot(fence=1)
            if state.step > numbers[-1]:
                numbers.append(state.step)
                saved = check(state, initializer)
    finally:
        ended.set()
    crew.join(PATIENCE)
    assert len(saved) > 30
    client.container += ".later"
    later = rig_of(client, mode="Async")
    later.start(state)
    equal(by_key(later.control.snapshot(fence=1)), saved)
    more = threading.Event()
    endless = shares(more, seed + 2)
    later.train(next(endless) for _ in range(3))
    assert check(later.control.snapshot(fence=1), initializer).keys() > saved.keys()


def halted(share: Sequence[Any], at: int, until: threading.Event) -> Iterator[Any]:
    """Yield batches, and wait before batch number `at`: a busy machine may train all 60 during one save."""
    for number, batch in enumerate(share):
        if number == at:
            assert until.wait(PATIENCE), "no save had a row"
        yield batch


@in_all(
    "tests/training/test_runtime_dynamic_saves.py::test_saves_at_random_moments_are_of_one_moment_and_restore_bit_equal"
)
@pytest.mark.parametrize("policy", [{}, {"max_rows": 60, "min_count": 2, "expire_after": 10}], ids=["grows", "moves"])
def test_in_async_a_save_has_the_same_keys_in_rows_and_slots_while_workers_insert(
    client: Any, policy: dict[str, int]
) -> None:
    """A save in Async has the same keys in rows and slots while workers insert keys. With a policy, rows also move
    while workers fetch them.
    """
    rig = rig_of(client, workers=2, mode="Async", build=lambda: model(**policy))
    rig.start()
    parts = [batches(60, seed=worker, universe=5000) for worker in range(2)]
    seen, numbers = threading.Event(), list[int]()
    crew = Crew(rig, [halted(share, 30, seen) for share in parts])
    while any(thread.is_alive() for thread in crew.threads):
        state = rig.control.snapshot(fence=1)
        numbers.append(len(by_key(state)))
        if numbers[-1]:
            seen.set()
        assert all(np.isfinite(value).all() for slots in state.slots.values() for value in slots.values())
    crew.join(PATIENCE)
    if policy:
        assert 0 < max(numbers) <= policy["max_rows"]
        counts = rig.control.row_counts()["items"][1]
        assert all(counts[name] > 0 for name in (RowCount.EVICTED, RowCount.EXPIRED, RowCount.BELOW_MIN_COUNT))
        return
    assert numbers == sorted(numbers)
    wanted = {key for share in parts for keys, _ in share for key in keys.numpy().ravel().tolist()}
    assert by_key(rig.control.snapshot(fence=1)).keys() == wanted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_begin_uniform_and_uncorrelated_in_every_precision(dtype: str) -> None:
    """Initial rows are uniform and uncorrelated in every precision, also for consecutive keys, and among the elements
    of a row.
    """
    import tensorflow as tf

    from pstraining.runtime.model.embeddings.dynamic_rows import RowInitializer

    rows = RowInitializer(-0.05, 0.15, seed=7).rows(tf.range(5000, dtype=tf.int64), 32, tf.as_dtype(dtype))
    assert rows.dtype == dtype
    found = tf.cast(rows, tf.float64).numpy()
    assert -0.0501 < found.min() < -0.0499
    assert 0.1499 < found.max() < 0.1505  # bfloat16 rounds it up
    shares = np.histogram(found, 10, (-0.05, 0.15))[0] / found.size
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
    # correlations of elements over keys, and of keys over elements
    for table, most in ((found.T, 0.1), (found[:200], 0.85)):
        correlations = np.corrcoef(table)
        np.fill_diagonal(correlations, 0)
        assert np.abs(correlations).max() < most
