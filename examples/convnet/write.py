"""Write scikit-learn's digits, each in five places, as TFRecords: `python -m examples.convnet.write FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from examples.tfrecords.write import record

FILES = 16
SIZE = 10
"""Width and height of an image, in pixels."""
PLACES = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
"""Rows above an image of 8 x 8 pixels, and columns left of it."""


def placed(images: Any, labels: Any) -> tuple[Any, Any]:
    """Every image in each of the places, with its label: arrays of (5 n, 100) and (5 n,)."""
    import numpy as np

    moved = [
        np.pad(images.reshape(-1, 8, 8), ((0, 0), (above, SIZE - 8 - above), (left, SIZE - 8 - left)))
        for above, left in PLACES
    ]
    return np.concatenate(moved).reshape(-1, SIZE * SIZE), np.tile(labels, len(PLACES))


def write(folder: Path) -> None:
    """Write 16 files with one half of the images, and `test.tfrecord` with the other half."""
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.5, random_state=0, stratify=labels)
    train_x, train_y = placed(train_x, train_y)
    order = np.random.default_rng(0).permutation(len(train_x))
    parts = {
        f"train-{number:02}.tfrecord": (train_x[order[number::FILES]], train_y[order[number::FILES]])
        for number in range(FILES)
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in {**parts, "test.tfrecord": placed(test_x, test_y)}.items():
        with tf.io.TFRecordWriter(str(folder / name)) as file:
            for image, label in zip(x, y, strict=True):
                file.write(record(image, label))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
