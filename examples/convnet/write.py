"""Write scikit-learn's digits, each in nine places, as TFRecords: `python -m examples.convnet.write FOLDER`.

Samples are held back for the test at random, so that most digits of the test are in the training data, in another
place. The test shows whether the network recognizes them in any place.
"""

import sys
from pathlib import Path
from typing import Any

from examples.tfrecords.write import record

FILES, SAMPLES = 16, 8192
"""Numbers of training files, and of samples in all of them."""
HELD_BACK = 4096
"""Number of samples of the test."""
SIZE = 10
"""Width and height of an image, in pixels."""


def placed() -> tuple[Any, Any]:
    """Every digit of 8 x 8 pixels in every place, in random order.

    Returns:
        Images (16173, 100) and labels (16173,).
    """
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32").reshape(-1, 8, 8) / 16
    room = range(SIZE - 8 + 1)
    moved = [
        np.pad(images, ((0, 0), (above, SIZE - 8 - above), (left, SIZE - 8 - left))) for above in room for left in room
    ]
    order = np.random.default_rng(0).permutation(len(moved) * len(images))
    return np.concatenate(moved).reshape(-1, SIZE * SIZE)[order], np.tile(labels, len(moved))[order]


def write(folder: Path) -> None:
    """Write 16 files of 512 samples, and `test.tfrecord`."""
    import tensorflow as tf

    images, labels = placed()
    parts = {f"train-{number:02}.tfrecord": slice(number, SAMPLES, FILES) for number in range(FILES)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in {**parts, "test.tfrecord": slice(SAMPLES, SAMPLES + HELD_BACK)}.items():
        with tf.io.TFRecordWriter(str(folder / name)) as file:
            for image, label in zip(images[part], labels[part], strict=True):
                file.write(record(image, label))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
