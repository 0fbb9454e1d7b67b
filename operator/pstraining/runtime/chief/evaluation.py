"""The weights with which a model is evaluated and exported, where the optimizer trains other ones.

Schedule-Free AdamW trains y = (1 - beta_1) z + beta_1 x, and its result is the average x (Defazio et al., 2024,
arXiv:2405.15682). With `use_ema`, Keras's `fit` ends by replacing the weights by their averages. Pure; knows Keras and
numpy, not the servers.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.model.optimizer import is_schedule_free
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasOptimizer


def evaluation_weights(state: State, trained_by: Mapping[str, KerasOptimizer], *, over: bool) -> dict[str, Array]:
    """Return the variables' values for evaluation, by path.

    Args:
        state: the state of training.
        trained_by: each trained variable's optimizer, by path.
        over: whether training is over.
    """
    values = dict(state.variables)
    for path, optimizer in trained_by.items():
        if is_schedule_free(optimizer):
            values[path] = _average(values[path], state.slots["momentum"][path], float(optimizer.beta_1))
        if optimizer.use_ema and over:
            values[path] = state.slots["average"][path]
    return values


def with_weights(state: State, weights: dict[str, Array], trained_by: Mapping[str, KerasOptimizer]) -> State:
    """Return a state whose weights for evaluation are these, by path.

    Args:
        state: the state of training.
        weights: values of all variables.
        trained_by: each trained variable's optimizer, by path.
    """
    slots = {slot: dict(values) for slot, values in state.slots.items()}
    for path, optimizer in trained_by.items():
        if is_schedule_free(optimizer):
            slots["momentum"][path] = weights[path]
        if optimizer.use_ema:
            slots["average"][path] = weights[path]
    return replace(state, variables=weights, slots=slots)


def _average(trained: Array, base: Array, beta: float) -> Array:
    """Return x from y and z; the division would amplify rounding in the parameters' own precision."""
    wide = trained.astype(np.float64)
    return ((wide - (1 - beta) * base) / beta).astype(trained.dtype)
