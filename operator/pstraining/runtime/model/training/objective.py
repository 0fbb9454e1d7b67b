"""The objective of training: losses and metrics. Imports neither TensorFlow nor Keras."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

from pstraining.runtime.model.tensor import Batch, KerasModel, KerasOptimizer

OwnStep = Callable[[KerasModel, Batch], object]
"""The program's training step: returns a scalar loss, or the loss and metrics by name."""


@dataclass(frozen=True)
class Objective:
    """The arguments of `keras.Model.compile` and `fit` for losses and metrics, by their names in Keras.

    `metrics` and `weighted_metrics` may be functions that create them. `train_step` computes the loss instead of
    `loss`.
    """

    loss: object
    metrics: object = None
    loss_weights: object = None
    weighted_metrics: object = None
    class_weight: Mapping[int, float] | None = None
    train_step: OwnStep | None = None

    def for_worker(self) -> "Objective":
        """Return the same objective with metrics of its own, for a worker whose process may also be the chief."""
        return replace(self, metrics=deepcopy(self.metrics), weighted_metrics=deepcopy(self.weighted_metrics))

    def options(self, optimizer: KerasOptimizer) -> dict[str, object]:
        """Return the arguments of `keras.Model.compile` by name, without XLA and without omitted arguments."""
        given = {"loss_weights": self.loss_weights, "weighted_metrics": _created(self.weighted_metrics)}
        return {
            "optimizer": optimizer,
            "loss": self.loss,
            "metrics": _created(self.metrics),
            "jit_compile": False,
            **{name: value for name, value in given.items() if value is not None},
        }


def _created(metrics: object) -> object:
    return metrics() if callable(metrics) else metrics
