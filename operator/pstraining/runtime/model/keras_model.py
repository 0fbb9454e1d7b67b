"""The user's Keras model as a list of named tensors.

Tasks exchange trainable variables, and floating-point variables that training changes without a gradient (the
statistics of BatchNormalization). For the latter each worker sends its change, or in mode Async the target of
`updates.asynchronous.state`. Integer state and random seeds stay in each process, because workers should draw
different numbers; they are not part of a checkpoint.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Literal

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.trainer import model_supports_jit
from keras.src.utils import naming

from pstraining.runtime.model import overrides, own_state, partition
from pstraining.runtime.model.connections import Connections
from pstraining.runtime.model.embeddings.embedding import Embedding, Lookups, looking_up, remote_tables
from pstraining.runtime.model.errors import ModelError, refusing_errors, refusing_repeated_errors
from pstraining.runtime.model.identity import described
from pstraining.runtime.model.optimizers import loss_scale, optimizer, sparse_optimizer
from pstraining.runtime.model.tensor import (
    Batch,
    Constraint,
    KerasModel,
    KerasOptimizer,
    KerasVariable,
    Tensor,
    Variable,
)
from pstraining.runtime.model.training import normalization
from pstraining.runtime.model.training.objective import Objective
from pstraining.runtime.model.training.state_changes import Average, Writes, averages
from pstraining.runtime.model.training.training_step import TrainingStep

STATE: Final = "state"
"""The layout's group of variables that no optimizer touches."""
DTYPES: Final = ("float16", "float32", "float64")
"""Dtypes that a variable may have; mixed precision policies keep float32 variables."""


Touched = tuple[Tensor, Tensor]
"""Rows of a table: indices without repetition, int64[n], and their gradients, [n, width]."""
Fetch = Callable[[int, Tensor], Tensor]


class Model:
    """A built model, its variables by path in a fixed order, and its optimizer."""

    def __init__(
        self,
        build: Callable[[], KerasModel],
        make_optimizer: Callable[[], KerasOptimizer],
        objective: Objective,
        *,
        with_tables: bool = True,
        jit_compile: bool | Literal["auto"] = False,
    ) -> None:
        self.keras = _built(build, with_tables=with_tables)
        overrides.check_settings()
        layers = list(self.keras._flatten_layers())
        overrides.check_layers(layers)
        self.embeddings = [layer for layer in layers if isinstance(layer, Embedding)]
        if held := [layer.name for layer in self.embeddings if not layer.trainable]:
            raise ModelError(f"{held[0]}: a pstraining.runtime.Embedding cannot be frozen; use keras.layers.Embedding")
        local = {id(layer.embeddings) for layer in self.embeddings}
        self.trainable = [variable for variable in self.keras.trainable_variables if id(variable) not in local]
        with refusing_errors("the optimizer cannot be created"):
            given = _optimizer_of(make_optimizer())
        self.optimizer = loss_scale.inner(given)
        trained: list[KerasVariable | optimizer.TableVariable] = [*self.trainable, *map(_as_variable, self.embeddings)]
        self.optimizers, self._numbers = optimizer.assign(self.optimizer, trained)
        """The optimizers that train the model: those of a MultiOptimizer, or the program's only one."""
        with refusing_errors("the model cannot be compiled"):
            options = objective.options(given)
            overrides.check(self.keras, options, has_step=objective.train_step is not None)
            self.keras.compile(**options)
        self.scaling = loss_scale.settings_of(self.keras.optimizer)
        """Settings of loss scaling, which Keras's `compile` decides; None for none."""
        self.loss_scale = loss_scale.LossScale(self.scaling) if self.scaling else None
        """The scale of this process's next gradient."""
        self.step = TrainingStep(self.keras, objective.train_step, objective.class_weight)
        self._normalizing = normalization.adapted(layers)
        self._tracing = threading.RLock()  # while a worker trains, a thread traces steps on the other members
        self._is_traced = False  # whether the step was traced, so that an error of a later trace is about its batch
        self.carried = own_state.carried_states(layers)
        own = {id(variable) for variable in self.carried}
        untrained = [variable for variable in self.keras.non_trainable_variables if id(variable) not in own]
        others = [v for v in untrained if tf.as_dtype(v.dtype).is_floating]
        self.local = [*self.carried, *(v for v in untrained if not tf.as_dtype(v.dtype).is_floating)]
        """Variables that stay in this process, first `carried`: the states of stateful RNNs."""
        # A variable created as trainable that Keras does not train now is frozen; one created as untrainable is state.
        weights = {id(weight) for layer in layers for weight in layer._trainable_variables}
        self.frozen = [variable for variable in others if id(variable) in weights]
        state = [variable for variable in others if id(variable) not in weights]
        if odd := [v.path for v in self.trainable + others if str(v.dtype) not in DTYPES]:
            raise ModelError(f"the dtype of variables must be one of {', '.join(DTYPES)}: check {', '.join(odd)}")
        self.variables = self.trainable + state
        self._averages = averages(layers)
        self.writes: list[int | None] = [None] * len(state)
        """Number of assignments to each variable of state in the traced step; None if it is written in another way."""
        self._describe(trained, state, local)
        self.connections = Connections(self.keras, self.trained_by)
        self.jit_compile = self._wants_jit(jit_compile)
        """Whether XLA compiles the forward and backward pass."""
        self._identity = self._own_identity()
        self.other_local_steps: Variable = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        """What schedules add to the steps of a worker's own optimizer in this process; negative after some restores."""

    def _describe(
        self,
        trained: Sequence[KerasVariable | optimizer.TableVariable],
        state: Sequence[KerasVariable],
        local: set[int],
    ) -> None:
        """Describe the variables as tensors of the layout.

        Args:
            trained: the trained variables, and a stand-in for each table.
            state: variables that change without a gradient.
            local: identities of variables that are not in the layout.
        """
        numbered = list(zip(self._numbers, trained, strict=True))
        groups = [optimizer.group_of(self.optimizers, number, variable) for number, variable in numbered]
        trained_by = [self.optimizers[number] for number in self._numbers]
        held = [getattr(variable, "constraint", None) is not None for variable in trained]
        kinds = [
            (optimizer.is_whole(own) or constrained, optimizer.needs_only_norms(own) and not constrained)
            for own, constrained in zip(trained_by, held, strict=True)
        ]
        # Numbered in the model's order, which freezing does not change: a checkpoint fits before and after it.
        all_of_them = [variable for variable in self.keras.variables if id(variable) not in local]
        paths = {id(v): path for v, path in zip(all_of_them, _paths(all_of_them), strict=True)}

        def described_as(group: str, variable: KerasVariable, kind: tuple[bool, ...] = ()) -> partition.Tensor:
            shape = tuple(int(size) for size in variable.shape)
            return partition.Tensor(paths[id(variable)], shape, str(variable.dtype), group, *kind)

        dense = len(self.trainable)
        self.tensors = (
            *map(described_as, groups[:dense], self.trainable, kinds[:dense]),
            *(described_as(STATE, variable) for variable in state),
        )
        self.frozen_tensors = tuple(described_as(partition.FROZEN, variable) for variable in self.frozen)
        named = list(zip(_paths(self.embeddings), self.embeddings, strict=True))
        self.tables = tuple(
            partition.Tensor(path, _shape(own), str(own.variable_dtype), partition.TABLE, dynamic=own.is_dynamic)
            for path, own in named
        )
        """Embedding tables, in the order of `embeddings`."""
        self.row_initializers = [own.row_initializer(path) if own.is_dynamic else None for path, own in named]
        """The initializer of each table with rows by key; None for other tables."""
        self.row_policies = [own.row_policy for own in self.embeddings]
        """The row policy of each table; unused for tables with a fixed number of rows."""
        self.table_groups = groups[dense:]
        """The group of each table: its optimizer, and whether the optimizer decays the table."""
        for number in sorted(set(self._numbers[dense:])):
            optimizer.check_for_tables(self.optimizers[number])
        self.unshared = own_state.Unshared(list(self.keras._flatten_layers()), self.local)
        """Digests of what must begin with equal values on all tasks, such as an adapted vocabulary."""

    def _wants_jit(self, jit_compile: bool | Literal["auto"]) -> bool:
        if jit_compile is True and self.tables:
            raise ModelError("jit_compile: rows of Embedding tables are fetched during the pass; leave jit_compile out")
        return jit_compile is True or (jit_compile == "auto" and not self.tables and model_supports_jit(self.keras))

    @property
    def trained_by(self) -> dict[str, KerasOptimizer]:
        """Return the optimizer of each trained variable and table, by path."""
        trained = [*self.tensors[: len(self.trainable)], *self.tables]
        return {tensor.path: self.optimizers[number] for tensor, number in zip(trained, self._numbers, strict=True)}

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Return the constraint of each trained variable that has one, by path."""
        pairs = zip(self.tensors, self.trainable, strict=False)
        return {tensor.path: own.constraint for tensor, own in pairs if own.constraint is not None}

    def identity(self) -> str:
        """Return the optimizers and their settings as text, which must be equal on all tasks, as the layout must.

        Callbacks may change the learning rate on the chief, and do not change the text.
        """
        return self._identity

    def _own_identity(self) -> str:
        texts = [*map(_identity, self.optimizers)]
        if len(self.optimizers) > 1:
            texts += self.table_groups
        if self.scaling:
            texts.append(repr(self.scaling))
        if held := self.constraints:
            texts.append(repr(described(held)))
        texts += map(repr, self.unshared.digests.items())
        for initializer, policy in zip(self.row_initializers, self.row_policies, strict=True):
            texts += [] if initializer is None else [repr(initializer), repr(policy)]
        return "\n".join(texts)

    def values(self) -> dict[str, partition.Array]:
        """Return copies of the local values by path, including local tables."""
        return {path: np.array(variable.numpy()) for path, variable in self.by_path()}

    def by_path(self) -> list[tuple[str, KerasVariable]]:
        """Return the local variables and tables with their paths."""
        tensors, variables = (*self.tensors, *self.frozen_tensors), (*self.variables, *self.frozen)
        found: list[tuple[str, Any]] = [(one.path, own) for one, own in zip(tensors, variables, strict=True)]
        for table, layer in zip(self.tables, self.embeddings, strict=True):
            if layer.embeddings is not None:
                found.append((table.path, layer.embeddings))
            if layer.known is not None:
                found += [(partition.key_path(table.path), layer.known.keys), (table.path, layer.known.rows)]
        return found

    def assign(self, values: Iterable[tuple[str, partition.Array]]) -> None:
        """Set all local values, given by path, one at a time.

        Raises:
            KeyError: a value is missing.
        """
        variables = dict(self.by_path())
        for path, value in values:
            if path in variables:
                variables.pop(path).assign(value)
        if variables:
            raise KeyError(next(iter(variables)))
        normalization.refresh(self._normalizing)

    @property
    def is_linear(self) -> bool:
        """Return whether gradients are exactly linear in the loss: none is in float16."""
        return not any(layer.compute_dtype == "float16" for layer in self.keras._flatten_layers())

    def reseed(self, *, worker: int, step: int) -> None:
        """Give this worker separate random numbers; see `own_state.reseed`."""
        own_state.create_common_seed()
        own_state.reseed(own_state.seeds(self.keras._flatten_layers()), worker=worker, step=step)

    def continue_schedules(self, steps: int) -> None:
        """Let schedules of this worker's own optimizer continue after this number of the job's steps."""
        made = max(int(own._iterations.numpy()) for own in self.optimizers)
        self.other_local_steps.assign(tf.constant(steps - made, tf.int64))

    def restored_after_trials(self) -> list[KerasVariable]:
        """Return the variables of this process that a trial of a step must not change.

        With `localSteps` a trial changes the worker's own optimizer, and may change its loss scale.
        """
        scale = self.loss_scale.saved().values() if self.loss_scale else ()
        own = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        return [*self.local, *own_state.common_seed(), *own, *scale]

    def check_writes(self, trained: Sequence[int | None], frozen: Sequence[int | None]) -> None:
        """Refuse a step that writes weights.

        Args:
            trained: number of writes of each trained weight; None if it is written in another way.
            frozen: number of writes of each frozen weight; None if it is written in another way.

        Raises:
            ModelError: names the first written weight.
        """
        if own := [variable.path for variable, times in zip(self.trainable, trained, strict=True) if times != 0]:
            raise ModelError(
                f"{own[0]} is trained, and a layer assigns it in the training step, as SpectralNormalization does: "
                "only its gradients reach the parameter servers. Compute the changed weight in `call` without "
                "assigning it, or use a constraint, such as keras.constraints.UnitNorm"
            )
        changed = [variable.path for variable, times in zip(self.frozen, frozen, strict=True) if times != 0]
        if changed:
            raise ModelError(
                f"{changed[0]} is frozen (its layer's `trainable` is False), and the training step assigns it: workers "
                "fetch a frozen weight once. Create it with add_weight(trainable=False), so that it counts as state"
            )

    def is_average(self, variable: KerasVariable) -> bool:
        """Return whether each batch moves this variable as an average."""
        return id(variable) in self._averages

    def average(self, number: int) -> Average | None:
        """Return the moving average in which a batch changes this variable of state; None for other changes.

        The momentum is that of all assignments in a batch together. The step must have been traced.
        """
        found = self._averages.get(id(self.variables[len(self.trainable) + number]))
        writes = self.writes[number]
        return found._replace(momentum=found.momentum**writes) if found and writes else None

    def loss_and_gradients(
        self, batch: Batch, fetch: Fetch, *, share: float = 1.0, values: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Touched]]:
        """Emit one forward and backward pass on the local values; nothing is clipped.

        Args:
            batch: (x, y) or (x, y, sample_weight), as Keras takes them, or the input of the program's training step.
            fetch: emits rows of a table, from its number and indices without repetition. int64[n] to [n, width].
            share: factor of the loss for the gradients; the returned loss has no factor.
            values: inside a `keras.StatelessScope` its values of the trained variables, to which the gradients belong.
                None: the variables.

        Returns:
            The loss, a dense gradient for each trained variable, and for each table the touched rows.

        Raises:
            ModelError: the model, its loss, its metrics and the first batch do not fit together.
        """
        with self._tracing:
            written = Writes()
            with tf.GradientTape() as tape:
                tape.watch(values or ())
                lookups = Lookups(tape, lambda layer, indices: fetch(self.embeddings.index(layer), indices))
                failed = nullcontext() if self._is_traced else refusing_errors("the training step cannot be traced")
                with looking_up(lookups), normalization.from_variables(self._normalizing), failed:
                    loss = self.step.loss(batch)
            self._is_traced = True
            self.connections.check_used(written, self.step.counted)
            if values is None:
                self.writes = written.of(self.variables[len(self.trainable) :])
                self.check_writes(written.of(self.trainable), written.of(self.frozen))
        dense = [variable.value for variable in self.trainable] if values is None else values
        variables = [*dense] + [rows for _, _, rows in lookups.found]
        above = None if share == 1.0 else tf.constant(share, loss.dtype)
        scale = self.loss_scale.scale.read_value() if self.loss_scale else None
        if scale is not None:
            above = tf.cast(scale * share, loss.dtype)
        tensors = [(tensor.path, tensor.group) for tensor in self.tensors[: len(dense)]]
        gradients = self.connections.filled(tape.gradient(loss, variables, above), variables, tensors)
        if scale is not None:
            gradients = loss_scale.unscaled(gradients, scale)
        touched = []
        for number, layer in enumerate(self.embeddings):
            mine = [
                (indices, gradient)
                for (which, indices, _), gradient in zip(lookups.found, gradients[len(self.trainable) :], strict=True)
                if which is layer
            ]
            empty = (tf.zeros([0], tf.int64), tf.zeros([0, self.tables[number].shape[1]], self.tables[number].dtype))
            touched.append(sparse_optimizer.merged(mine) if len(mine) > 1 else (mine or [empty])[0])
        return loss, gradients[: len(self.trainable)], touched

    def clip(self, gradients: list[Tensor], touched: Sequence[Touched]) -> tuple[list[Tensor], list[Touched]]:
        """Emit clipping the gradients by norm, those of dense variables and of touched rows together."""
        clipped = optimizer.clip(self.optimizers, self._numbers, [*gradients, *(gradient for _, gradient in touched)])
        dense, rows = clipped[: len(gradients)], clipped[len(gradients) :]
        return dense, [(indices, gradient) for (indices, _), gradient in zip(touched, rows, strict=True)]


def _optimizer_of(given: KerasOptimizer) -> KerasOptimizer:
    """Return the program's optimizer; as in `compile`, its function may return a name or a config."""
    return keras.optimizers.get(given) if isinstance(given, str | dict) else given


def _identity(own: KerasOptimizer) -> str:
    config = {key: value for key, value in optimizer.settings(own).items() if key != "name"}
    return f"{type(own).__name__} {described(config)!r}"


def _as_variable(layer: Embedding) -> optimizer.TableVariable:
    """Return a stand-in for a table, for the optimizer's rules."""
    path = f"{layer.path}/{optimizer.TABLE_NAME}"
    return optimizer.TableVariable(path, _shape(layer), str(layer.variable_dtype), layer.tensorflow_name())


def _shape(layer: Embedding) -> tuple[int, int]:
    """Return the shape of a table in the layout, which has no rows by key."""
    return layer.input_dim or 0, layer.output_dim


def _built(build: Callable[[], KerasModel], *, with_tables: bool) -> KerasModel:
    """Return the program's model with its variables.

    Raises:
        ModelError: the function returned something else, or a model without variables, or fails in every run.
    """
    # Names are numbered per process; every task, and every rebuild in one process, must count from the start.
    naming.reset_uids()  # the public clear_session would also forget the dtype policy
    with nullcontext() if with_tables else remote_tables(), refusing_repeated_errors("the model cannot be built"):
        model = build()
    if not isinstance(model, keras.Model):
        raise ModelError(f"the model function returned {type(model).__name__}, not a keras.Model")
    if not model.built:
        raise ModelError("the model has no variables yet: start it with keras.Input, or call it once")
    built: KerasModel = model
    return built


def _paths(variables: Sequence[KerasVariable | Embedding]) -> list[str]:
    """Return unique paths: layers of subclassed models may share a name."""
    seen: dict[str, int] = {}
    paths = []
    for variable in variables:
        seen[variable.path] = seen.get(variable.path, 0) + 1
        paths.append(variable.path if seen[variable.path] == 1 else f"{variable.path}#{seen[variable.path]}")
    return paths
