"""The weights for evaluation and export, where they differ from the trained ones.

Schedule-Free AdamW trains y = (1 - beta_1) z + beta_1 x, and its result is the average x (Defazio et al., 2024,
arXiv:2405.15682). With `use_ema`, Keras's `fit` ends by replacing the weights by their averages. Pure; imports Keras
and NumPy, not the servers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from pstraining.runtime.checkpoint.state import State, StateParts
from pstraining.runtime.model.optimizers.optimizer import is_schedule_free
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasOptimizer
from pstraining.runtime.model.training.training_metrics import single
from pstraining.runtime.telemetry.events import event

NOT_ONE_NUMBER: Final = "their result is not one number"
"""Why metrics such as F1Score without `average` are left out of logs and results, in which each name has a number."""


def evaluation_weights(
    state: StateParts, trained_by: Mapping[str, KerasOptimizer], *, over: bool
) -> Iterator[tuple[str, Array]]:
    """Yield each variable's path and its value for evaluation.

    Args:
        state: the state of training.
        trained_by: each trained variable's optimizer, by path.
        over: whether training is over.
    """
    for path in [name.partition("/")[2] for name in state.entries if name.startswith("model/")]:
        optimizer = trained_by.get(path)
        if optimizer is not None and optimizer.use_ema and over:
            yield path, _read(state, f"slot/average/{path}")
        elif optimizer is not None and is_schedule_free(optimizer):
            value, base = _read(state, f"model/{path}"), _read(state, f"slot/momentum/{path}")
            yield path, _average(value, base, float(optimizer.beta_1))
        else:
            yield path, _read(state, f"model/{path}")


def with_weights(state: State, weights: dict[str, Array], trained_by: Mapping[str, KerasOptimizer]) -> State:
    """Return a copy of a state in which `evaluation_weights` finds the given weights.

    Args:
        state: the state of training.
        weights: values of variables, by path; rows by key are those of the state.
        trained_by: each trained variable's optimizer, by path.
    """
    slots = {slot: dict(values) for slot, values in state.slots.items()}
    for path, optimizer in trained_by.items():
        if is_schedule_free(optimizer):
            slots["momentum"][path] = weights[path]
        if optimizer.use_ema:
            slots["average"][path] = weights[path]
    return replace(state, variables=state.variables | weights, slots=slots)


def numbers(measured: Mapping[str, object], *, is_reported: bool = False) -> dict[str, float]:
    """Return the results of `evaluate` that are one number, and report the others unless they are reported."""
    found = {name: float(value.item()) for name, value in single(measured).items()}
    if (left_out := sorted(measured.keys() - found.keys())) and not is_reported:
        event("metrics_left_out", metrics=left_out, reason=NOT_ONE_NUMBER)
    return found


def _average(trained: Array, base: Array, beta: float) -> Array:
    """Return x from y and z; the division would amplify rounding in the parameters' own precision."""
    wide = trained.astype(np.float64)
    return ((wide - (1 - beta) * base) / beta).astype(trained.dtype)


def _read(state: StateParts, name: str) -> Array:
    entry = state.entries[name]
    return state.read(name, 0, entry.size).reshape(entry.shape)
