"""Classify scikit-learn's handwritten digits, asynchronously, on parameter servers.

Every task of the job runs this same file: `Trainer.run` looks at TF_CONFIG and becomes a parameter server, a worker or
the chief. In a cluster: `kubectl apply -f job.yaml`. On this machine:

    python -m pstraining.runtime.local --ps 1 --workers 2 -m examples.digits
"""

from typing import Any

from pstraining.runtime import Trainer

# Keras, TensorFlow and scikit-learn are imported inside the functions: a parameter server never calls them, so it
# starts in a fraction of a second and needs half the memory.


def load() -> Any:
    """Return 1797 images of 8 x 8 pixels with their labels; every process holds back the same fifth for the test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    return train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0, stratify=labels)


def model() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(1e-3)


def train_data(worker: int, workers: int) -> Any:
    """Return this worker's share of the images; each worker has different ones."""
    import tensorflow as tf

    images, _, labels, _ = load()
    share = tf.data.Dataset.from_tensor_slices((images[worker::workers], labels[worker::workers]))
    # Each pass has another order. The last, smaller batch is dropped, so that all batches have the same weight.
    return share.shuffle(1024, seed=worker).repeat().batch(32, drop_remainder=True).prefetch(2)


def test_data() -> Any:
    import tensorflow as tf

    _, images, _, labels = load()
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(128)


if __name__ == "__main__":
    Trainer(
        model,
        optimizer,
        "sparse_categorical_crossentropy",
        train_data,
        evaluate=test_data,
        metrics=["accuracy"],
        steps=5000,
    ).run()
