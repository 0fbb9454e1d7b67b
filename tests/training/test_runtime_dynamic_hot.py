"""Tables with rows by key on hot standbys: training equals a dictionary bit for bit, whichever member is lost."""

import random
from typing import Any

import numpy as np
import pytest

from tests.support.replicated_job import ReplicatedJob
from tests.support.row_policies import KeysWithRows
from tests.support.servers import Rig
from tests.support.soak_marks import THOROUGH, in_all, some
from tests.training.test_runtime_dynamic_embedding import Dictionary, batches, by_key, equal, model, rig_of

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(600)]
LOSSES, SHARDS = (20, 2) if THOROUGH else (1, 1)
"""The numbers of losses and of shards; functions are traced for each shard and after each loss."""
POLICY = {"max_rows": 10 * SHARDS, "min_count": 2, "expire_after": 2}


class BoundedDictionary(Dictionary):
    """A dictionary that limits the keys with rows on each server."""

    def __init__(self, rig: Rig, name: str) -> None:
        super().__init__(rig, name)
        (policy,) = rig.model.row_policies
        self.servers = [KeysWithRows(policy.on_each_of(SHARDS)) for _ in range(SHARDS)]

    def train(self, of_workers: Any) -> None:
        super().train(of_workers)
        for server in self.servers:
            server.expire(self.step - 1)
        self._forget()

    def _kept(self, sums: dict[int, Any]) -> dict[int, Any]:
        import tensorflow as tf

        from pstraining.runtime.model.embeddings.dynamic_rows import owners

        keys, kept = list(sums), list[int]()
        of_keys = owners(tf.constant(keys, tf.int64), SHARDS).numpy()
        for number, server in enumerate(self.servers):
            kept += server.place([key for key, owner in zip(keys, of_keys, strict=True) if owner == number], self.step)
        self._forget()
        return {key: sums[key] for key in kept}

    def _forget(self) -> None:
        known = {key for server in self.servers for key in server.keys}
        for of_keys in (self.rows, self.slots):
            for key in of_keys.keys() - known:
                del of_keys[key]


def replicated_job(client: Any, patch: pytest.MonkeyPatch, mode: str, **policy: int) -> ReplicatedJob:
    def rig(client: Any) -> Rig:
        ordered, build = mode == "Sync", lambda: model(**policy)
        return rig_of(client, ps=SHARDS, members=2, mode=mode, ordered_sums=ordered, build=build)

    data = batches(7 * LOSSES, seed=3, universe=60 + 40 * LOSSES)
    return ReplicatedJob(client, patch, rig, data, shards=SHARDS, chunk_bytes=200)


def losses() -> list[tuple[int, int]]:
    """Return shard and member of each loss; the first ones are a primary and then its successor."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    drawn = [(dice.randrange(SHARDS), dice.randrange(2)) for _ in range(LOSSES)]
    return [(0, 0), (0, 1), *drawn][:LOSSES]


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    "policy",
    some(
        [POLICY, {}],
        bool,
        in_all(
            "tests/training/test_runtime_dynamic_hot.py::test_members_equal_a_dictionary_bit_for_bit_whichever_is_lost"
        ),  # the same transfer
    ),
    ids=["bounded", "unbounded"],
)
def test_members_equal_a_dictionary_bit_for_bit_whichever_is_lost(
    client: Any, monkeypatch: pytest.MonkeyPatch, policy: dict[str, int]
) -> None:
    found = replicated_job(client, monkeypatch, "Sync", **policy)
    for shard, member in losses():
        found.train(2)
        found.lose(shard, member)
        found.establish()
        assert [len(own) for own in found.view.shards] == [2 - (shard == other) for other in range(SHARDS)]
        found.train(2)
        found.establish(readmit=True)
        assert [len(own) for own in found.view.shards] == [2] * SHARDS
        found.train(3)
    states = found.states()
    for number in range(SHARDS):
        for a, b in zip(states[f"ps-{number}"], states[f"ps-{number + SHARDS}"], strict=True):
            np.testing.assert_array_equal(a, b)
    reference = BoundedDictionary(found.rig, "Adam")
    for batch in found._batches[: found.made]:
        reference.train([batch])
    state = found.rig.control.snapshot(fence=found.view_changer.fence)
    for removed in ("evicted", "expired"):
        assert any(getattr(server, removed) for server in reference.servers) == bool(policy)
    equal(by_key(state), reference.by_key())
    for variable in reference.head.trainable_variables:
        np.testing.assert_array_equal(state.variables[variable.path], variable.numpy(), err_msg=variable.path)


@in_all(
    "tests/training/test_runtime_dynamic_hot.py::test_members_equal_a_dictionary_bit_for_bit_whichever_is_lost"
)  # the same transfer
def test_in_async_the_rows_of_all_acknowledged_updates_survive(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replicated_job(client, monkeypatch, "Async")
    for shard, member in [(0, 0), (0, 1)]:
        found.train(2)
        found.lose(shard, member)
        found.establish()
        found.train()
        found.establish(readmit=True)
    found.train()
    wanted = {key for keys, _ in found._batches[: found.made] for key in keys.numpy().ravel().tolist()}
    rows = by_key(found.rig.control.snapshot(fence=found.view_changer.fence))
    assert rows.keys() == wanted
    assert all(np.isfinite(column).all() for columns in rows.values() for column in columns)
    states = found.states()
    for number in range(SHARDS):
        for a, b in zip(states[f"ps-{number}"], states[f"ps-{number + SHARDS}"], strict=True):
            np.testing.assert_array_equal(a, b)
