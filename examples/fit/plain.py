"""Handwritten digits with `fit`, on one machine: `python -m examples.fit.plain`. `__main__` is the same as a job."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

EPOCHS, BATCH = 8, 32


@cache
def load() -> Any:
    """Return 1797 images of 8 x 8 pixels with their labels: a part for training, and a fifth held back."""
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
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def optimizer() -> Any:
    import keras

    return keras.optimizers.Adam(1e-3)


def callbacks(folder: Path) -> list[Any]:
    import keras

    folder.mkdir(parents=True, exist_ok=True)
    return [
        keras.callbacks.CSVLogger(str(folder / "log.csv"), append=True),
        keras.callbacks.ModelCheckpoint(str(folder / "best.keras"), monitor="val_accuracy", save_best_only=True),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
    ]


def main(folder: Path) -> None:
    images, held_back, labels, expected = load()
    built = model()
    built.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    built.fit(
        images,
        labels,
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(held_back, expected),
        callbacks=callbacks(folder),
        verbose=2,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
