"""TFRecord files that are assigned to workers: the batches of a file, and a job that trains on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.tfrecords import __main__ as program
from examples.tfrecords.write import FILES, write
from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import THOROUGH
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]


def rows(batches: Any) -> list[bytes]:
    return [image.tobytes() for images, _ in batches.as_numpy_iterator() for image in images]


def test_the_job_trains_every_file_and_ends_as_plain_keras_does(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras
    import tensorflow as tf

    write(tmp_path)
    paths = sorted(map(str, tmp_path.glob("train-*")))
    assert len(paths) == FILES
    first = rows(program.read(paths[0]))
    assert first == rows(program.read(paths[0])), "the same batches each time"
    assert sorted(first) == sorted(rows(program.parsed(paths[0]).batch(8)))
    assert first != rows(program.parsed(paths[0]).batch(8)), "shuffled within the file"

    epochs = program.EPOCHS if THOROUGH else 2
    training = {"mode": "Sync", **({} if THOROUGH else {"epochs": epochs})}
    monkeypatch.setenv("DATA", str(tmp_path))
    workers = 2 if THOROUGH else 1
    with LocalJob(["-m", "examples.tfrecords"], workers=workers, chief=THOROUGH, restarts=1, training=training) as run:
        assert finished(run) == 0, transcript(run)
        result = run.leader.events("result")[0]
    # 16 files of 3 batches; an update has one batch of each worker. The worker with an epoch's last file trains it
    # alone.
    updates = epochs * FILES * 3 // workers
    assert updates <= result["step"] <= updates + 3 * epochs
    if not THOROUGH:  # accuracies are comparable only after more epochs
        assert result["test_accuracy"] > 0.5
        return

    monkeypatch.setattr(program, "DATA", tmp_path)
    keras.utils.set_random_seed(1)
    alone = program.model()
    schedule = keras.optimizers.schedules.CosineDecay(4e-3, decay_steps=updates)
    alone.compile(keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"])
    everything = tf.data.TFRecordDataset(paths)
    assert sum(1 for _ in everything) == program.SAMPLES
    together = tf.data.Dataset.from_tensor_slices(paths).flat_map(program.parsed)
    alone.fit(together.shuffle(2000, seed=0).batch(2 * program.BATCH), epochs=program.EPOCHS, verbose=0)
    accuracy = alone.evaluate(program.test_data(), return_dict=True, verbose=0)["accuracy"]
    assert np.isclose(result["test_accuracy"], accuracy, atol=0.03)
