"""The script `plain`, beside it, as a parameter-server job: the same model, epochs, validation and callbacks.

In a cluster: `kubectl apply -f job.yaml`. On this machine:

    python -m pstraining.runtime.local --ps 1 --workers 2 --checkpoint-dir /tmp/digits-fit -m examples.fit
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from examples.fit.plain import BATCH, EPOCHS, callbacks, load, model, optimizer
from pstraining.runtime import Ranges, Trainer

# Only the chief runs callbacks, and only the chief mounts the folder for checkpoints.
FOLDER = Path(os.environ.get("PSTRAINING_CHECKPOINT_DIR", tempfile.gettempdir()))
SAMPLES = 1437  # of 1797, a fifth is held back


def read(begin: int, end: int) -> Any:
    """Return the batches of some of the samples, the same ones in every call."""
    import tensorflow as tf

    images, _, labels, _ = load()
    return tf.data.Dataset.from_tensor_slices((images[begin:end], labels[begin:end])).batch(BATCH)


def held_back() -> Any:
    import tensorflow as tf

    _, images, _, labels = load()
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(128)


if __name__ == "__main__":
    Trainer(
        model,
        optimizer,
        "sparse_categorical_crossentropy",
        Ranges(SAMPLES, block=5 * BATCH, read=read),  # assigned to the workers in splits
        epochs=EPOCHS,
        metrics=["accuracy"],
        validation=held_back,
        evaluate=held_back,
        callbacks=lambda: callbacks(FOLDER),
        training={"mode": "Sync"},
    ).run()
