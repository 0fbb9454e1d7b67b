"""All threads of a task have the program's settings of Keras."""

import time

import pytest

from tests.training.test_runtime_programs import line, sgd

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def test_all_threads_of_a_task_have_the_programs_settings_of_keras() -> None:
    """Keras keeps its dtype policy for each thread: worker 0 of a job without a chief, and callbacks, have others."""
    import keras
    from keras.src.random import seed_generator

    from pstraining.runtime.chief.reports.callbacks import EpochEnds
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective
    from pstraining.runtime.worker.router import FailoverRouter
    from pstraining.runtime.worker.thread import WorkerThread

    seen: list[object] = []

    def note(_: object = None) -> None:
        seen.append(keras.layers.Dense(1).compute_dtype)

    class Preparing(FailoverRouter):
        def __init__(self) -> None:
            self._current, self._ready, self._preparation = (), {()}, None

        def _keep_ready(self) -> None:
            seen.append(seed_generator.global_seed_generator())

    model, former = Model(lambda: line(keras.Model), sgd, Objective("mse")), keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        worker = WorkerThread(note)
        worker.start()
        worker.join()
        ends = EpochEnds(model, "CPU:0", [keras.callbacks.LambdaCallback(on_train_begin=note)], None)
    finally:
        keras.config.set_dtype_policy(former)
    ends.begin(0)
    ends.close()
    while ends.busy:
        time.sleep(0.01)
    common, router = seed_generator.global_seed_generator(), Preparing()
    router.warm_up(list)
    assert router._preparation is not None
    router._preparation.join()
    assert seen == ["bfloat16", "bfloat16", common], "functions that are traced ahead draw the worker's numbers"
