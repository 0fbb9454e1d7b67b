"""Write scikit-learn's handwritten digits as TFRecord files: `python -m examples.tfrecords.write FOLDER`.

Real data is written once, by the program that prepares the data. Many files of equal size suit a job: a file is the
unit of assignment to a worker.
"""

import sys
from pathlib import Path
from typing import Any

FILES = 16
TEST = "test.tfrecord"


def record(image: Any, label: int) -> bytes:
    """Return one sample as the bytes of a `tf.train.Example`."""
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized


def write(folder: Path) -> None:
    """Write 16 files of training data, and one of test data."""
    import tensorflow as tf
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {f"train-{number:02}.tfrecord": (train_x[number::FILES], train_y[number::FILES]) for number in range(FILES)}
    for name, (x, y) in {**parts, TEST: (test_x, test_y)}.items():
        with tf.io.TFRecordWriter(str(folder / name)) as file:
            for image, label in zip(x, y, strict=True):
                file.write(record(image, label))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
