"""Callbacks that monitor what only the program knows, as `fit` accepts them."""

from typing import Any

import pytest

from tests.training.test_runtime_fit import Drained

# A process connects before it creates its first tensor, so every test here uses the client.
pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


@pytest.mark.parametrize("kind", ["class", "lambda"])
def test_a_callback_may_monitor_what_an_earlier_one_adds_to_the_logs(client: Any, kind: str) -> None:
    """Programs compute a score of their own in `on_epoch_end`, and EarlyStopping monitors it."""
    import keras

    from pstraining.runtime.chief.refusals import CallbackRefusedError, LogNames, check_all, check_monitors

    def add(epoch: int, logs: Any) -> None:
        logs["val_f1"] = [0.5, 0.4][epoch]

    class Adds(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            add(epoch, logs)

    adds = Adds() if kind == "class" else keras.callbacks.LambdaCallback(on_epoch_end=add)
    stop = keras.callbacks.EarlyStopping("val_f1", mode="max", patience=1)
    known = LogNames({"loss"}, {"val_loss"})
    check_all([adds, stop], None, None)
    check_monitors([adds, stop], known)
    run = Drained([adds, stop])
    for step in range(2):
        assert not run.ends.stop_asked
        run.end(step, loss=1.0)
    assert run.ends.stop_asked
    for refused in ([stop, adds], [keras.callbacks.CSVLogger("log.csv"), stop]):
        with pytest.raises(CallbackRefusedError, match="EarlyStopping has monitor='val_f1'"):
            check_monitors(refused, known)
