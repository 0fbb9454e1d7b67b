"""The tasks for comparing accuracy: two real data sets from scikit-learn, and synthetic clicks.

The clicks are synthetic: a logistic model over hidden factors of users, items and two contexts draws them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pstraining.runtime import Embedding

FOLDS: Final = 5
IDS, WIDTH, FIELDS = 400, 8, 4


@dataclass(frozen=True)
class Task:
    """Data, a model, and the settings of plain training."""

    load: Callable[[], tuple[Any, Any]]
    """All samples: x and y."""
    build: Callable[[], Any]
    loss: str
    rate: float
    """Initial learning rate of plain SGD, which decays to zero as a cosine."""
    steps: int
    """Number of updates, each with one batch of every worker."""
    limit: float
    """Maximum loss in points."""
    doubled: float = 2.0
    """Factor of the learning rate for updates with twice the batch."""
    has_tables: bool = False
    batch: int = 32

    def score(self, y: Any, predicted: Any) -> float:
        """Return the score, from 0 to 100: accuracy, or for clicks the area under the ROC curve."""
        if predicted.shape[1] > 1:
            return float(100 * (predicted.argmax(1) == y).mean())
        from sklearn.metrics import roc_auc_score

        return float(100 * roc_auc_score(y, predicted[:, 0]))

    def fold(self, number: int) -> tuple[Any, Any]:
        """Return the indices of a fold's samples for training and for the test, with equal shares of the classes."""
        from sklearn.model_selection import StratifiedKFold

        x, y = self.load()
        return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y))[number]  # type: ignore[no-any-return]


def digits() -> tuple[Any, Any]:
    """1,797 images of 8 x 8, ten classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype("float32"), y.astype("int32")


def tumours() -> tuple[Any, Any]:
    """569 tumours of 30 features, benign or malignant."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype("float32"), y.astype("int32")


def clicks() -> tuple[Any, Any]:
    """Return 20,000 synthetic impressions of four ids each, clicked or not."""
    drawn = np.random.default_rng(20)
    x = drawn.integers(0, IDS // FIELDS, (20_000, FIELDS)) + np.arange(FIELDS) * (IDS // FIELDS)
    factors, bias = drawn.normal(size=(IDS, 3)), drawn.normal(size=IDS)
    rows = factors[x]
    wish = bias[x].sum(1) + (rows[:, 0] * rows[:, 1]).sum(1) + (rows[:, 2] * rows[:, 3]).sum(1) - 0.5
    y = drawn.random(len(x)) < 1 / (1 + np.exp(-wish))
    return x.astype("int32"), y.astype("float32")


def classifier(features: int, hidden: int, classes: int) -> Callable[[], Any]:
    """A network with one hidden layer."""

    def build() -> Any:
        import keras

        return keras.Sequential(
            [
                keras.Input((features,)),
                keras.layers.Dense(hidden, activation="relu"),
                keras.layers.Dense(classes, activation="softmax"),
            ]
        )

    return build


def click_model() -> Any:
    """Embeddings of all fields under a network with one hidden layer."""
    import keras

    ids = keras.Input((FIELDS,), dtype="int32")
    rows = keras.layers.Flatten()(Embedding(IDS, WIDTH, name="table")(ids))
    hidden = keras.layers.Dense(64, activation="relu")(rows)
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(hidden))


TASKS: Final = {
    "digits": Task(digits, classifier(64, 64, 10), "sparse_categorical_crossentropy", 0.5, 320, 0.5),
    "tumours": Task(tumours, classifier(30, 64, 2), "sparse_categorical_crossentropy", 0.2, 120, 0.5),
    "clicks (synthetic)": Task(
        clicks, click_model, "binary_crossentropy", 1.0, 240, 0.3, doubled=3.0, has_tables=True, batch=64
    ),
}
