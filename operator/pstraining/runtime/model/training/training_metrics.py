"""A compiled model's metrics during training, as `fit` reports them.

A worker updates Keras' own metrics on every batch and adds their states up, in float64. The chief adds the workers'
sums, and computes the results from them. Keras sums the states of replicas in the same way (`aggregation="sum"` of
`Metric.add_variable`), so accuracy, AUC or a mean over an output are exact over any number of workers.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state

from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasModel, KerasVariable, Tensor, Variable

OWN_STEP: Final = "own"
"""Value of `TrainingMetrics.outputs` for the program's own training step."""
STATE_LIMIT: Final = 8192
"""Maximum of numbers in the states of all metrics, which workers report every second."""

_Spec = Any
"""Tensors, or a structure of them, by shape and dtype: `keras.KerasTensor`."""


class TrainingMetrics:
    """The metrics of a compiled model, on a worker or on the chief; without metrics, no operation is emitted.

    Args:
        model: the compiled Keras model.
        used: whether training updates the metrics; a program's own training step does not update them.
    """

    def __init__(self, model: KerasModel, *, used: bool = True) -> None:
        self._model, self._used = model, used
        self._variables: list[KerasVariable] | None = None  # None: not built
        self._sums: Variable | None = None
        self._losses: list[tuple[int, int]] = []  # the places of total and count of each output's loss
        self._metrics: list[list[int]] = []  # the places of each metric's variables
        self.counts: Tensor | None = None
        """While a part of a batch is traced: whether its samples count. bool[]. None: they do."""
        self.outputs = ""
        """Shapes and types of labels and predictions as JSON, with which the chief builds the same metrics. Empty
        before the first trace."""
        self.left_out: list[str] = []
        """Names of metrics that are not reported: all of them, or none."""
        self.reason = ""
        """Why metrics are left out."""

    @property
    def are_reported(self) -> bool:
        """Return whether workers report metrics; those that `compile` was not given are known once they are built."""
        given = self._model._compile_metrics is not None
        return self._used and not self.left_out and (given or bool(self._variables))

    def build(self, y: Any, predicted: Any) -> None:
        """Create the metrics, with states of zeros, for labels and predictions of these shapes; once."""
        if self._variables is None:
            labels, outputs = _spec(y), _spec(predicted)
            with tf.init_scope(), _real_variables():
                self._build(labels, outputs)
                if size := sum(map(_size, self._variables or ())):
                    self._sums = tf.Variable(tf.zeros([size + len(self._metrics)], tf.float64), trainable=False)
                self.outputs = json.dumps([_encoded(labels), _encoded(outputs)])

    def update(self, x: object, y: object, predicted: object, weight: object) -> None:
        """Emit adding a batch to the sums, and resetting the metrics.

        A batch for which a metric's state is not finite is left out of that metric: the sums of a process have no end,
        and NaN would stay in them. The number of each metric's batches follows the states.
        """
        if (sums := self._sums) is None:
            return
        self._model.compute_metrics(x, y, predicted, sample_weight=weight)
        variables = self._variables or ()
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        parts = self._by_samples([tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values], predicted)
        with tf.device(sums.device):  # each device of a worker adds its part of the batch
            finite = [tf.reduce_all(tf.math.is_finite(tf.concat([parts[n] for n in own], 0))) for own in self._metrics]
            of_metrics = zip(self._metrics, finite, strict=True)
            counted = [tf.fill(tf.shape(parts[n]), is_finite) for own, is_finite in of_metrics for n in own]
            self.add(sums, tf.concat([*parts, tf.ones([len(finite)], tf.float64)], 0), tf.concat([*counted, finite], 0))
        with tf.control_dependencies(parts):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(tf.zeros_like(value))

    def add(self, sums: Variable, values: Tensor, finite: Tensor) -> None:
        """Emit adding a batch's values to sums where they are finite, unless its samples do not count."""
        counts = finite if self.counts is None else finite & self.counts
        sums.assign_add(tf.where(counts, values, tf.zeros_like(values)), read_value=False)

    def sums(self) -> Sequence[float]:
        """Return the sums of the metrics' states, in the order of their variables, and the batches of each metric."""
        return [] if self._sums is None else self._sums.numpy().tolist()

    @property
    def counted(self) -> list[Variable]:
        """Return the variable of the sums, if there is one; the first trace creates it."""
        return [] if self._sums is None else [self._sums]

    def unchanged(self) -> AbstractContextManager[None]:
        """Leave the batches of a block out of `sums`."""
        return unchanged(lambda: self._sums)

    def results(self, outputs: str, sums: Mapping[int, float]) -> dict[str, float]:
        """Return the metrics by name, from sums over workers, without metrics whose result is not a single number.

        A metric without a batch, or whose result is not finite, is left out as well.

        Args:
            outputs: a worker's `outputs`.
            sums: the sums that are not zero, by their place in `TrainingMetrics.sums`.
        """
        if not any(sums.values()):
            return {}
        found = self._results(outputs, sums)
        return {name: value.item() for name, value in found.items() if np.isfinite(value).all()}

    def names(self, outputs: str) -> set[str] | None:
        """Return the names of the metrics that `results` can have; None with a program's own training step."""
        return None if outputs == OWN_STEP else set(self._results(outputs, {}))

    def _results(self, outputs: str, sums: Mapping[int, float]) -> dict[str, Array]:
        if self._variables is None:
            self._build(*(_decoded(part) for part in json.loads(outputs)))
        mapping, first = [], 0
        without = self._without_batches(sums)
        for number, variable in enumerate(self._variables or ()):
            places = range(first, first := first + _size(variable))
            values = np.array([sums.get(place, 0.0) for place in places]).reshape(variable.shape)
            if number in without and tf.as_dtype(variable.dtype).is_floating:
                values = np.full_like(values, np.nan)
            mapping.append((variable, tf.constant(values, variable.dtype)))
        if not mapping:
            return {}
        with keras.StatelessScope(state_mapping=mapping):
            found = single(self._model.get_metrics_result())
        return {name: value for name, value in found.items() if name != "loss"}

    def _without_batches(self, sums: Mapping[int, float]) -> set[int]:
        """Return the places of the variables of metrics to which no batch was added."""
        first = sum(map(_size, self._variables or ()))
        return {p for number, own in enumerate(self._metrics) if not sums.get(first + number) for p in own}

    def _by_samples(self, parts: Sequence[Tensor], predicted: object) -> list[Tensor]:
        """Emit the states of a batch, in which the losses of the outputs have the batch's samples as weights.

        Keras weighs them by the static number of samples, which batches of several sizes do not have: by 1 then.
        """
        weighed = list(parts)
        if not self._losses:
            return weighed
        number = tf.reshape(tf.cast(tf.shape(keras.tree.flatten(predicted)[0])[0], tf.float64), [1])
        for total, count in self._losses:
            weighed[total], weighed[count] = tf.math.divide_no_nan(parts[total] * number, parts[count]), number
        return weighed

    def _build(self, y: _Spec, predicted: _Spec) -> None:
        model = self._model

        def apply(y: Tensor, predicted: Tensor) -> Tensor:
            if model._compile_loss is not None and not model._compile_loss.built:
                model._compile_loss(y, predicted)
            if model._compile_metrics is not None and not model._compile_metrics.built:
                model._compile_metrics.update_state(y, predicted)
            return predicted

        backend.compute_output_spec(apply, y, predicted)  # creates the metrics, as in Keras' own `fit`
        metrics = [metric for metric in model.metrics if metric is not model._loss_tracker]
        for metric in metrics:
            metric.reset_state()  # as `fit` does at the beginning of an epoch
        self._variables = [variable for metric in metrics for variable in metric.variables]
        if sum(map(_size, self._variables)) > STATE_LIMIT:
            self.reason = "their state is too large to be reported every second; validation has them"
        elif odd := [variable for variable in self._variables if not _is_sum(variable)]:
            self.reason = (
                f"the state {odd[0].path} does not begin with zeros or has another aggregation than 'sum', so states "
                "of several batches cannot be added; validation has them"
            )
        named = [one for metric in metrics for one in _members(metric)]
        if self.reason:
            self.left_out, self._variables = [metric.name for metric in named], []
            return
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        ends = list(itertools.accumulate(len(metric.variables) for metric in named))
        self._metrics = [list(range(*own)) for own in itertools.pairwise([0, *ends]) if own[0] < own[1]]
        trackers = model._compile_loss.metrics if model._compile_loss is not None else ()
        self._losses = [(places[id(one.total)], places[id(one.count)]) for one in trackers if id(one.total) in places]


def _members(metric: keras.Metric) -> list[keras.Metric]:
    """Return the metrics of which one consists: Keras holds those given to `compile` in one of its own."""
    members = [member for member in getattr(metric, "metrics", ()) if member is not None]
    own, theirs = list(map(id, metric.variables)), [id(variable) for one in members for variable in one.variables]
    return members if members and own == theirs else [metric]


def single(results: Mapping[str, object]) -> dict[str, Array]:
    """Return the results of metrics that are one number; as in `fit`, a metric may have several of them by name."""
    found: dict[str, Array] = {}
    for name, value in results.items():
        found |= single(value) if isinstance(value, Mapping) else {name: np.asarray(value)}
    return {name: value for name, value in found.items() if value.size == 1}


@contextmanager
def unchanged(sums: Callable[[], Variable | None]) -> Iterator[None]:
    """Restore sums after the block, which tries a step; sums that the block has created are zeros."""
    found = sums()
    before = None if found is None else np.array(found.numpy())
    yield
    if (variable := sums()) is not None:
        variable.assign(tf.zeros_like(variable) if before is None else before)


@contextmanager
def _real_variables() -> Iterator[None]:
    """Create variables, also inside a `keras.StatelessScope`, which would postpone that until it ends."""
    former = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", former)


def _size(variable: KerasVariable) -> int:
    return int(np.prod(variable.shape))


def _is_sum(variable: KerasVariable) -> bool:
    """Return whether the states of several batches can be added: the aggregation is a sum that starts at zero."""
    return variable.aggregation == "sum" and not np.any(np.asarray(variable.numpy()))


def _spec(structure: Any) -> _Spec:
    """Return a structure's shapes and types, for any number of samples."""
    return keras.tree.map_structure(
        lambda tensor: (
            None if tensor is None else keras.KerasTensor((None, *tensor.shape[1:]), tf.as_dtype(tensor.dtype).name)
        ),
        structure,
    )


def _encoded(spec: _Spec) -> object:
    match spec:
        case dict():
            return {"keys": list(spec), "values": [_encoded(part) for part in spec.values()]}
        case list() | tuple():
            return [_encoded(part) for part in spec]
        case None:
            return None
    return {"shape": list(spec.shape), "dtype": spec.dtype}


def _decoded(code: Any) -> _Spec:
    match code:
        case {"keys": keys, "values": values}:
            return {key: _decoded(part) for key, part in zip(keys, values, strict=True)}
        case list():
            return [_decoded(part) for part in code]
        case None:
            return None
    return keras.KerasTensor(tuple(code["shape"]), code["dtype"])
