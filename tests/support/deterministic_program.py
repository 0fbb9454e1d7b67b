"""A program on the digits with assigned data: `python -m tests.support.deterministic_program`.

ORDERED_PAUSE is the seconds of a wait per chunk, which leave time to disturb the program on any machine. ORDERED_EACH
is the number of connections after which all processes are renewed at once. With ORDERED_PIECE, returning members
receive the state in chunks of this number of bytes, as if the state were large. With ORDERED_GIVE_UP the chief gives up
its first attempt to change the layout, after the next layout was founded.
"""

import os
import time
from typing import Any

from pstraining.runtime import Ranges, Trainer
from pstraining.runtime.replication import renewal
from tests.support.placement import wanted_devices

SIZE, BLOCK, BATCH = 600, 70, 10


def model() -> Any:
    import keras

    keras.utils.set_random_seed(int(os.environ.get("ORDERED_SEED", "1")))
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10, "softmax")])


def optimizer() -> Any:
    import keras

    from pstraining.runtime.replication.transfer import chunks

    if piece := os.environ.get("ORDERED_PIECE"):
        vars(chunks).update(CHUNK_BYTES=int(piece), INCREMENTAL_BYTES=0)
    if os.environ.get("ORDERED_GIVE_UP"):
        give_up_once()
    return keras.optimizers.Adam(0.01)


def give_up_once() -> None:
    from pstraining.runtime.chief import live_layout
    from pstraining.runtime.replication.view import LayoutPostponedError
    from pstraining.runtime.replication.view_change import ViewChanger

    close, attempts = ViewChanger.close, list[int]()

    def postponed(changer: ViewChanger, *given: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise LayoutPostponedError("this attempt is given up")
        close(changer, *given)

    vars(live_layout).update(RETRY_SECONDS=1.0)
    ViewChanger.close = postponed  # type: ignore[assignment, method-assign]


def read(begin: int, end: int) -> Any:
    import tensorflow as tf
    from sklearn.datasets import load_digits

    time.sleep(float(os.environ.get("ORDERED_PAUSE", "0")))
    digits = load_digits()
    x, y = digits.data[begin:end].astype("float32") / 16, digits.target[begin:end]
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


if __name__ == "__main__":
    if each := os.environ.get("ORDERED_EACH"):
        vars(renewal).update(EACH=int(each), CHIEF_EACH=int(each), QUIET_SECONDS=0.0, TURN_SECONDS=0.0)
    Trainer(
        model,
        optimizer,
        "sparse_categorical_crossentropy",
        Ranges(SIZE, BLOCK, read),
        epochs=1,
        devices=wanted_devices(),
    ).run()
