"""Codecs, error feedback and shadows, on tensors and on real parameter servers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.api.codec_sizes import encoded
from pstraining.api.training import Codec as Name
from tests.support.servers import GENERATION, SESSION, Rig, batches, large
from tests.support.soak_marks import ALL, THOROUGH, in_all, some
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

PS = 2 if ALL else 1
"""Number of servers: each encodes its own segments, and tracing takes twice as long for two."""
CREW = 3 if ALL else 2
"""Number of workers, of which a step needs all but one."""
MOVED = in_all(
    "tests/training/test_runtime_local_steps.py::test_in_async_a_move_is_divided_by_the_workers_that_the_job_has_now"
)
CODED = [Name.BF16, Name.INT8, Name.ONE_BIT, Name.TOP_K]
BYTES = {Name.BF16: 2.0, Name.INT8: 1.02, Name.ONE_BIT: 0.13, Name.TOP_K: 0.05}
"""Upper bound of bytes per element for long vectors; TopK keeps ten of a thousand elements."""


def codec(name: Name, permille: int = 10) -> Any:
    from pstraining.runtime.compression import codecs

    return codecs.find(name, permille=permille)


def vector(seed: int, size: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    return tf.constant((random.normal(size=size) * 10 ** random.uniform(-4, 4)).astype("float32"))


@pytest.mark.parametrize("name", CODED)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1024, 9000))
def test_the_compression_error_is_bounded(name: Name, seed: int, size: int) -> None:
    x = vector(seed, size)
    used = codec(name)
    parts = used.encode(x)
    for part, (shape, dtype) in zip(parts, used.parts(size), strict=True):
        assert part.dtype == dtype
        assert all(wanted in (None, found) for wanted, found in zip(shape, part.shape, strict=True))
    again = used.encode(x)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(parts, again, strict=True))
    lost = np.abs(x.numpy() - used.decode(parts, size).numpy())
    largest = np.abs(x.numpy()).max()
    if name is Name.BF16:
        assert (lost <= np.abs(x.numpy()) / 256).all()
    elif name is Name.INT8:
        assert lost.max() <= largest / 254 * 1.001
    else:  # a compressor in the sense of error feedback: the error is smaller than the vector
        assert (lost**2).sum() < (x.numpy() ** 2).sum()


@pytest.mark.parametrize("name", CODED)
def test_a_codec_sends_no_more_bytes_than_its_bound(name: Name) -> None:
    size = 3_000_001
    sent = sum(part.numpy().nbytes for part in codec(name).encode(vector(1, size)))
    assert sent / size <= BYTES[name]


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("size", [1024, 70_000, 3_000_001])
def test_plans_use_the_bytes_that_are_sent(name: Name, size: int) -> None:
    """For TopK the number is approximate, because the threshold comes from a sample."""
    sent = sum(part.numpy().nbytes for part in codec(name).encode(vector(1, size)))
    assert sent == pytest.approx(encoded(name, size), rel=0.15 if name is Name.TOP_K else 0)


@pytest.mark.parametrize("name", CODED)
def test_a_zero_gradient_stays_zero(name: Name) -> None:
    import tensorflow as tf

    used = codec(name)
    np.testing.assert_array_equal(used.decode(used.encode(tf.zeros([5000])), 5000), np.zeros(5000))


def test_equal_values_are_not_withheld_forever() -> None:
    import tensorflow as tf

    used = codec(Name.TOP_K)
    np.testing.assert_array_equal(used.decode(used.encode(tf.ones([5000])), 5000), np.ones(5000))


@pytest.mark.parametrize(
    ("name", "feedback"),
    some(
        [(name, feedback) for name in CODED for feedback in (True, False)],
        lambda name, feedback: feedback,
        in_all(
            "tests/training/test_runtime_compression.py::test_error_feedback_sends_everything_in_the_end"
        ),  # the reason for error feedback
    ),
)
def test_error_feedback_sends_everything_in_the_end(client: Any, name: Name, feedback: bool) -> None:
    import keras

    from pstraining.runtime.compression.push import PushCompressor

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=PS, build=large)
    # Enough rounds to send every element once, and some more.
    permille, rounds = (10, 120) if THOROUGH else (50, 24)
    wire = PushCompressor(rig.store, [codec(name, permille)], feedback=feedback)
    vectors: list[list[Any]] = [
        [vector(s.size, s.size) if s.group != "state" else vector(1, s.size) for s in shard.segments]
        for shard in rig.store.shards
    ]
    totals = [[np.zeros(segment.size) for segment in shard.segments] for shard in rig.store.shards]
    for _ in range(rounds):
        parts, left = wire.encode(vectors, 0)
        wire.commit_residual(left)
        for number, row in enumerate(totals):
            for total, came in zip(row, wire.decode(rig.store.shards[number], parts[number], 0), strict=True):
                np.add(total, came.numpy(), out=total)
    worst = 0.0
    for wishes, sums in zip(vectors, totals, strict=True):
        for wanted, sent in zip(wishes, sums, strict=True):
            off = np.linalg.norm(sent / rounds - wanted.numpy()) / np.linalg.norm(wanted.numpy())
            worst = max(worst, float(off))
    if feedback:
        assert worst < 0.5
    elif name in (Name.ONE_BIT, Name.TOP_K):
        assert worst > 0.55, "without feedback it is lost for good"


@pytest.mark.parametrize("name", CODED)
def test_workers_hold_the_servers_shadow_bit_for_bit(client: Any, name: Name) -> None:
    import keras

    workers = 2 if THOROUGH or name is Name.BF16 else 1
    rig = Rig(
        client,
        lambda: keras.optimizers.Adam(1e-3),
        ps=PS,
        build=large,
        workers=workers,
        mode="Sync",
        compression={"push": name.value, "pull": name.value},
    )
    rig.start()
    Crew(rig, [batches(12, seed=worker) for worker in range(workers)]).join()
    held = rig.model.values()
    rig.workers[0].start_session(SESSION)
    rig.workers[0]._fetch()
    for path, value in rig.model.values().items():
        np.testing.assert_array_equal(held[path], value, err_msg=path)
    state = rig.control.snapshot(fence=1)
    off = max(float(np.abs(state.variables[path] - value).max()) for path, value in held.items())
    assert off > 0, "the shadow is not the parameters themselves"
    assert off < 0.1


@pytest.mark.parametrize("pieces", [False, True])
def test_workers_begin_with_the_parameters_that_were_restored(
    client: Any, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    from pstraining.runtime.chief.state import server_parts

    if pieces:
        monkeypatch.setattr(server_parts, "PIECE_BYTES", 4096)
    rig = Rig(
        client,
        lambda: keras.optimizers.SGD(0.1),
        ps=PS,
        build=large,
        mode="Sync",
        compression={"push": "None", "pull": "TopK"},
    )
    assert rig.control.parts.is_small is not pieces
    rig.start()
    rig.workers[0]._fetch()
    for path, value in rig.model.values().items():
        np.testing.assert_array_equal(value, rig.initial[path], err_msg=path)


def test_the_residual_moves_to_another_layout(client: Any) -> None:
    """Everything that was lost before is sent after the move, by segments of other sizes, and in any format."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.compression.push import PushCompressor

    one, three = (Rig(client, lambda: keras.optimizers.SGD(0.1), ps=ps, build=large).store for ps in (1, 3))
    former = PushCompressor(one, [codec(Name.TOP_K), None])
    given = [vector(number, tensor.size) for number, tensor in enumerate(one.model.tensors)]
    sent = [np.zeros(tensor.size, np.float32) for tensor in one.model.tensors]

    def send(wire: Any, store: Any, values: Any, fmt: int) -> Any:
        parts, left = wire.encode(store.pack(values), fmt)
        decoded = [wire.decode(shard, own, fmt) for shard, own in zip(store.shards, parts, strict=True)]
        for total, came in zip(sent, store.unpack(decoded), strict=True):
            np.add(total, np.reshape(came, -1), out=total)
        return left

    former.commit_residual(send(former, one, given, 0))
    pending = send(former, one, [tf.zeros_like(value) for value in given], 0)
    following = former.on(three)
    assert following.on(three) is following
    following.take_over()
    following.commit_residual(pending)  # the servers have applied it, and the reply was lost
    assert not following.is_plain(1)
    following.commit_residual(send(following, three, [tf.zeros_like(value) for value in given], 1))
    assert following.is_plain(1)
    for total, value in zip(sent, given, strict=True):
        np.testing.assert_allclose(total, value, rtol=1e-5)


def with_one_to_spare(client: Any, compression: dict[str, str]) -> Rig:
    """Return workers of which a step needs all but one."""
    import keras

    rig = Rig(
        client,
        lambda: keras.optimizers.SGD(0.05),
        ps=PS,
        build=large,
        workers=CREW,
        mode="Sync",
        backup_workers=1,
        compression=compression,
    )
    rig.start()
    return rig


def test_a_worker_that_missed_a_step_restarts_with_the_whole_shadow(client: Any) -> None:
    rig = with_one_to_spare(client, {"pull": "Int8"})
    late = rig.workers[-1]
    late._step = late._fetch()  # as `step` does
    assert isinstance(late._step, int)
    Crew(rig, [batches(5, seed=worker) for worker in range(CREW - 1)]).join()
    reply = late.step(batches(1, seed=2))
    assert (reply.session_valid, reply.applied) == (True, False)
    stores = [worker._store for worker in rig.workers]
    late._fetch()
    rig.workers[0].start_session(SESSION)
    rig.workers[0]._fetch()
    for path, value in stores[0].model.values().items():
        np.testing.assert_array_equal(stores[-1].model.values()[path], value, err_msg=path)


@pytest.mark.parametrize(
    "name",
    some(
        CODED,
        lambda name: name is Name.TOP_K,
        in_all("tests/training/test_runtime_compression.py::test_workers_hold_the_servers_shadow_bit_for_bit"),
    ),
)
def test_async_pushes_through_a_codec(client: Any, name: Name) -> None:
    import keras

    pull = "Bf16" if name is Name.BF16 else "None"
    rig = Rig(
        client,
        lambda: keras.optimizers.Adam(3e-3),
        ps=PS,
        build=large,
        compression={"push": name.value, "pull": pull, "top_k_permille": 50},
    )
    rig.start()
    (one,) = batches(1)
    losses = [rig.step(one).loss for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("mode", some(["Sync", "Async"], lambda mode: mode == "Sync", MOVED))
def test_local_steps_stay_on_their_worker_until_they_are_averaged(client: Any, mode: str) -> None:
    import keras

    from tests.training.test_runtime_sync import convolutional

    rig = Rig(
        client,
        lambda: keras.optimizers.SGD(0.1),
        ps=PS,
        build=convolutional,
        workers=2,
        mode=mode,
        local_steps=4,
    )
    rig.start()
    shares = [batches(4, seed=worker) for worker in range(2)]
    crew = Crew(rig, shares[:1] if mode == "Async" else shares, accumulation=4)
    crew.join()
    ends = []
    for share in shares[: len(crew.threads)]:
        model = convolutional()
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", jit_compile=False)
        for variable, tensor in zip(model.trainable_variables, rig.model.tensors, strict=True):
            variable.assign(rig.initial[tensor.path])
        for batch in share:
            model.train_on_batch(*batch)
        ends.append([variable.numpy() for variable in model.trainable_variables])
    state = rig.control.snapshot(fence=1)
    assert state.step == 1
    for index, tensor in enumerate(rig.model.tensors):
        moved = sum(end[index] - rig.initial[tensor.path] for end in ends) / 2
        np.testing.assert_allclose(state.variables[tensor.path], rig.initial[tensor.path] + moved, rtol=1e-4, atol=1e-6)


def recorded_residuals(compressor: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each residual is added that the compressor computes."""
    encode, residuals = compressor.encode, list[Any]()

    def encoded(*given: Any) -> Any:
        parts, residual = encode(*given)
        residuals.append(residual)
        return parts, residual

    monkeypatch.setattr(compressor, "encode", encoded)
    return residuals


def check_kept(compressor: Any, residual: Any) -> None:
    """Demand that the worker keeps this residual, bit for bit."""
    for held, expected in zip(compressor._residuals, residual.vectors, strict=True):
        for one, other in zip(held, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_lost_reply_costs_no_residual(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers have applied the gradient: its residual is sent with the next one, and the former one only once."""
    import keras

    from pstraining.runtime.transport.client import ShardLostError

    rig = Rig(
        client,
        lambda: keras.optimizers.SGD(0.1),
        ps=PS,
        build=large,
        mode="Sync",
        compression={"push": "OneBit", "pull": "None"},
    )
    rig.start()
    updates, (first, second) = rig.workers[0], batches(2)
    rig.train([first])
    residuals, push = recorded_residuals(updates._compressor, monkeypatch), updates._push

    def lost(*given: Any) -> Any:
        push(*given)
        monkeypatch.setattr(updates, "_push", push)
        raise ShardLostError("UNAVAILABLE: the reply is lost", client.connection)

    monkeypatch.setattr(updates, "_push", lost)
    pending = [second]
    with pytest.raises(ShardLostError):
        updates.step(pending)
    updates.start_session(SESSION)
    assert updates.step(pending).step == 2
    (residual,) = residuals
    check_kept(updates._compressor, residual)


@pytest.mark.parametrize("layout", ["the same", "another"])
def test_in_async_a_lost_reply_costs_no_residual(client: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers have applied the update. Its residual is sent with the next one, also if its functions are prepared
    again, or its gradient is computed again for another layout.
    """
    import keras

    from pstraining.runtime.transport.client import ShardLostError

    compression = {"push": "OneBit", "pull": "None"}
    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=PS, build=large, compression=compression)
    rig.start()
    updates, (first, second) = rig.workers[0], batches(2)
    rig.train([first])
    residuals, send = recorded_residuals(updates._compressor, monkeypatch), updates._sent

    def lost(*given: Any) -> Any:
        send(*given)
        raise ShardLostError("UNAVAILABLE: the reply is lost", client.connection)

    monkeypatch.setattr(updates, "_sent", lost)
    pending = [second]
    with pytest.raises(ShardLostError):
        updates.step(pending)
    monkeypatch.setattr(updates, "_sent", send)
    if layout == "another":
        updates._worker_progress.belongs_to = GENERATION, 0
    else:
        updates.warm_up(pending)  # as after the loss of a server for which nothing is prepared yet
    updates.start_session(SESSION)
    assert updates.step(pending).step == 2
    check_kept(updates._compressor, residuals[0])
