"""Variables that are local to each process: random seeds, integer state, and the states of stateful RNNs.

They are not part of a checkpoint. A restarted process has initial states of RNNs, and draws other random numbers.
Vocabularies, boundaries and integer weights must begin with equal values on all tasks, and after a restart: see
`Unshared`. Keras's settings are even local to each thread: see `with_settings`.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import KerasModel, KerasOptimizer, KerasVariable, Variable

SETTINGS: Final = ("dtype_policy", "flash_attention", "custom_objects_scope_dict", rng_utils.GLOBAL_RANDOM_SEED)
"""Names of Keras's settings that hold for one thread alone."""
LOOKUPS: Final = (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)
"""Layers with a vocabulary."""


def with_settings(run: Callable[[], None], *, draws: bool = False) -> Callable[[], None]:
    """Return a function that another thread runs with this thread's settings of Keras, such as the dtype policy.

    Args:
        run: the function.
        draws: whether functions that are traced there draw the numbers of this thread's common generator.
    """
    names = (*SETTINGS, seed_generator.GLOBAL_SEED_GENERATOR) if draws else SETTINGS
    found = {name: global_state.get_global_attribute(name) for name in names}

    def running() -> None:
        for name, value in found.items():
            global_state.set_global_attribute(name, value)
        run()

    return running


class BuiltModel(Protocol):
    """The objects that a program's functions have returned for one model."""

    keras: KerasModel
    optimizer: KerasOptimizer
    optimizers: list[KerasOptimizer]


def check_separate(model: BuiltModel, others: Iterable[BuiltModel]) -> None:
    """Refuse a model that has variables or an optimizer of another one in this process.

    Without a chief, worker 0 evaluates one model while it trains another one.

    Args:
        model: the model that was just built.
        others: the models that were built before.

    Raises:
        ModelError: names a variable or the optimizer, and the way out.
    """
    for other in others:
        theirs = {id(variable) for variable in other.keras.variables}
        if shared := [variable.path for variable in model.keras.variables if id(variable) in theirs]:
            raise ModelError(
                f"the model function returned {shared[0]} twice, but worker 0 of a job without a chief needs two "
                "models: create every layer in the function, and leave out functools.cache"
            )
        if {id(own) for own in model.optimizers} & {id(own) for own in other.optimizers}:
            raise ModelError(
                f"the optimizer function returned the same {type(model.optimizer).__name__} twice, but worker 0 of a "
                "job without a chief needs two: create it in the function, and leave out functools.cache"
            )


class Unshared:
    """Digests of what the model computes with, and tasks do not exchange.

    These are words that a layer has learnt or was given, factors of words (`tf_idf`), boundaries of `Discretization`,
    the numbers given to `Normalization` and `Rescaling`, and weights that are no floats. A vocabulary of a file is left
    out: it may be large, and does not depend on the task's data.

    Args:
        layers: all layers of the model.
        variables: variables that stay in this process.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer], variables: Iterable[KerasVariable]) -> None:
        self._vocabularies: dict[str, Callable[[], Sequence[object]]] = {}
        self.digests: dict[str, tuple[int, str]] = {}
        """Number of values and their digest, by the name of the layer or the path of the weight."""
        inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers}
        """Lookups of a TextVectorization, which stands for them."""
        for layer in layers:
            name = self._unused(layer.name)
            if numbers := _numbers(layer):
                self.digests[name] = _digest([f"{float(number):.6g}" for number in numbers])
            elif isinstance(layer, LOOKUPS) and id(layer) not in inner and not _is_of_file(layer):
                self._vocabularies[name] = layer.get_vocabulary
                self.digests[name] = _digest(layer.get_vocabulary())
                if (factors := getattr(getattr(layer, "_lookup_layer", layer), "idf_weights", None)) is not None:
                    texts = [f"{factor:.6g}" for factor in factors.numpy().tolist()]
                    self.digests[self._unused(f"{name}/idf_weights")] = _digest(texts)
        random = set(map(id, seeds(layers)))
        for own in variables:
            if id(own) not in random and not tf.as_dtype(own.dtype).is_floating:
                digest = hashlib.blake2b(own.numpy().tobytes(), digest_size=8).hexdigest()
                self.digests[self._unused(own.path)] = own.numpy().size, digest

    def differing(self, saved: Mapping[str, Sequence[object]]) -> list[str]:
        """Return the names whose values are not those of an earlier program; words may have been appended.

        Args:
            saved: the `digests` of the earlier program. Layers that this program lacks are ignored.
        """
        known = {name: tuple(digest) for name, digest in saved.items() if name in self.digests}
        return [name for name, digest in known.items() if digest not in (self.digests[name], self._first(name, digest))]

    def _first(self, name: str, saved: Sequence[object]) -> tuple[int, str] | None:
        size = saved[0]
        if name not in self._vocabularies or not isinstance(size, int) or size >= self.digests[name][0]:
            return None
        return _digest(self._vocabularies[name]()[:size])

    def _unused(self, name: str) -> str:
        """Return a name that is unique also if a nested model has a layer of the same name."""
        names = (f"{name} {number}" for number in itertools.count(2))
        return next(one for one in itertools.chain([name], names) if one not in self.digests)


def _numbers(layer: keras.layers.Layer) -> list[float]:
    """Return the numbers that a layer has learnt or was given, and which no variable of the model has."""
    if isinstance(layer, keras.layers.Discretization):
        return list(layer.bin_boundaries or ())
    if isinstance(layer, keras.layers.Rescaling):
        given = [layer.scale, layer.offset]
    elif isinstance(layer, keras.layers.Normalization) and layer.input_mean is not None:
        given = [layer.input_mean, layer.input_variance]
    else:
        return []
    return [number for values in given for number in np.ravel(np.asarray(values, np.float64)).tolist()]


def _is_of_file(layer: keras.layers.Layer) -> bool:
    return isinstance(getattr(layer, "_lookup_layer", layer).input_vocabulary, str)


def _digest(values: Sequence[object]) -> tuple[int, str]:
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        digest.update(f"{value}\0".encode(errors="backslashreplace"))
    return len(values), digest.hexdigest()


def carried_states(layers: Iterable[keras.layers.Layer]) -> list[KerasVariable]:
    """Return the states of RNNs with `stateful=True`: they belong to the samples that one worker reads."""
    rnns = [layer for layer in layers if isinstance(layer, keras.layers.RNN) and layer.stateful]
    return [state for layer in rnns for state in tf.nest.flatten(layer.states)]


def seeds(layers: Iterable[keras.layers.Layer]) -> list[KerasVariable]:
    """Return the states of all random generators, uint32[2] each: a seed, and the number of draws."""
    return [*(generator.state for layer in layers for generator in layer._seed_generators), *common_seed()]


def common_seed() -> list[KerasVariable]:
    """Return the state of the generator that `keras.random` uses without a seed, if there is one."""
    common = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return [common.state] if common else []


def create_common_seed() -> None:
    """Create the generator of `keras.random`, which the first draw, perhaps in a trial of a step, would create."""
    seed_generator.global_seed_generator()


def reseed(variables: Sequence[KerasVariable], *, worker: int, step: int) -> None:
    """Give a worker separate random numbers, which depend on the program's seed, the worker and the step only.

    Worker 0 of a new job draws the numbers of a single process with this seed.

    Args:
        variables: see `seeds`.
        worker: index of the worker.
        step: global step at which the process starts to train: a restarted process does not repeat numbers.
    """
    if (worker, step) == (0, 0):
        return
    for variable in variables:
        seed, draws = np.asarray(variable.numpy()).tolist()
        digest = hashlib.blake2b(repr((seed, worker, step)).encode(), digest_size=4).digest()
        variable.assign(np.array([int.from_bytes(digest, "big"), draws], np.uint32))


@contextmanager
def kept(variables: Sequence[KerasVariable]) -> Iterator[None]:
    """Restore the variables after the block, which tries a step."""
    before = [np.array(variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


class CarriedStates:
    """State in steps that may be repeated, as that of stateful RNNs: a batch changes it once, however often it runs."""

    def __init__(self, variables: Sequence[KerasVariable | Variable]) -> None:
        self._variables = variables
        self._before: list[Array] = []
        self._after: list[Array] | None = None

    def begin(self, *, again: bool) -> None:
        """Begin a step, with new batches, or again with those of the last step."""
        if again:
            self._after = self._values()
            for variable, value in zip(self._variables, self._before, strict=True):
                variable.assign(value)
        else:
            self._before, self._after = self._values(), None

    def applied(self) -> None:
        """End a step that is applied; if its repetition computed nothing, the states after the first try are kept."""
        if self._after is not None and all(map(np.array_equal, self._values(), self._before)):
            for variable, value in zip(self._variables, self._after, strict=True):
                variable.assign(value)
        self._after = None

    def _values(self) -> list[Array]:
        return [np.array(variable.numpy()) for variable in self._variables]
