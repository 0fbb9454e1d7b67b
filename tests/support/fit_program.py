"""A program with epochs, validation, callbacks and a training step of its own: `python -m tests.support.fit_program`.

The folder FITTING_FOLDER holds the callbacks' instructions, and receives their records.
"""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from pstraining.runtime import Ranges, Trainer

FOLDER = Path(os.environ.get("FITTING_FOLDER", "."))
PLAN: dict[str, Any] = json.loads(os.environ.get("FITTING_PLAN", "{}"))
"""Arguments of the Trainer, such as epochs and steps_per_epoch; `pace`, the seconds per batch; `batches_per_epoch`, for
which see `follow_chief`; and what the callbacks do.
"""
SAMPLES, BATCH, BLOCK = 400, 10, 40
NOTES = "notes.jsonl"
_drawn = itertools.count(1)


def data() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, 8)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int64")


def model() -> Any:
    import keras

    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(PLAN.get("width", 16), activation="relu"), keras.layers.Dense(2)]
    )


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def loss() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def read(begin: int, end: int) -> Any:
    import tensorflow as tf

    x, y = data()

    def paced() -> Any:
        for first in range(begin, end, BATCH):
            time.sleep(PLAN.get("pace", 0.005))
            follow_chief(next(_drawn))
            yield x[first : first + BATCH], y[first : first + BATCH]

    shapes = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(paced, output_signature=shapes)


def follow_chief(number: int) -> None:
    """Wait before a worker's batch of this number that ends an epoch, until the chief has begun that epoch.

    Epochs that end together are reported once, and one report may take a busy chief as long as several epochs.
    """
    epoch, rest = divmod(number, PLAN.get("batches_per_epoch", number + 1))
    if rest:
        return
    last, deadline = min(epoch, PLAN["trainer"]["epochs"]) - 1, time.monotonic() + 60
    while not notes(FOLDER, "train_end") and time.monotonic() < deadline:
        if any(line["epoch"] >= last for line in notes(FOLDER, "epoch_begin")):
            return
        time.sleep(0.02)


def validation() -> Any:
    import tensorflow as tf

    def slow() -> Any:
        x, y = data()
        for _ in range(PLAN.get("validation_batches", 1)):
            time.sleep(PLAN.get("validation_pace", 0))
            yield x, y

    shapes = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(slow, output_signature=shapes)


def callbacks() -> list[Any]:
    import keras

    class Notes(keras.callbacks.Callback):  # type: ignore[misc]
        """Records every call of a callback with the model's state at that moment."""

        def note(self, call: str, **fields: Any) -> None:
            total = float(sum(np.abs(weight).sum() for weight in self.model.get_weights()))
            with (FOLDER / NOTES).open("a") as file:
                file.write(json.dumps({"call": call, "weights": total, "term": TERM, **fields}) + "\n")

        def on_train_begin(self, logs: Any = None) -> None:
            self.note("train_begin", epochs=self.params["epochs"], steps=self.params["steps"])

        def on_train_end(self, logs: Any = None) -> None:
            self.note("train_end")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.note("epoch_begin", epoch=epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            x, y = data()
            logits = self.model.predict_on_batch(x)
            self.note("epoch_end", epoch=epoch, logs=logs, accuracy=float((logits.argmax(1) == y).mean()))
            if epoch >= PLAN.get("stop_after", epoch + 1):  # Epochs that end together are reported once.
                self.model.stop_training = True
            if epoch >= PLAN.get("fail_after", epoch + 1):
                raise RuntimeError("this callback does not like epoch 1")

        def on_test_begin(self, logs: Any = None) -> None:
            self.note("test_begin")

    made: list[Any] = [Notes()]
    if "keras" in PLAN:
        made += [
            keras.callbacks.CSVLogger(str(FOLDER / "log.csv"), append=True),
            keras.callbacks.ModelCheckpoint(str(FOLDER / "best.keras"), monitor="val_loss", save_best_only=True),
            keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=10.0, patience=2, restore_best_weights=True),
        ]
    if "no_rate_from" in PLAN:
        made.append(
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.0 if epoch >= PLAN["no_rate_from"] else rate)
        )
    return made


TERM = int(os.environ.get("PSTRAINING_TERM", "1"))


def train_step(model: Any, batch: Any) -> Any:
    import keras

    x, y = batch
    logits = model(x, training=True)
    losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    right = keras.ops.cast(keras.ops.equal(keras.ops.argmax(logits, -1), y), "float32")
    return keras.ops.mean(losses), {"hits": keras.ops.mean(right)}


def notes(folder: Path, call: str = "") -> list[dict[str, Any]]:
    """Return what the callbacks have recorded; the last line may be incomplete yet."""
    file = folder / NOTES
    lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [line for line in found if not call or line["call"] == call]


if __name__ == "__main__":
    Trainer(
        model,
        optimizer,
        loss(),
        Ranges(SAMPLES, BLOCK, read) if PLAN.get("pieces") else lambda worker, workers: read(0, SAMPLES),
        metrics=["accuracy"],
        evaluate=validation if PLAN.get("evaluate") else None,
        validation=validation if PLAN.get("validation", True) else None,
        callbacks=callbacks,
        train_step=train_step if PLAN.get("train_step") else None,
        **PLAN.get("trainer", {}),
    ).run()
