"""Auto compression on real parameter servers: a change of the wire format loses nothing, and the faster format is
chosen.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from pstraining.api.training import Codec as Name
from pstraining.runtime.compression.auto_select import CODED, PLAIN
from tests.support.servers import SESSION, Rig, batches, large, warm_up
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak, some
from tests.support.worker_threads import Crew
from tests.training.test_runtime_compression import with_one_to_spare

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

AUTO = {"push": "Auto", "pull": "Auto"}
SERVERS = 2 if ALL else 1
"""Servers of tests that compare formats. With two, the arbiter has to announce its choice to the other server, as it
does where a round has no gradient.
"""


class FixedFormats:
    """Proposes the given formats in sequence, and then the last one forever."""

    def __init__(self, forms: Sequence[int]) -> None:
        self._forms, self._made = list(forms), 0

    @property
    def current(self) -> int:
        return self._forms[min(self._made, len(self._forms) - 1)]

    def propose_next(self, under_way: int) -> int:
        return self.current

    def note(self, form: int, seconds: float, *, step: int) -> None:
        self._made += 1


def total_sent(rig: Rig, forms: Sequence[int], *, taken: Sequence[bool], feedback: bool = True) -> float:
    """Return the relative error of the received sum of gradients in the worst segment, for pushes by TopK or
    uncompressed.

    A gradient that was not taken is added to the next one, as that of a dropped update is.
    """
    from pstraining.runtime.compression import codecs
    from pstraining.runtime.compression.push import PushCompressor

    wire = PushCompressor(rig.store, [None, codecs.find(Name.TOP_K, permille=5)], feedback=feedback)
    drawn = np.random.default_rng(0)
    came = [[np.zeros(s.size) for s in shard.segments] for shard in rig.store.shards]
    wanted = [[np.zeros(s.size) for s in shard.segments] for shard in rig.store.shards]
    for form, kept in zip(forms, taken, strict=True):
        vectors: list[list[Any]] = [
            [drawn.normal(size=s.size).astype(s.dtype) for s in shard.segments] for shard in rig.store.shards
        ]
        parts, left = wire.encode(vectors, form)
        if not kept:
            continue
        wire.commit_residual(left)
        for number, row in enumerate(vectors):
            for index, (vector, sent) in enumerate(
                zip(row, wire.decode(rig.store.shards[number], parts[number], form), strict=True)
            ):
                came[number][index] += np.asarray(sent)
                wanted[number][index] += vector
    pairs = [(a, b) for row in zip(came, wanted, strict=True) for a, b in zip(*row, strict=True)]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@pytest.mark.parametrize("seed", range(3 if THOROUGH else 1))
def test_the_residual_is_sent_with_the_next_push_in_either_format(client: Any, seed: int) -> None:
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.1), ps=SERVERS, build=large)
    drawn = random.Random(seed)
    forms = [drawn.choice([PLAIN, CODED]) for _ in range(30 if THOROUGH else 10)]
    taken = [drawn.random() < 0.7 for _ in forms]
    still_owed = total_sent(rig, [*forms, CODED], taken=[*taken, True])
    assert still_owed > 0.01, "the codec keeps something back"
    assert total_sent(rig, [*forms, CODED, PLAIN], taken=[*taken, True, True]) < 1e-5
    assert total_sent(rig, [*forms, CODED, PLAIN], taken=[*taken, True, False]) > 0.01
    assert total_sent(rig, [*forms, CODED, PLAIN], taken=[*taken, True, True], feedback=False) > 0.01


def steady() -> Any:
    """Return a model whose gradient does not depend on its parameters, for a loss that is linear in its output."""
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(300, use_bias=False)])


def linear(y: Any, predicted: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(predicted * tf.cast(y[:, tf.newaxis] + 1, predicted.dtype), axis=-1)


@pytest.mark.parametrize(
    ("mode", "feedback"),
    some(
        [(mode, feedback) for mode in ("Sync", "Async") for feedback in (True, False)],
        lambda mode, feedback: mode == "Async" and feedback,
        in_all(
            "tests/training/test_runtime_auto.py::test_a_run_that_changes_formats_ends_like_one_that_does_not"
        ),  # in step, and the reason for error feedback
    ),
)
def test_a_run_that_changes_formats_ends_like_one_that_does_not(client: Any, mode: str, feedback: bool) -> None:
    import keras

    def trained(container: str, forms: Sequence[int], compression: dict[str, Any]) -> Any:
        client.container = container
        rig = Rig(
            client,
            lambda: keras.optimizers.SGD(0.1),
            ps=SERVERS,
            build=steady,
            loss=linear,
            mode=mode,
            compression=compression,
        )
        rig.model.assign((path, np.ones_like(value)) for path, value in rig.initial.items())
        rig.initial = rig.model.values()
        if compression:
            rig.workers[0]._selector = FixedFormats(forms)
        rig.start()
        warm_up(rig, batches(1))
        rig.train(batches(len(forms)))
        return rig.control.snapshot(fence=1).variables

    # The last two are equal, because in Sync a format is proposed for the round that follows.
    forms = [CODED, CODED, PLAIN, CODED, CODED, CODED, PLAIN, PLAIN]
    container = client.container
    plain = trained(container, forms, {})
    changing = trained(f"{container}.auto", forms, {"push": "Auto", "error_feedback": feedback})
    off = max(float(np.abs(changing[path] - value).max()) for path, value in plain.items())
    assert (off < 2e-6) is feedback, off


def test_workers_hold_the_same_bits_through_every_change(client: Any) -> None:
    import keras

    adam = partial(keras.optimizers.Adam, 1e-3)
    rig = Rig(client, adam, ps=SERVERS, build=large, workers=2, mode="Sync", compression=AUTO)
    rig.start()
    rng = random.Random(5)
    fresh = rig.new_store()
    own: Any = rig.mode.make(fresh, rig.identities[0])
    exact = set()
    for _ in range(12):
        for worker in rig.workers:
            worker._selector = FixedFormats([rng.choice([PLAIN, CODED]) for _ in range(4)])
        Crew(rig, [batches(4, seed=rng.randrange(1000)) for _ in range(2)]).join()
        held = [worker._store.model.values() for worker in rig.workers]
        assert len({(worker._step, worker._format) for worker in rig.workers}) == 1
        own.start_session(SESSION)
        own._step = own._fetch()  # as `step` does
        assert isinstance(own._step, int)
        for path, value in fresh.model.values().items():
            for one in held:
                np.testing.assert_array_equal(one[path], value, err_msg=path)
        state = rig.control.snapshot(fence=1)
        off = max(float(np.abs(state.variables[path] - value).max()) for path, value in held[0].items())
        assert off < 0.1
        exact.add(off == 0)
        if len(exact) == 2:
            break
    assert exact == {True, False}, "both forms were the last one once"


@in_all(
    "tests/training/test_runtime_compression.py::test_a_worker_that_missed_a_step_restarts_with_the_whole_shadow"
)  # of one codec
def test_a_late_worker_first_pulls_everything_in_either_format(client: Any) -> None:
    rig = with_one_to_spare(client, AUTO)
    late = rig.workers[-1]
    for number, forms in enumerate([[CODED], [PLAIN], [CODED, PLAIN]]):
        late._step = late._fetch()  # as `step` does
        assert isinstance(late._step, int)
        for worker in rig.workers:
            worker._selector = FixedFormats(forms)
        Crew(rig, [batches(5, seed=2 * number), batches(5, seed=2 * number + 1)]).join()
        reply = late.step(batches(1, seed=99))
        assert (reply.session_valid, reply.applied) == (True, False)
        late._step = late._fetch()  # as `step` does
        assert isinstance(late._step, int)
        rig.workers[0].start_session(SESSION)
        rig.workers[0]._fetch()
        ours, others = late._store.model.values(), rig.workers[0]._store.model.values()
        for path, value in others.items():
            np.testing.assert_array_equal(ours[path], value, err_msg=path)


@in_all("tests/training/test_runtime_auto.py::test_workers_hold_the_same_bits_through_every_change")  # 18 s
def test_one_worker_selects_the_format_of_a_synchronous_step(client: Any) -> None:
    """One worker selects the format of a synchronous step. If every worker explored, one that does not end rounds would
    never see its format.
    """
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.05), ps=2, build=large, workers=2, mode="Sync", compression=AUTO)
    rig.start()
    warm_up(rig, batches(1))
    forms = [PLAIN, CODED, CODED, PLAIN, CODED, PLAIN, PLAIN, CODED]
    seen: list[int] = []

    class Decider(FixedFormats):
        def note(self, form: int, seconds: float, *, step: int) -> None:
            super().note(form, seconds, step=step)
            seen.append(form)

    rig.workers[0]._selector, rig.workers[1]._selector = Decider(forms), FixedFormats([PLAIN])
    Crew(rig, [batches(9, seed=0), batches(9, seed=1)]).join()
    assert seen[1:] == forms, "a round has the format that was requested in the previous one"


@pytest.mark.parametrize(
    "pull",
    some(
        ["Int8", "Auto"],
        lambda pull: pull == "Auto",
        in_all("tests/training/test_runtime_auto.py::test_a_round_without_a_gradient_is_pulled_like_any_other"),  # Auto
    ),
)
def test_a_round_without_a_gradient_is_pulled_like_any_other(client: Any, pull: str) -> None:
    import keras
    import tensorflow as tf

    rig = Rig(
        client,
        lambda: keras.optimizers.SGD(0.05),
        ps=2,
        build=large,
        mode="Sync",
        compression={"pull": pull},
        non_finite="Skip",
    )
    rig.start()
    rig.workers[0]._selector = FixedFormats([CODED])
    rig.train(batches(3))
    x, y = batches(1)[0]
    reply = rig.step((tf.fill(x.shape, float("nan")), y))
    assert (reply.applied, reply.finite, reply.step) == (True, False, 4)
    held = rig.model.values()
    rig.workers[0].start_session(SESSION)
    rig.workers[0]._fetch()
    for path, value in rig.model.values().items():
        np.testing.assert_array_equal(held[path], value, err_msg=path)


@in_soak
def test_parameters_are_pulled_from_one_step(client: Any) -> None:
    """Parameters are pulled from one step. A worker that starts during a step must hold the same parameters as the
    others, as later moves are added to them.
    """
    import keras

    rig = Rig(client, lambda: keras.optimizers.SGD(0.05), ps=2, build=large, workers=2, mode="Sync", compression=AUTO)
    rig.start()
    ahead, late = rig.workers
    rig.store.deregister(1, 1)
    ahead._selector = FixedFormats([CODED])
    rig.train(batches(3))
    looked = late._look
    pulls: list[int] = []

    def look_and_be_overtaken(loss: float) -> Any:
        found = looked(loss)
        if not pulls:
            pulls.append(1)
            rig.train(batches(1, seed=9))
        return found

    late._look = look_and_be_overtaken
    late._step = late._fetch()  # as `step` does
    assert isinstance(late._step, int)
    assert (late._step, late._format) == (ahead._step, ahead._format)
    for path, value in ahead._store.model.values().items():
        np.testing.assert_array_equal(late._store.model.values()[path], value, err_msg=path)


@pytest.mark.parametrize(
    "mode",
    some(
        ["Sync", "Async"],
        lambda mode: mode == "Async",
        in_all("tests/training/test_runtime_auto.py::test_workers_hold_the_same_bits_through_every_change"),  # in step
    ),
)
def test_auto_trains_with_either_format(client: Any, mode: str) -> None:
    import keras

    rig = Rig(client, lambda: keras.optimizers.Adam(3e-3), ps=SERVERS, build=large, mode=mode, compression=AUTO)
    rig.start()
    warm_up(rig, batches(1))
    rig.workers[0]._selector = FixedFormats([PLAIN, CODED, CODED, PLAIN] * 15)
    (one,) = batches(1)
    losses = [rig.step(one).loss for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]


def test_a_fast_link_needs_no_codec(client: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Auto compression leaves a model of 6.5 MB uncompressed on a fast link, this machine's loopback interface, and
    reports that it has explored.
    """
    import json

    import keras
    import tensorflow as tf

    def wide() -> Any:
        return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(1270) for _ in range(2))])

    rig = Rig(client, lambda: keras.optimizers.SGD(0.01), ps=1, build=wide, loss="mse", compression={"push": "Auto"})
    rig.start()
    worker, one = rig.workers[0], (tf.ones([4, 8]), tf.ones([4, 1270]))
    warm_up(rig, [one])
    for _ in range(100):
        rig.step(one)
        if worker._selector._known.chosen is not None:
            break
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (reported,) = [line for line in lines if line["event"] == "compression"]
    assert reported["on"] == (reported["coded_seconds"] < 0.95 * reported["plain_seconds"])
    assert reported["on"] is False, reported
    assert min(reported["samples"]) >= 4
