"""The script `plain`, beside it, as a parameter-server job: the same model, data, callbacks and precision.

In a cluster: `kubectl apply -f job.yaml`. On this machine:

    python -m examples.convnet.write /tmp/convnet-data
    DATA=/tmp/convnet-data python -m pstraining.runtime.local --ps 1 --workers 2 --checkpoint-dir /tmp/convnet \
        -m examples.convnet mixed_bfloat16
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.convnet import plain
from examples.convnet.plain import CLASS_WEIGHT, EPOCHS
from examples.convnet.write import SAMPLES
from pstraining.runtime import Files, Trainer

DATA = Path(os.environ.get("DATA", "/data"))
# Only the chief runs callbacks, and only the chief mounts the folder for checkpoints.
FOLDER = Path(os.environ.get("PSTRAINING_CHECKPOINT_DIR", tempfile.gettempdir()))
# In Sync, an update trains on a batch of each worker: the batches of two workers equal one of the script's.
BATCH = plain.BATCH // 2


def read(path: str) -> Any:
    """Return the batches of a file, which are the same in every pass because of the seed."""
    return plain.parsed(path).shuffle(1024, seed=1, reshuffle_each_iteration=False).batch(BATCH)


def test_data() -> Any:
    return plain.test_data(DATA)


def job(dtype_policy: str) -> Trainer:
    trainer = Trainer(
        # The policy is set in the function that builds the model: on the chief and on every worker.
        lambda: plain.model(dtype_policy),
        # The schedule ends with training, in every mode and with any number of workers.
        lambda: plain.optimizer(trainer.total_updates(batch_size=BATCH, samples=SAMPLES)),
        "sparse_categorical_crossentropy",
        Files(plain.training_files(DATA), read),
        epochs=EPOCHS,
        metrics=["accuracy"],
        validation=test_data,
        evaluate=test_data,
        class_weight=CLASS_WEIGHT,
        callbacks=lambda: plain.callbacks(FOLDER),
    )
    return trainer


if __name__ == "__main__":
    job(plain.policy(sys.argv[1:])).run()
