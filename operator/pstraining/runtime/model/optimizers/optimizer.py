"""The user's optimizer, cloned onto packed vectors or whole tensors.

An element-wise optimizer gives equal numbers on a packed vector and on its tensors. An optimizer that uses norms or
shapes of tensors would be silently wrong on a vector, so its clone has variables of their shapes. Its tensors are not
split, unless it only uses norms and the servers agree on them (`trust_ratio`). Unknown optimizers are refused.

A clone does not clip by norm: the mean of a round is clipped before it (`clipping`), and in mode Async each worker
clips its gradient. On large vectors TensorFlow's fused kernels replace Keras's composed arithmetic of the common
optimizers inside the clone. They take half the server's time, and their results are equal up to rounding. Schedules,
weight decay, averages and clipping by value remain Keras's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import keras
import tensorflow as tf

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.optimizers import weight_decay
from pstraining.runtime.model.partition import LARGE_BYTES
from pstraining.runtime.model.tensor import KerasOptimizer, KerasVariable, Operation, Tensor, UpdateStep

TABLE_NAME: Final = "embeddings"
"""Keras's name of an embedding layer's variable."""
ELEMENT_WISE: Final = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW",
)  # fmt: skip
"""Optimizers with measured equal results on packed vectors and on tensors."""
WHOLE: Final = ("Adafactor", "Lamb", "Muon")
"""Optimizers with measured equal results on whole tensors only."""
CONSTRAINED: Final = "constrained-"
"""Prefix in the group of variables that Keras projects after each step; they are whole."""


class OptimizerError(FinalError, ValueError):
    """An optimizer that cannot be applied on parameter servers."""


@dataclass(frozen=True)
class TableVariable:
    """A stand-in for an embedding table, with the path and the names that Keras's own layer gives the table."""

    path: str
    shape: tuple[int, int]
    dtype: str
    tensorflow_name: str
    name: str = TABLE_NAME

    @property
    def value(self) -> "TableVariable":
        """Return a stand-in for the TensorFlow variable."""
        return replace(self, name=self.tensorflow_name)

    @property
    def _unique_id(self) -> str:
        """Return the key under which Keras stores its decisions about a variable."""
        return self.path


def assign(
    optimizer: KerasOptimizer, variables: Sequence[KerasVariable | TableVariable]
) -> tuple[list[KerasOptimizer], list[int]]:
    """Return the optimizers that train a model, and for each variable the number of its optimizer.

    A MultiOptimizer's optimizers keep their order; any other optimizer trains all variables.

    Raises:
        OptimizerError: an optimizer is not known to work on parameter servers, or a variable matches two patterns.
    """
    if type(optimizer) is not getattr(keras.optimizers, "MultiOptimizer", None):
        check(optimizer)
        return [optimizer], [0] * len(variables)
    found = optimizer._inner_optimizers  # Keras also adds those of a function here, and callbacks read them
    numbers = []
    for variable in variables:
        try:
            own = optimizer._optimizer_map(variable)
        except ValueError as error:
            raise OptimizerError(f"MultiOptimizer: {error}") from error
        if all(own is not other for other in found):
            found.append(own)
        numbers.append(next(number for number, other in enumerate(found) if other is own))
    if optimizer.loss_scale_factor is not None:
        raise OptimizerError("loss_scale_factor is not supported")
    for own in found:
        check(own)
    return list(found), numbers


def check(optimizer: KerasOptimizer) -> None:
    """Refuse an optimizer that is not known to give Keras's results on parameter servers.

    Raises:
        OptimizerError: the optimizer or one of its settings is not supported; the message names an alternative.
    """
    if not _is_one_of(optimizer, (*ELEMENT_WISE, *WHOLE)):
        raise OptimizerError(
            f"{type(optimizer).__name__} is not known to give equal results on parameter servers, where parameters are "
            f"divided; use one of {', '.join(sorted((*ELEMENT_WISE, *WHOLE)))}, or a MultiOptimizer of them"
        )
    rate = getattr(optimizer, "_learning_rate", None)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if callable(rate) and not is_schedule and not isinstance(rate, keras.Variable):
        raise OptimizerError("the learning rate must be a number or a LearningRateSchedule")
    if is_schedule and (held := _variables_of(rate)):
        raise OptimizerError(
            f"{type(rate).__name__}.{held[0]} is a variable, and parameter servers would not see it change: compute "
            "the schedule from the step, or set a number from the callback LearningRateScheduler"
        )
    if optimizer.loss_scale_factor is not None:
        raise OptimizerError("loss_scale_factor is not supported")
    if made := int(optimizer._iterations.numpy()):
        raise OptimizerError(
            f"{type(optimizer).__name__} has made {made} steps before, but parameter servers would start without its "
            "state: return a new optimizer. The job's own checkpoints contain the optimizer's state; a custom schedule "
            "can start at another step"
        )
    if optimizer.gradient_accumulation_steps and (optimizer.clipnorm or optimizer.global_clipnorm):
        raise OptimizerError(
            "clipnorm and global_clipnorm cannot be used with gradient_accumulation_steps: Keras clips the accumulated "
            "gradient, but parameter servers clip each step; use spec.training.accumulationSteps"
        )


def _variables_of(schedule: object) -> list[str]:
    return [name for name, value in vars(schedule).items() if isinstance(value, tf.Variable | keras.Variable)]


def check_for_tables(optimizer: KerasOptimizer) -> None:
    """Refuse an optimizer that cannot update single rows of a table.

    Raises:
        OptimizerError: names the setting that prevents it.
    """
    if isinstance(optimizer, keras.optimizers.Nadam) or is_schedule_free(optimizer) or is_whole(optimizer):
        raise OptimizerError(
            f"{type(optimizer).__name__} cannot train embedding tables by rows; use another optimizer, or a "
            "MultiOptimizer with another one for the tables"
        )
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        raise OptimizerError(
            "use_ema and gradient_accumulation_steps cannot be used with embedding tables; "
            "spec.training.accumulationSteps accumulates on the workers"
        )


def check_for_local_steps(optimizer: KerasOptimizer) -> None:
    """Refuse an optimizer whose slots on the workers would belong to other parameters than the servers'.

    Raises:
        OptimizerError: names the optimizer.
    """
    if is_schedule_free(optimizer):
        raise OptimizerError(
            "spec.training.localSteps: ScheduleFreeAdamW keeps a second copy of the parameters, which workers would "
            "not exchange; use accumulationSteps, or another optimizer"
        )


def is_schedule_free(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer is Schedule-Free AdamW, which Keras has since 3.15."""
    return _is_one_of(optimizer, ("ScheduleFreeAdamW",))


def is_whole(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer needs whole tensors, such as for their norms or shapes."""
    return _is_one_of(optimizer, WHOLE)


def needs_only_norms(optimizer: KerasOptimizer) -> bool:
    """Return whether an optimizer uses nothing of a whole tensor except the norms of the variable and of its update.

    Servers agree on norms once per step. The update of a gradient that is clipped by norm is known only afterwards.
    """
    return _is_one_of(optimizer, ("Lamb",)) and not (optimizer.clipnorm or optimizer.global_clipnorm)


def _is_one_of(optimizer: KerasOptimizer, names: Sequence[str]) -> bool:
    """Return whether an optimizer is an instance of one of Keras's classes; an older Keras may lack some."""
    return any(type(optimizer) is getattr(keras.optimizers, name, None) for name in names)


def group_of(optimizers: Sequence[KerasOptimizer], number: int, variable: KerasVariable | TableVariable) -> str:
    """Return the layout's group of a trainable variable.

    The group states the optimizer's number, whether it decays the variable, and whether the variable has a constraint.
    """
    kind = weight_decay.kind(optimizers[number], variable)
    if getattr(variable, "constraint", None) is not None:
        kind = CONSTRAINED + kind
    return f"{number}/{kind}" if len(optimizers) > 1 else kind


def number_of(group: str) -> int:
    """Return the number of a group's optimizer; 0 if the program has only one."""
    return int(group.rpartition("/")[0] or 0)


def places(groups: Sequence[str]) -> dict[int, list[int]]:
    """Return the indices of each optimizer's groups in `groups`, ascending, by the optimizer's number."""
    found: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        found.setdefault(number_of(group), []).append(place)
    return dict(sorted(found.items()))


def is_decayed(group: str) -> bool:
    """Return whether its optimizer decays a group."""
    return group.rpartition("/")[2].removeprefix(CONSTRAINED) == "decayed"


def clip(optimizers: Sequence[KerasOptimizer], numbers: Sequence[int], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients clipped by norm, separately for each optimizer; the server clips by value.

    Args:
        optimizers: the program's optimizers.
        numbers: the number of each gradient's optimizer.
        gradients: the gradients, in the order of `numbers`.
    """
    clipped = list(gradients)
    for number, optimizer in enumerate(optimizers):
        places = [place for place, own in enumerate(numbers) if own == number]
        if places and optimizer.clipvalue is None:
            found = optimizer._clip_gradients([gradients[place] for place in places])
            for place, gradient in zip(places, found, strict=True):
                clipped[place] = gradient
    return clipped


def settings(optimizer: KerasOptimizer) -> dict[str, Any]:
    """Return the arguments that create an equal optimizer.

    A schedule is returned unchanged: a custom schedule need not have a config, and clones can share it because it has
    no state.
    """
    own = vars(optimizer)
    rate = own["_learning_rate"]
    own["_learning_rate"] = None  # past Keras's tracking of attributes: get_config would serialize the schedule
    try:
        config = optimizer.get_config()
    finally:
        own["_learning_rate"] = rate
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return {**config, "learning_rate": rate if is_schedule else float(rate.numpy())}


def rate_names(optimizers: Sequence[KerasOptimizer]) -> list[str]:
    """Return the names of the optimizers' learning rates in logs: learning_rate, or learning_rate_<optimizer's name>.

    If optimizers share a name, a number is appended to the name of each one except the first.
    """
    if len(optimizers) == 1:
        return ["learning_rate"]
    names = [optimizer.name for optimizer in optimizers]
    return [
        f"learning_rate_{name}" + (f"_{number}" if name in names[:number] else "") for number, name in enumerate(names)
    ]


def clone(
    optimizer: KerasOptimizer, variables: Sequence[KerasVariable], groups: Sequence[str], *, fused: bool = True
) -> KerasOptimizer:
    """Return a copy of the optimizer, built on vectors with these groups; call it inside `variables_on` for a server.

    With `fused`, TensorFlow's kernels replace Keras's composed arithmetic on large vectors, where both are equal.
    """
    config = settings(optimizer)
    config["clipnorm"] = config["global_clipnorm"] = None
    copy: KerasOptimizer = type(optimizer).from_config(config)
    undecayed = [vector for vector, group in zip(variables, groups, strict=True) if not is_decayed(group)]
    if undecayed and weight_decay.is_used(copy):
        copy.exclude_from_weight_decay(var_list=undecayed)
    _build(copy, variables)
    kernel, composed = _fused(copy) if fused else None, copy.update_step
    if kernel is not None:

        def update_step(gradient: Tensor, variable: "keras.Variable", learning_rate: Tensor) -> Operation:
            large = variable.shape.num_elements() * variable.dtype.size >= LARGE_BYTES
            return (kernel if large else composed)(gradient, variable, learning_rate)

        copy.update_step = update_step
    return copy


def _build(copy: KerasOptimizer, variables: Sequence[KerasVariable]) -> None:
    """Create the slots.

    Keras's Schedule-Free AdamW also copies the parameters, which a server's variables do not have yet; see
    `starts_as_parameters`.
    """
    if not is_schedule_free(copy):
        copy.build(variables)
        return
    keras.optimizers.Optimizer.build(copy, variables)
    copy._momentums, copy._velocities = copy.add_optimizer_variables(variables, ["momentum", "velocity"])


def starts_as_parameters(copy: KerasOptimizer, slot: str) -> bool:
    """Return whether a slot's initial value is a copy of the parameters."""
    return is_schedule_free(copy) and slot == "momentum"


def state_of(
    copy: KerasOptimizer, variables: Sequence[KerasVariable]
) -> tuple[dict[tuple[str, int], Any], dict[str, Any]]:
    """Return a clone's state: slots by name and index of their variable, and scalars by name.

    The learning rate is left out, because a restore resets it to the program's.

    Args:
        copy: the clone.
        variables: the variables that the clone trains, in its order.
    """
    slots: dict[tuple[str, int], Any] = {}  # a `PSVariable` on a server
    own = _attribute_names(copy, len(variables))
    prefixes = [f"{variable.path.replace('/', '_')}_" for variable in variables]
    scalars: dict[str, Any] = {}
    for variable in copy.variables:
        if id(variable) in own:
            attribute, place = own[id(variable)]
            # Keras names most slots behind their variable's path, and Adafactor's factors like the variable.
            name = variable.name.removeprefix(prefixes[place])
            slots[attribute.strip("_") if name == variable.name else name, place] = variable.value
        elif variable is not getattr(copy, "_learning_rate", None):
            scalars[f"counter{len(scalars)}"] = variable.value  # Keras numbers names by process; the order is fixed
    return slots, scalars


def _attribute_names(copy: KerasOptimizer, number: int) -> dict[int, tuple[str, int]]:
    """Return, by each slot's id, the attribute whose list holds the slot, and the slot's index in the list."""
    lists = {
        name: value
        for name, value in vars(copy).items()
        if isinstance(value, list) and len(value) == number and name != "_variables"
    }
    return {id(slot): (name, place) for name, value in lists.items() for place, slot in enumerate(value)}


def _fused(optimizer: KerasOptimizer) -> UpdateStep | None:
    """Return TensorFlow's kernel that is equal to the optimizer's arithmetic; None if there is none."""
    if isinstance(optimizer, keras.optimizers.SGD):
        return _fused_momentum(optimizer) if optimizer.momentum else _fused_descent()
    if isinstance(optimizer, keras.optimizers.Adam) and not optimizer.amsgrad:
        return _fused_adam(optimizer)
    # TensorFlow's Adagrad adds epsilon outside the root, Keras inside: not equal.
    return None


def _fused_descent() -> UpdateStep:
    def update_step(gradient: Tensor, variable: "keras.Variable", learning_rate: Tensor) -> Operation:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=tf.cast(learning_rate, variable.dtype),
            delta=tf.cast(gradient, variable.dtype),
            use_locking=True,
        )

    return update_step


def _fused_momentum(optimizer: "keras.optimizers.SGD") -> UpdateStep:
    def update_step(gradient: Tensor, variable: "keras.Variable", learning_rate: Tensor) -> Operation:
        accumulator = optimizer.momentums[optimizer._get_variable_index(variable)]
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=accumulator.value.handle,
            lr=tf.cast(learning_rate, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_locking=True,
            use_nesterov=optimizer.nesterov,
        )

    return update_step


def _fused_adam(optimizer: "keras.optimizers.Adam") -> UpdateStep:
    def update_step(gradient: Tensor, variable: "keras.Variable", learning_rate: Tensor) -> Operation:
        dtype = variable.dtype
        index = optimizer._get_variable_index(variable)
        beta_1, beta_2 = tf.cast(optimizer.beta_1, dtype), tf.cast(optimizer.beta_2, dtype)
        time = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=optimizer._momentums[index].value.handle,
            v=optimizer._velocities[index].value.handle,
            beta1_power=tf.pow(beta_1, time),
            beta2_power=tf.pow(beta_2, time),
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(optimizer.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
            use_locking=True,
        )

    return update_step
