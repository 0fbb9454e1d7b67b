"""Types for the used parts of TensorFlow and Keras, which mypy does not check. Imports neither."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

Tensor = Any
"""A `tf.Tensor`."""
Operation = Any
"""A `tf.Operation`, or a tensor that stands for it: a control dependency of later operations."""
DType = Any
"""A `tf.DType`, or its name."""
Shape = Any
"""A `tf.TensorShape`, or a list of lengths."""
Structure = TypeVar("Structure")
"""A tensor, or a structure of tensors."""
Fetched = Any
"""A structure of numpy arrays: the result of a traced function."""
Batch = object
"""A batch of the program's dataset, any structure of tensors; only the training step knows which."""
Dataset = Iterable[Batch]
"""A `tf.data.Dataset` of batches."""


class TracedFunction(Protocol):
    """The used part of a `tf.function`."""

    def __call__(self, *arguments: object) -> Tensor:
        """Trace the function if it is new for such arguments, and run it."""

    def get_concrete_function(self, *arguments: object) -> object:
        """Trace the function for such arguments without running it."""


class Variable(Protocol):
    """The used part of a `tf.Variable`."""

    name: str
    dtype: DType
    shape: Shape
    device: str
    handle: Tensor
    _unique_id: str

    def read_value(self) -> Tensor:
        """Emit reading the value."""

    def assign(self, value: Tensor, *, read_value: bool = True) -> Operation:
        """Emit replacing the value."""

    def assign_add(self, delta: Tensor, *, read_value: bool = True) -> Operation:
        """Emit adding to the value."""

    def numpy(self) -> Tensor:
        """Return the value as a numpy array."""


class KerasVariable(Protocol):
    """The used part of a `keras.Variable`."""

    name: str
    path: str
    dtype: str
    shape: Shape
    value: Variable
    _value: Variable
    """The variable also where Keras replaces `value` by a tensor, for each of several devices."""
    aggregation: str
    constraint: "Constraint | None"
    _path: str

    def assign(self, value: object) -> Operation:
        """Replace the value."""

    def numpy(self) -> Tensor:
        """Return the value as a numpy array."""


Constraint = Callable[[Tensor], Tensor]
"""A `keras.constraints.Constraint`: projects a variable of its tensor's shape after a step."""
UpdateStep = Callable[[Tensor, Any, Tensor], Operation]
"""An optimizer's arithmetic for one variable: gradient, variable and learning rate."""


class KerasOptimizer(Protocol):
    """The used part of a `keras.optimizers.Optimizer`."""

    built: bool
    name: str
    variables: Sequence[KerasVariable]
    iterations: KerasVariable
    learning_rate: Tensor
    clipvalue: float | None
    clipnorm: float | None
    global_clipnorm: float | None
    weight_decay: float | None
    use_ema: bool
    gradient_accumulation_steps: int | None
    loss_scale_factor: float | None
    update_step: UpdateStep
    _iterations: KerasVariable
    _learning_rate: Any
    beta_1: float
    """Only in Adam and its variants."""
    beta_2: float
    epsilon: float
    _momentums: Sequence[KerasVariable]
    _velocities: Sequence[KerasVariable]
    _accumulated_gradients: Sequence[KerasVariable]
    """Only with `gradient_accumulation_steps`."""
    _inner_optimizers: "list[KerasOptimizer]"
    """Only in a MultiOptimizer."""
    _optimizer_map: Callable[[object], "KerasOptimizer"]
    """Only in a MultiOptimizer."""

    @classmethod
    def from_config(cls, config: dict[str, Tensor]) -> "KerasOptimizer":
        """Return an optimizer with these settings."""

    def get_config(self) -> dict[str, Tensor]:
        """Return the settings by name."""

    def build(self, variables: Sequence[KerasVariable]) -> None:
        """Create the slots for these variables."""

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[KerasVariable]) -> None:
        """Emit one step."""

    def add_optimizer_variables(
        self, trainable_variables: Sequence[KerasVariable], name: Sequence[str]
    ) -> Sequence[Sequence[KerasVariable]]:
        """Create slots of these names."""

    def assign(self, variable: KerasVariable, value: Tensor) -> Operation:
        """Emit replacing a variable's value."""

    def assign_sub(self, variable: KerasVariable, value: Tensor) -> Operation:
        """Emit subtracting from a variable."""

    def exclude_from_weight_decay(self, *, var_list: Sequence[KerasVariable]) -> None:
        """Never decay these variables."""

    def _apply_weight_decay(self, variables: Sequence[KerasVariable]) -> None: ...

    def _use_weight_decay(self, variable: object) -> bool: ...

    def _clip_gradients(self, grads: Sequence[Tensor]) -> Iterable[Tensor]: ...

    def _get_current_learning_rate(self) -> Tensor: ...

    def _get_variable_index(self, variable: object) -> int: ...


class KerasLayer(Protocol):
    """The used part of a `keras.layers.Layer`."""

    compute_dtype: str
    _trainable_variables: Sequence[KerasVariable]


class KerasMetric(Protocol):
    """The used part of a `keras.metrics.Metric`."""

    name: str
    variables: Sequence[KerasVariable]

    def reset_state(self) -> None:
        """Reset the state to that before the first batch."""


class KerasModel(Protocol):
    """The used part of a `keras.Model`."""

    metrics: Sequence[KerasMetric]
    _compile_loss: Any
    _compile_metrics: Any
    _loss_tracker: KerasMetric
    _call_has_training_arg: bool
    loss: object
    """The losses as given to `compile`."""
    built: bool
    optimizer: KerasOptimizer
    variables: Sequence[KerasVariable]
    metrics_variables: Sequence[KerasVariable]
    trainable_variables: Sequence[KerasVariable]
    non_trainable_variables: Sequence[KerasVariable]
    stop_training: bool

    def __call__(self, inputs: Tensor, *, training: bool | None = None) -> Tensor:
        """Emit the forward pass."""

    def compile(self, **options: object) -> None:
        """Set optimizer, loss and metrics."""

    def _compute_loss(self, **values: Tensor) -> Tensor:
        """Emit the loss, with regularization."""

    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Tensor) -> dict[str, Tensor]:
        """Emit updating the metrics; return their results."""

    def test_step(self, data: Batch) -> dict[str, Tensor]:
        """Emit the evaluation of a batch; return the results so far."""

    def get_metrics_result(self) -> dict[str, Tensor]:
        """Emit the metrics' results by name."""

    def evaluate(self, data: Dataset, **options: object) -> dict[str, Tensor]:
        """Return loss and metrics by name; call it with `return_dict=True`."""

    def save_weights(self, path: object) -> None:
        """Write the weights to a file."""

    def _flatten_layers(self) -> Iterable[KerasLayer]: ...
