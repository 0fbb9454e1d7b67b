"""Every kind of optimizer and of clipping on real parameter servers equals Keras in one process.

The tests have one and three servers, and one and four workers. Several workers in Async have no equivalent in one
process.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.allreduce import transport as ring_transport
from tests.support.servers import Rig, batches, in_float64, small
from tests.support.soak_marks import THOROUGH, in_all, in_soak, some
from tests.support.worker_threads import Crew
from tests.training import test_runtime_sync as sync
from tests.training.test_runtime_clipping import LIMITS, sgd
from tests.training.test_runtime_optimizers import OPTIMIZERS, assert_equal

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("plain_arithmetic")]
STEPS = 50 if THOROUGH else 20


def _adamw() -> Any:
    import keras

    own = keras.optimizers.AdamW(1e-2, weight_decay=0.1)
    own.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return own


def _adam() -> Any:
    import keras

    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, 60))


def _momentum() -> Any:
    import keras

    return keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)


def _clipped(name: str) -> Any:
    return sgd(name)()


ROWS: dict[str, Callable[[], Any]] = {
    "Adam": _adam,
    "AdamW": _adamw,
    "momentum": _momentum,
    **OPTIMIZERS,
    **{name: partial(_clipped, name) for name in LIMITS},
}
WITHOUT_FLOAT64 = ("Muon", "MultiOptimizer")
"""Keras's Muon multiplies the update by a float32 value."""
ROUNDED = ("clipnorm", "global_clipnorm")
"""Rows whose norms are summed over servers differ by rounding; all other rows are equal bit for bit."""

JOINT = ("Adam", "Adafactor", "Lamb", "Muon", "MultiOptimizer", "global_clipnorm")
"""Rows that `make test-all` also takes with several workers: Adam, and those with more than one element's rule."""
QUICK = ("RMSprop", 1, 3)
"""Optimizer, workers and servers in `make test`."""


def _is_joint(name: str, workers: int, ps: int) -> bool:
    return (workers, ps) == (4, 3) and name in JOINT


@pytest.mark.parametrize(
    ("name", "workers", "ps"),
    some(
        [*product(JOINT, [4], [3]), QUICK],
        lambda *cell: cell == QUICK,
        in_all("tests/training/test_runtime_optimizer_matrix.py::test_in_sync"),
    )
    + some(
        [("Muon", 2, 3), *(cell for cell in product(ROWS, [1, 4], [1, 3]) if not _is_joint(*cell) and cell != QUICK)],
        lambda *_: False,
        in_soak,
    ),
)
def test_in_sync(client: Any, name: str, workers: int, ps: int) -> None:
    """In Sync, optimizers equal Keras in float32, because the workers' gradients are added in the order of one
    process.
    """
    exact = name not in ROUNDED
    _compare(client, name, workers=workers, exact=exact, ps=ps, mode="Sync", ordered_sums=True)


@in_all("tests/training/test_runtime_updates.py::test_one_worker_equals_keras_in_one_process")  # all optimizers
@pytest.mark.parametrize("name", ROWS)
def test_in_async(client: Any, name: str) -> None:
    _compare(client, name, workers=1, ps=3, mode="Async")


@in_all("tests/training/test_runtime_hybrid.py::test_it_equals_one_process_on_all_batches_together")  # all optimizers
@pytest.mark.parametrize("name", some(ROWS, lambda name: name in JOINT, in_soak))
def test_in_hybrid(client: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Hybrid, optimizers equal Keras in float64, because a ring adds in another order. With two workers there is
    only one order.
    """
    monkeypatch.setattr(ring_transport, "SILENT_BEATS", 600)
    if name in WITHOUT_FLOAT64:
        _compare(client, name, workers=2, ps=3, mode="Hybrid")
    else:
        _compare(client, name, workers=4, ordered=False, ps=3, mode="Hybrid", build=in_float64(small))


def _compare(
    client: Any,
    name: str,
    *,
    workers: int,
    exact: bool = False,
    ordered: bool = True,
    build: Callable[[], Any] = small,
    **options: Any,
) -> None:
    from keras.src.utils import naming

    shares = [batches(STEPS, seed=worker) for worker in range(workers)]
    with ExitStack() as stack:
        rig = Rig(client, ROWS[name], build=build, workers=workers, **options)
        if options["mode"] == "Hybrid":  # its workers have connections
            stack.callback(lambda: [updates.close() for updates in rig.workers])
        if options["mode"] == "Sync":
            _share_functions(rig)
        rig.start()
        Crew(rig, shares).join()
        state = rig.snapshot()
    assert state.step == STEPS
    naming.reset_uids()  # Muon goes by the layers' names
    steps: Sequence[Any] = list(zip(*shares, strict=True))
    expected = sync.in_one_process(rig, build, ROWS[name], steps, ordered=ordered)
    assert_equal(state.variables, rig, expected)
    for variable, tensor in zip(expected.trainable_variables, rig.model.tensors, strict=True) if exact else ():
        np.testing.assert_array_equal(state.variables[tensor.path], variable.numpy(), err_msg=tensor.path)


def _share_functions(rig: Rig) -> None:
    """Trace the functions of a step once for all workers, which then share a model with the step's parameters.

    No worker sees parameters of another step: a round ends when all workers have pushed.
    """
    from pstraining.runtime.updates.synchronous.updates import SyncWorker

    first, *others = rig.workers
    for place, (updates, who) in enumerate(zip(others, rig.identities[1:], strict=True), 1):
        worker: SyncWorker = updates._shared
        shared = copy(first)
        shared._shared, shared._worker, shared._identity = worker, who.worker, worker.identity
        shared._selector, shared._worker_progress = worker.selector, worker.progress
        rig.workers[place] = shared
