"""Clipping by norm on real parameter servers: the mean gradient is clipped as in one process that trains on all
batches.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.allreduce import transport as ring_transport
from pstraining.runtime.model import partition
from pstraining.runtime.model.optimizers import clipping, optimizer
from pstraining.runtime.ps import worker_registry
from tests.support.pairs import Message, Pairs, rounds_messages
from tests.support.ring_pairs import RingPairs
from tests.support.servers import Rig, batches, in_float64, small
from tests.support.soak_marks import ALL, THOROUGH, in_all, some
from tests.support.worker_threads import Crew
from tests.training import test_runtime_embedding as embedding
from tests.training.test_runtime_loss_scale import batches as batches_of_numbers
from tests.training.test_runtime_loss_scale import half_precision, prepared, trained

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
STEPS = 4
LIMITS = {"clipnorm": 0.02, "global_clipnorm": 0.05, "clipvalue": 0.002}
"""Limits that every step exceeds."""


def sgd(name: str, momentum: float = 0.9) -> Callable[[], Any]:
    import keras

    return lambda: keras.optimizers.SGD(0.5, momentum=momentum, **{name: LIMITS[name]})


def with_a_cut_tensor() -> Any:
    import keras

    layers = [keras.layers.Dense(200, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3, activation="softmax")])


@pytest.fixture
def rigs(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create rigs, and close the connections of their workers, which may be silent while they trace functions."""
    monkeypatch.setattr(ring_transport, "SILENT_BEATS", 600)
    with ExitStack() as stack:

        def make(make_optimizer: Callable[[], Any], build: Callable[[], Any], **options: Any) -> Rig:
            rig = Rig(client, make_optimizer, build=build, **options)
            if options["mode"] == "Hybrid":
                stack.callback(lambda: [updates.close() for updates in rig.workers])
            rig.start()
            return rig

        yield make


def in_one_process(
    rig: Rig, build: Callable[[], Any], make: Callable[[], Any], steps: Sequence[Sequence[Any]]
) -> list[Any]:
    """Return the variables of one process's model that trains on all batches of each step."""
    import tensorflow as tf

    found = prepared(rig, build, make, "sparse_categorical_crossentropy")
    trained(found, [[tf.concat(part, 0) for part in zip(*step, strict=True)] for step in steps])
    return [variable.numpy() for variable in found.trainable_variables]


def mean_of_clipped(
    rig: Rig, build: Callable[[], Any], name: str, steps: Sequence[Sequence[Any]], momentum: float = 0.9
) -> list[Any]:
    """Return the variables after steps by the mean of gradients that are clipped separately."""
    import keras
    import tensorflow as tf

    found = prepared(rig, build, lambda: keras.optimizers.SGD(0.5, momentum), "sparse_categorical_crossentropy")
    clips, variables = sgd(name)(), found.trainable_variables
    for step in steps:
        parts = []
        for x, y in step:
            with tf.GradientTape() as tape:
                loss = found.compute_loss(x=x, y=y, y_pred=found(x, training=True), training=True)
            parts.append(clips._clip_gradients(tape.gradient(loss, [variable.value for variable in variables])))
        found.optimizer.apply([tf.add_n(own) / len(own) for own in zip(*parts, strict=True)], variables)
    return [variable.numpy() for variable in variables]


def difference(rig: Rig, state: Any, expected: Sequence[Any]) -> float:
    pairs = zip(rig.model.tensors, expected, strict=False)
    return max(float(np.max(np.abs(state.variables[tensor.path] - value))) for tensor, value in pairs)


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    ("name", "mode", "ps", "workers"),
    some(
        [
            *((name, "Sync", ps, workers) for name in LIMITS for ps, workers in ((2, 2), (3, 1), (1, 4))),
            *((name, "Hybrid", 2, 2) for name in LIMITS),
        ],
        lambda name, mode, ps, workers: (name, mode, ps) == ("global_clipnorm", "Sync", 2),
        in_all("tests/training/test_runtime_clipping.py::test_the_mean_is_clipped_as_in_one_process"),
    ),
)
def test_the_mean_is_clipped_as_in_one_process(rigs: Any, name: str, mode: str, ps: int, workers: int) -> None:
    build = in_float64(with_a_cut_tensor)
    rig = rigs(sgd(name), build, ps=ps, workers=workers, mode=mode)
    slices = [slice_.tensor for segment in rig.store.layout.segments for slice_ in segment.slices]
    assert len(slices) > len(set(slices)) or ps == 1, "a tensor is cut over servers"
    shares = [batches(STEPS, seed=worker) for worker in range(workers)]
    Crew(rig, shares).join()
    state, steps = rig.snapshot(), list(zip(*shares, strict=True))
    assert difference(rig, state, in_one_process(rig, build, sgd(name), steps)) < 1e-6
    if workers > 1:
        assert difference(rig, state, mean_of_clipped(rig, build, name, steps)) > 1e-4, "each worker's is another mean"


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    ("name", "mode"),
    some(
        [(name, mode) for name in ("clipnorm", "global_clipnorm") for mode in ("Sync", "Hybrid")],
        lambda name, mode: (name, mode) == ("global_clipnorm", "Hybrid"),
        in_all("tests/training/test_runtime_clipping.py::test_table_rows_count_towards_the_norm"),
    ),
)
def test_table_rows_count_towards_the_norm(rigs: Any, name: str, mode: str) -> None:
    """Rows of tables count towards the norm. The optimizer has no momentum, which would move untouched rows."""
    make, build = sgd(name, momentum=0.0), in_float64(embedding.ours())
    rig = rigs(make, build, ps=2 if ALL else 1, workers=2, loss="binary_crossentropy", mode=mode)
    shares = [embedding.batches(STEPS, seed=worker) for worker in range(2)]
    Crew(rig, shares).join()
    embedding.equal(rig.snapshot(), embedding.in_one_process(rig, make, list(zip(*shares, strict=True))), rtol=1e-6)


@in_all("tests/training/test_runtime_clipping.py::test_the_mean_is_clipped_as_in_one_process")
def test_accumulated_batches_are_clipped_together(rigs: Any) -> None:
    build = in_float64(small)
    rig = rigs(sgd("clipnorm"), build, ps=2, workers=2, mode="Sync", accumulation_steps=2)
    shares = [batches(2 * STEPS, seed=worker) for worker in range(2)]
    Crew(rig, shares, accumulation=2).join()
    steps = [[*shares[0][k : k + 2], *shares[1][k : k + 2]] for k in range(0, 2 * STEPS, 2)]
    assert difference(rig, rig.snapshot(), in_one_process(rig, build, sgd("clipnorm"), steps)) < 1e-6


@pytest.mark.parametrize("name", ["clipnorm", "global_clipnorm"])
def test_clipping_norms_with_optimizer_accumulation_is_rejected(name: str) -> None:
    """Clipping by norm together with the optimizer's own accumulation is rejected, because the norms would be those of
    accumulated gradients.
    """
    import keras

    with pytest.raises(optimizer.OptimizerError, match="cannot be used with gradient_accumulation_steps"):
        optimizer.check(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, **{name: 1.0}))


def test_each_process_clips_its_part_by_the_norms_over_all_processes() -> None:
    """The global norm of one of two optimizers covers its parts on all servers; the other clips each tensor by its own
    norm.
    """
    import keras
    import tensorflow as tf

    dice = np.random.default_rng(0)
    kinds = ("0/trainable", "0/trainable", "1/trainable", "1/trainable", "state", partition.FROZEN, partition.TABLE)
    tensors = [
        partition.Tensor(f"v{number}", (600 if kind != partition.TABLE else 6, 250), "float32", kind)
        for number, kind in enumerate(kinds)
    ]
    layout = partition.partition(tensors, 3)
    joint, each = keras.optimizers.SGD(0.1, global_clipnorm=2.0), keras.optimizers.SGD(0.1, clipnorm=1.0)
    trained_by = {"v0": joint, "v1": joint, "v2": each, "v3": each, "v6": joint}
    norms = clipping.norms_of(trained_by, layout)
    assert norms
    assert [norm.limit for norm in norms.each] == [2.0, 1.0, 1.0]
    values = {tensor.path: dice.normal(size=tensor.shape).astype("float32") for tensor in tensors}
    parts, totals = [], tf.zeros([3], tf.float64)
    for ps in range(3):
        own, tables = layout.on(ps), layout.tables_on(ps)
        part = clipping.MeanClipping(norms, own, tables)
        vectors = [tf.constant(partition.pack(layout, segment, values)) for segment in own]
        rows = [(tf.range(2, dtype=tf.int64), tf.constant(partition.pack(layout, table, values))) for table in tables]
        parts.append((part, own, tables, vectors, rows))
        totals += part.squares(vectors, rows)
    found: list[tuple[partition.Segment, Any]] = []
    for part, own, tables, vectors, rows in parts:
        found += [(segment, np.asarray(v)) for segment, v in zip(own, part.vectors(vectors, totals), strict=True)]
        found += [(table, np.asarray(v)) for table, (_, v) in zip(tables, part.rows(rows, totals), strict=True)]
    result = values | partition.unpack(layout, found)
    expected = dict(values)
    for own_optimizer, paths in ((joint, ("v0", "v1", "v6")), (each, ("v2", "v3"))):
        clipped = own_optimizer._clip_gradients([tf.constant(values[path]) for path in paths])
        expected |= {path: np.asarray(value) for path, value in zip(paths, clipped, strict=True)}
    for path, value in expected.items():
        np.testing.assert_allclose(result[path], value, rtol=1e-5, err_msg=path)


WORKERS = 2 if THOROUGH else 1
"""Workers of pairs of servers that clip: tracing takes twice as long for two."""
MESSAGES = rounds_messages(random.Random(0), clips=True, workers=WORKERS)


def test_members_clip_alike_after_any_loss_during_a_round(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members clip by the norms of the attempt, after any loss and with any late or repeated call."""
    import tensorflow as tf

    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
    cluster.container = "test.clipped.pairs"
    pairs = Pairs(cluster, sgd("global_clipnorm"), small, WORKERS)
    assert pairs.expected
    assert not pairs.differences(pairs.both)
    settled, decided = MESSAGES.index(Message("settle", 1)) + 1, MESSAGES.index(Message("apply standby", 0)) + 1
    pairs.play(MESSAGES[:settled])
    session, go = tf.constant([pairs._ballot, pairs._generation], tf.int64), tf.constant(1, tf.int64)
    for attempt, known in ((0, 1), (1, 0)):
        place = tf.constant([0, attempt], tf.int64)
        assert pairs._do("squares", 0, 0, session, place, go)[0] == known
        before = pairs._do("settle", 1, 0, session, place, tf.constant([0.0, 0.0], tf.float64)).tolist()
        late = pairs._do("settle", 1, 0, session, place, tf.constant([1.0, 123.0], tf.float64))
        assert late.tolist() == before, "another attempt's, or again"
        assert before[0] == known
    pairs._send(MESSAGES[settled:decided], [], attempt=0)
    survivors = ((1,), (0,))
    pairs.fail_over(survivors)
    pairs.finish(survivors)
    assert not pairs.differences(survivors), survivors


@in_all("tests/training/test_runtime_clipping.py::test_members_clip_alike_after_any_loss_during_a_round")
@pytest.mark.parametrize("mode", ["Sync", "Hybrid"])
def test_steps_are_clipped_alike_after_any_loss_at_any_time(
    cluster: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any loss, members clip steps alike. In Hybrid the norm covers the workers' dense gradients and the rows of
    tables.
    """
    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
    monkeypatch.setattr(ring_transport, "SILENT_BEATS", 600)
    cluster.container = f"test.clipped.{mode}"
    with ExitStack() as stack:
        pairs: Pairs = Pairs(cluster, sgd("global_clipnorm"), small)
        if mode == "Hybrid":
            pairs = RingPairs(cluster, sgd("global_clipnorm", momentum=0.0))
            stack.callback(pairs.close)
        assert pairs.expected
        assert not pairs.differences(pairs.both)
        survivors, messages = ((1,), (0,)), rounds_messages(random.Random(0), clips=True)
        for cut in range(4, len(messages) + 1):
            pairs.play(messages[:cut])
            pairs.fail_over(survivors)
            pairs.finish(survivors)
            assert not pairs.differences(survivors), list(map(str, messages[:cut]))


@in_all("tests/training/test_runtime_clipping.py::test_members_clip_alike_after_any_loss_during_a_round")
def test_a_late_server_clips_by_the_decided_norms(rigs: Any, client: Any) -> None:
    """A late server clips by the decided norms. The worker dies after the arbiter has applied the step, and the chief
    lets the other server follow.
    """
    import tensorflow as tf

    from pstraining.runtime.updates.gradients import ShardGradient
    from pstraining.runtime.updates.synchronous.norms import settled

    build = in_float64(with_a_cut_tensor)
    rig = rigs(sgd("global_clipnorm"), build, ps=2, mode="Sync")
    (batch,) = batches(1)
    updates = rig.workers[0]
    gradient, request = updates._computer.compute([batch]), updates._request(updates._fetch())
    servers = updates._ops._servers

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def decided() -> Any:
        one = tf.constant(1, tf.int64)
        for number, server in enumerate(servers):
            own = ShardGradient(gradient.stats, gradient.vectors[number], gradient.rows[number])
            server.push(*request, one, own)
        known = settled(servers, request.session, request.place, one)
        made = servers[0].apply(*request[:3], servers[0].unanimous(known), tf.constant(0, tf.int64))
        return client.to_local(made)

    assert client.call(decided)[0] == 1
    assert [record.step for record in rig.store.read()] == [1, 0]
    state = rig.control.snapshot(fence=1)
    assert difference(rig, state, in_one_process(rig, build, sgd("global_clipnorm"), [[batch]])) < 1e-6


def halves() -> Any:
    import keras

    with half_precision():
        layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Activation("linear", dtype="float32")])


@in_all("tests/training/test_runtime_clipping.py::test_the_mean_is_clipped_as_in_one_process")
@pytest.mark.parametrize("mode", ["Sync", "Hybrid"])
def test_norms_are_taken_of_unscaled_gradients(rigs: Any, mode: str) -> None:
    """Norms are computed of unscaled gradients: a step that overflows is skipped, and halves the scale."""
    import keras

    def scaled() -> Any:
        inner = keras.optimizers.Adam(1e-2, global_clipnorm=0.05)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**18, dynamic_growth_steps=3)

    rig = rigs(scaled, halves, ps=2, mode=mode, loss="mse")
    rig.train(batches_of_numbers(8))
    state, expected = rig.snapshot(), trained(prepared(rig, halves, scaled), batches_of_numbers(8))
    assert difference(rig, state, [variable.numpy() for variable in expected.trainable_variables]) < 1e-6
    assert state.scalars["loss_scale"] == expected.optimizer.dynamic_scale.numpy()
    assert 0 < state.scalars["loss_scale_skipped_steps"] < state.step


@in_all("tests/training/test_runtime_clipping.py::test_the_mean_is_clipped_as_in_one_process")
@pytest.mark.parametrize("mode", ["Sync", "Hybrid"])
def test_a_step_with_a_non_finite_norm_is_skipped(rigs: Any, mode: str) -> None:
    """A step with a non-finite norm is skipped, although its gradients are finite; Keras would produce parameters that
    are NaN.
    """
    import keras
    import tensorflow as tf

    def linear() -> Any:
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros")])

    rig = rigs(sgd("global_clipnorm"), linear, ps=1, mode=mode, loss="mae")
    good = batches_of_numbers(1)[0]
    rig.train([good, (tf.fill([16, 8], 1e25), good[1])])
    state, expected = rig.snapshot(), trained(prepared(rig, linear, sgd("global_clipnorm"), "mae"), [good])
    assert state.step == 2
    assert difference(rig, state, [variable.numpy() for variable in expected.trainable_variables]) < 1e-6
