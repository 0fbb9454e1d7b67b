"""Rows by key pass to the servers of another layout, and are bit-equal there."""

from typing import Any

import numpy as np
import pytest

from tests.support.servers import Rig
from tests.support.soak_marks import in_all, some
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training import test_runtime_dynamic_embedding as dynamic
from tests.training.test_runtime_dynamic_embedding import FEATURES, WIDTH, batches
from tests.training.test_runtime_table_moves import FENCE, next_admin, transfer_to

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("pieces")]
pieces = in_pieces.pieces
POLICY = {"min_count": 2, "expire_after": 100}


def alone() -> Any:
    return dynamic.model(**POLICY)


def beside_a_table() -> Any:
    """Return a model that looks up its keys in a second table as well, whose rows move from server to server."""
    import keras

    from pstraining.runtime import Embedding

    keys = keras.Input((FEATURES,), dtype="int64")
    remainder = keras.layers.Lambda(lambda value: keras.ops.cast(keras.ops.mod(value, 200), "int32"))(keys)
    rows = [Embedding(None, WIDTH, name="items", **POLICY)(keys), Embedding(200, WIDTH, name="fixed")(remainder)]
    joined = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    return keras.Model(keys, keras.layers.Dense(1, activation="sigmoid", name="click")(joined))


def tensors(state: Any) -> dict[str, Any]:
    """Return all tensors of a state; those of rows by key, and of keys without rows, in the order of the keys."""
    found = dict(state.tensors)
    rows, candidates = "model/items/keys", "scalar/items/candidates/keys"
    for keys in (rows, candidates):
        order = np.argsort(found[keys])
        for name in found:
            if ("items" in name) and ("candidates" in name) is (keys is candidates) and name != keys:
                found[name] = found[name][order]
        found[keys] = found[keys][order]
    return found


def size_of_index(rig: Rig) -> int:
    """Return the number of keys in the indices of all tables on the servers of the rig."""
    import tensorflow as tf

    def size(device: str, arena: Any) -> Any:
        with tf.device(device):
            return rig.store.client.to_local(tf.raw_ops.LookupTableSizeV2(table_handle=arena._index()))

    def sizes() -> list[Any]:
        return [size(shard.device, arena) for shard in rig.store.shards for arena in shard.arenas]

    return sum(map(int, rig.store.client.call(tf.function(sizes, autograph=False))))


@pytest.mark.parametrize(
    "build",
    some(
        [alone, beside_a_table],
        lambda build: build is alone,
        in_all(
            "tests/training/test_runtime_key_moves.py::test_another_layout_has_all_rows_by_key_at_the_standstill"
        ),  # tests/training/test_runtime_table_moves.py moves a table
    ),
)
def test_another_layout_has_all_rows_by_key_at_the_standstill(client: Any, build: Any) -> None:
    import tensorflow as tf

    from pstraining.runtime.ps import carried_state

    rig = dynamic.rig_of(client, ps=2, build=build, mode="Sync")
    rig.start()
    rig.train(batches(4, seed=0))
    target = next_admin(client, rig, 3)
    transfer = transfer_to(rig, target)
    assert bool(transfer._moves.names) is (build is beside_a_table)
    rig.train(batches(3, seed=1))
    while not transfer.advance(rig.control, 1):
        pass
    expected = rig.control.snapshot(fence=1)
    by_key = [value for name, value in expected.tensors.items() if "items" in name]
    assert rig.control.copies.bytes_by_key() == sum(value.nbytes for value in by_key), "of all columns"
    transfer.copy(rig.control, 1)
    transfer.write(target, FENCE)
    found = target.snapshot(fence=FENCE)
    assert found.step == expected.step
    assert len(found.tensors["model/items/keys"]) > 3 < len(found.tensors["scalar/items/candidates/keys"])
    for name, value in tensors(expected).items():
        np.testing.assert_array_equal(tensors(found)[name], value, err_msg=name)
    transfer.end()
    assert size_of_index(rig)
    shards = rig.store.every
    client.call(tf.function(lambda: [client.to_local(carried_state.delete(s)) for s in shards], autograph=False))
    assert not size_of_index(rig)


@in_all(
    "tests/training/test_runtime_key_moves.py::test_another_layout_has_all_rows_by_key_at_the_standstill"
)  # the same sum
def test_a_size_of_rows_by_key_is_that_of_all_columns(client: Any) -> None:
    rig = dynamic.rig_of(client, ps=2, build=alone, mode="Sync")
    rig.start()
    assert rig.control.copies.bytes_by_key() == 0
    rig.train(batches(4, seed=0))
    state = rig.control.snapshot(fence=1)
    columns = [value for name, value in state.tensors.items() if "items" in name]
    assert rig.control.copies.bytes_by_key() == sum(value.nbytes for value in columns)
