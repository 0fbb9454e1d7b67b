"""The policies of which keys have rows: servers equal a reference, place by place, after random steps."""

import random
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.chief.reports.row_reports import RowReporter
from pstraining.runtime.telemetry.counters import ChiefCounters
from tests.support.row_policies import KeysWithRows
from tests.support.servers import Rig
from tests.support.soak_marks import ALL, in_all, some
from tests.training.test_runtime_dynamic_embedding import WIDTH, batches, by_key, equal, model, rig_of

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
STEPS = 60


class Server:
    """One server's table, updated step by step together with its reference."""

    def __init__(self, client: Any, **policy: Any) -> None:
        import tensorflow as tf

        from pstraining.runtime.ps.critical_section import critical

        self.client = client
        self.rig: Rig = rig_of(client, ps=1, build=lambda: model(**policy))
        self.rig.start()
        (self.shard,) = self.rig.store.shards
        self.table = self.shard.dynamic[0]
        self.expected = KeysWithRows(self.rig.model.row_policies[0].on_each_of(1))
        self.step = 0
        home = client.to_local

        def update(keys: Any, step: Any) -> Any:
            """Write its key and the step into each row and slot, in place of an optimizer."""
            kept = tf.reshape(tf.range(tf.size(keys)), [-1, 1])
            places, order = self.table.placed((keys, kept), step)
            marks = tf.cast(
                tf.stack([tf.gather(keys, order[:, 0]) % 1000, tf.fill([tf.size(places)], step)], 1), tf.float32
            )
            values = tf.tile(marks, [1, WIDTH // 2])
            written = [
                self.table.rows.write(name, places, values)
                for name in self.table.rows.columns
                if name not in ("keys", "seen")
            ]
            with tf.control_dependencies(written):
                keys = self.table.rows.read("keys", places)
                with tf.control_dependencies([keys, *self.table.expire(step)]):
                    return tf.identity(places), tf.identity(keys)

        integers = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)
        section = self.shard.device, self.shard.container
        self._update = tf.function(
            lambda *given: home(critical(*section, given, update)), autograph=False, input_signature=integers
        )
        self._fetch = tf.function(
            lambda keys: home(self.shard.fetch_rows(0, keys)), autograph=False, input_signature=integers[:1]
        )
        self.marks: dict[int, list[float]] = {}
        """The expected row of each key."""

    def train(self, keys: np.ndarray[Any, Any]) -> None:
        """Train one step with a gradient for each of these keys, and demand the reference's places."""
        import tensorflow as tf

        given = tf.constant(keys, tf.int64), tf.constant(self.step, tf.int64)
        places, with_rows = self.client.call(self._update, *given)
        kept = self.expected.place(keys.tolist(), self.step)
        assert with_rows.tolist() == kept
        assert [self.expected.keys[place] for place in places.tolist()] == kept
        self.expected.expire(self.step)
        self.marks |= {key: [key % 1000, self.step] * (WIDTH // 2) for key in kept}
        self.marks = {key: mark for key, mark in self.marks.items() if key in self.expected.seen}
        self.step += 1

    def check(self, universe: int) -> None:
        """Demand that rows and slots are those of the last updates, and that other keys have their initial rows."""
        import tensorflow as tf

        state = by_key(self.rig.control.snapshot(fence=1))
        assert list(state) == self.expected.keys
        for key, columns in state.items():
            assert np.array_equal(columns, [self.marks[key]] * len(columns)), key
        keys = tf.range(universe, dtype=tf.int64)
        rows = self.client.call(self._fetch, keys)
        (initializer,) = self.rig.model.row_initializers
        initial = initializer.rows(keys, WIDTH, tf.float32).numpy()
        expected = [self.marks.get(key, initial[key]) for key in range(universe)]
        np.testing.assert_array_equal(rows, np.array(expected, np.float32))

    def candidates(self) -> dict[int, int]:
        """Return the number of gradients of each key without a row, in the order of their places."""
        scalars = self.rig.control.snapshot(fence=1).scalars
        names = [f"items/candidates/{name}" for name in ("keys", "count")]
        return dict(zip(*(scalars[name].tolist() for name in names), strict=True))

    def fetch_operations(self) -> set[str]:
        return {operation.type for operation in self._fetch.get_concrete_function().graph.get_operations()}

    def counts(self) -> dict[str, int]:
        counters = ChiefCounters()
        RowReporter(counters).report(self.rig.control.row_counts())
        rows, counts = counters.tables["items"]
        assert rows == len(self.expected.keys)
        return counts


def drawn(dice: random.Random, universe: int, most: int) -> np.ndarray[Any, Any]:
    """Return a step's keys in random order, of which small ones are more frequent."""
    keys = {min(int(dice.paretovariate(0.5)) - 1, universe - 1) for _ in range(dice.randrange(most))}
    return np.array(dice.sample(sorted(keys), len(keys)), np.int64)


def dice_of() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def test_a_full_table_replaces_the_rows_whose_updates_are_the_oldest(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full table replaces the rows with the oldest updates. The last keys of a step with more new keys than places
    have no rows.
    """
    server, dice = Server(client, max_rows=25), dice_of()
    for _ in range(STEPS):
        server.train(drawn(dice, 400, 90))
        assert len(server.expected.keys) <= 25
    server.check(400)
    expected = server.expected
    assert server.counts() == {
        "inserted": expected.inserted,
        "evicted": expected.evicted,
        "no_room": expected.no_room,
        "below_min_count": 0,
        "expired": 0,
    }
    assert min(expected.evicted, expected.no_room) > 10
    assert '"event": "table_full", "table": "items", "rows": 25' in capsys.readouterr().out
    assert "MutexLock" in server.fetch_operations(), "steps move rows meanwhile"


@pytest.mark.parametrize(
    "bound",
    some(
        [{}, {"max_rows": 25}],
        bool,
        in_all(
            "tests/training/test_runtime_dynamic_policies.py"
            "::test_a_key_gets_a_row_with_the_gradient_that_makes_the_count"
        ),  # and the oldest rows are replaced
    ),
    ids=["unbounded", "bounded"],
)
def test_a_key_gets_a_row_with_the_gradient_that_makes_the_count(client: Any, bound: dict[str, int]) -> None:
    server, dice = Server(client, min_count=3, **bound), dice_of()
    for _ in range(STEPS):
        server.train(drawn(dice, 400, 60))
    server.check(400)
    expected = server.expected
    assert expected.candidates is not None
    counts = {key: expected.candidates.count[key] for key in expected.candidates.keys}
    assert list(server.candidates().items()) == list(counts.items())
    assert set(counts.values()) == {1, 2}
    assert server.counts() == {
        "inserted": expected.inserted,
        "evicted": expected.evicted,
        "no_room": expected.no_room,
        "below_min_count": expected.below_min_count,
        "expired": 0,
    }
    assert (expected.evicted > 0, expected.candidates.evicted > 0) == (bool(bound), bool(bound))


def test_counts_below_the_minimum_are_restored_onto_other_numbers_of_servers(client: Any) -> None:
    policy = {"min_count": 3}
    first = rig_of(client, ps=2, build=lambda: model(**policy))
    first.start()
    first.train(batches(3, seed=1))
    state = first.control.snapshot(fence=1)
    counts = dict(zip(*(state.scalars[f"items/candidates/{name}"].tolist() for name in ("keys", "count")), strict=True))
    assert counts
    assert not counts.keys() & by_key(state).keys()
    client.container += ".later"
    server = Server(client, **policy)
    server.rig.control.restore(state, fence=1, generation=9, fresh=False)
    assert server.candidates() == counts
    restored = by_key(server.rig.control.snapshot(fence=1))
    equal(restored, by_key(state))
    key = next(key for key, count in counts.items() if count == 2)
    expected = server.expected
    expected.keys = list(restored)
    expected.seen = dict.fromkeys(expected.keys, 0)
    assert expected.candidates is not None
    expected.candidates.keys, expected.candidates.count = list(server.candidates()), {**counts}
    expected.candidates.seen = dict.fromkeys(counts, 0)
    server.train(np.array([key]))
    assert expected.keys[-1] == key, "its third gradient"
    for name in ("keys", "count"):  # saved without `min_count`
        del state.scalars[f"items/candidates/{name}"]
    server.rig.control.restore(state, fence=1, generation=10, fresh=False)
    assert server.candidates() == {}


def test_rows_without_updates_expire(client: Any) -> None:
    """Rows without updates expire, as do the counts of keys without a row."""
    server, dice = Server(client, expire_after=5, min_count=3, max_rows=60), dice_of()
    expected, candidates = server.expected, server.expected.candidates
    assert candidates is not None
    for _ in range(2 * STEPS if ALL else STEPS):
        server.train(drawn(dice, 400, 40) + 20 * (server.step // 40))
        assert all(server.step - 1 - step < 5 for step in [*expected.seen.values(), *candidates.seen.values()])
    server.check(460)
    assert list(server.candidates().items()) == [(key, candidates.count[key]) for key in candidates.keys]
    assert server.counts()["expired"] == expected.expired > 10
    assert candidates.expired > 10
    server.train(np.array([7_000]))
    for _ in range(3):
        server.train(np.array([0]))
    before = {key for key, _ in expected.seen.items()}
    assert 0 in before
    for _ in range(6):
        server.train(np.array([1]))
    assert list(expected.seen) == [1]
    for _ in range(3):
        server.train(np.array([0]))
    server.check(10)


def test_a_step_examines_a_part_of_a_large_table(client: Any) -> None:
    """A step examines a part of a large table. The whole table is examined within `expire_after` steps, so a row is
    removed within twice that number.
    """
    server = Server(client, expire_after=3)
    server.train(np.arange(5000))
    lengths = []
    for _ in range(6):
        server.train(np.arange(4900, 5100))
        lengths.append(len(server.expected.keys))
    assert lengths[:2] == [5100, 5100]
    assert len(set(lengths)) > 2, "not all at once"
    assert lengths[-1] == 200
    server.check(5100)


def test_a_sample_of_a_large_table_is_compared(client: Any) -> None:
    server, dice = Server(client, max_rows=3000), dice_of()
    for begin in range(0, 3000, 1000):
        server.train(np.arange(begin, begin + 1000))
    for _ in range(10):
        server.train(np.array(dice.sample(range(3000, 9000), 200)))
    server.check(9000)
    assert server.expected.evicted == server.counts()["evicted"] >= 1000


def test_a_restore_keeps_the_order_of_the_last_updates(client: Any) -> None:
    """A restore keeps the order of the last updates.

    On a server with fewer places the table exceeds its bound until new keys come.
    """
    server = Server(client, max_rows=30)
    for begin in (20, 0, 10):
        server.train(np.arange(begin, begin + 10))
    state = server.rig.control.snapshot(fence=1)
    client.container += ".later"
    later = Server(client, max_rows=25)
    later.rig.control.restore(state, fence=1, generation=9, fresh=False)
    later.expected.keys, later.expected.seen = [*server.expected.keys], {**server.expected.seen}
    later.step, later.marks = server.step, {**server.marks}
    later.check(30)
    later.train(np.array([500]))
    assert later.expected.keys.count(500) == 1
    assert later.expected.seen.keys() == {*range(6 + 20, 30), *range(20), 500}
    later.check(30)


def test_rows_without_the_steps_of_their_updates_count_as_updated_when_saved(client: Any) -> None:
    """Rows of a checkpoint that was saved without `max_rows`, and so without the steps of their updates, count as
    updated when it was saved.
    """
    rig = rig_of(client, ps=1)
    rig.start()
    rig.train([])
    state = rig.control.snapshot(fence=1)
    client.container += ".later"
    server = Server(client, max_rows=2)
    state.variables.update({"items/keys": np.array([7, 8]), "items": np.ones((2, WIDTH), np.float32)})
    for slots in state.slots.values():
        slots["items"] = np.ones((2, WIDTH), np.float32)
    server.rig.control.restore(state, fence=1, generation=9, fresh=False)
    assert server.rig.control.snapshot(fence=1).scalars["items/seen"].tolist() == [state.step] * 2


def test_an_impossible_policy_is_rejected() -> None:
    from pstraining.runtime import Embedding
    from pstraining.runtime.model.errors import ModelError

    with pytest.raises(ModelError, match="layer items: max_rows is for tables with rows by key; give input_dim=None"):
        Embedding(5, 2, max_rows=3, name="items")
    with pytest.raises(ModelError, match="layer items: max_rows must be at least 1, not 0"):
        Embedding(None, 2, max_rows=0, name="items")
    with pytest.raises(ModelError, match="layer items: min_count must be at least 1, not 0"):
        Embedding(None, 2, min_count=0, name="items")
    with pytest.raises(ModelError, match="layer items: max_rows must be a whole number, not 1e"):
        Embedding(None, 2, max_rows=1e30, name="items")  # type: ignore[arg-type]
    numbers: list[Any] = [3, np.int64(3)]
    for number in numbers:
        layer = Embedding.from_config(Embedding(None, 2, max_rows=number).get_config())
        assert type(layer.row_policy.max_rows) is int
    assert "max_rows" not in Embedding(5, 2).get_config()
