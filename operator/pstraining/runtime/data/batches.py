"""A worker's batches: from its own dataset, or from splits that the ledger assigns."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers import data_adapters

from pstraining.runtime.data.ahead import on_device
from pstraining.runtime.data.sources import Source
from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.tensor import Batch, Dataset
from pstraining.runtime.ps.data_ledger import SplitPosition


class EndOfDataError(Exception):
    """All splits of all epochs have been assigned."""


class EndlessSplitError(FinalError, ValueError):
    """A split of assigned data that never ends."""


class NoBatchError(ValueError):
    """A data function that returns an empty dataset, or fewer batches of a split than before.

    Another run, or the other workers, may have a batch.
    """


class NoDataError(FinalError, NoBatchError):
    """A data function that has never returned a batch to worker 0, or returns none of a split."""


@dataclass(frozen=True)
class UpdateBatches:
    """Batches for one update."""

    batches: list[Batch]
    progress: SplitPosition | None = None
    """The worker's position in its split after the update; None: the data is not in the ledger."""


class DataError(FinalError, TypeError):
    """A data function that returns something else than batches."""


class Batches(Protocol):
    """Source of a worker's batches."""

    def draw(self, number: int) -> UpdateBatches:
        """Return at most `number` batches, and at least one.

        Raises:
            EndOfDataError: no batch is left.
            NoBatchError: the user's function returned an empty dataset.
        """

    def draw_ahead(self, number: int) -> UpdateBatches | None:
        """Draw before the last update is applied; return None if that needs a new split of the data.

        Raises:
            NoBatchError: see `draw`.
        """

    def sample(self, number: int) -> list[Batch]:
        """Return at most `number` batches for a trial of functions; drawing is not affected."""

    def reset(self) -> bool:
        """Handle the end of a session with an update of unknown outcome; return whether drawn batches are invalid."""

    def restart(self) -> None:
        """Draw from a new dataset from now on, if the dataset depends on the number of workers."""

    def close(self) -> None:
        """Release the open iterators."""


class DatasetBatches:
    """Endless batches of the user's dataset: it restarts when it ends.

    A dataset of TensorFlow is iterated again, as `fit` does: a seeded shuffle has another order in each pass, and
    `cache` keeps its contents. Other data is created again, because it may be exhausted.

    Args:
        make: creates the dataset.
        device: the worker's CPU.
        compute: the computing device, to which batches are copied; None for the CPU.
        worker: the worker's index. With more workers than files, worker 0 still has a part.
    """

    def __init__(
        self, make: Callable[[], Dataset], device: str, compute: str | None = None, *, worker: int = 0
    ) -> None:
        self._make, self._device, self._compute, self._worker = make, device, compute or device, worker
        self._has_had_batches = False
        self._dataset: tf.data.Dataset | None = None  # the one to iterate again
        self._iterator: Iterator[Batch] | None = None
        self._sampled: list[Batch] = []

    def draw(self, number: int) -> UpdateBatches:
        """Return the next batches."""
        found, self._sampled = self._sampled[:number], self._sampled[number:]
        return UpdateBatches([*found, *(self._next() for _ in range(number - len(found)))])

    def draw_ahead(self, number: int) -> UpdateBatches:
        """Return the next batches."""
        return self.draw(number)

    def sample(self, number: int) -> list[Batch]:
        """Return the first batches; `draw` returns them again."""
        self._sampled += [self._next() for _ in range(number - len(self._sampled))]
        return self._sampled[:number]

    def reset(self) -> bool:
        """Return False: a dataset has no position to return to."""
        return False

    def restart(self) -> None:
        """Leave the dataset: the next batch is the first one of a new dataset."""
        self._sampled = []
        self.close()

    def close(self) -> None:
        """Release the iterator and the dataset."""
        held: list[object] = [self._iterator, self._dataset]
        self._iterator = self._dataset = None
        _let_go(held)

    def _next(self) -> Batch:
        with tf.device(self._device):
            if self._iterator is not None:
                for batch in self._iterator:
                    return batch
            self._iterator = on_device(iter(self._of_next_pass()), self._compute, cpu=self._device)
            for batch in self._iterator:
                self._has_had_batches = True
                return batch
        kind = NoBatchError if self._worker or self._has_had_batches else NoDataError
        raise kind(
            "data: the function returned an empty dataset. Each worker must have a batch at each call: divide the data "
            "by samples, use fewer workers, and return no iterator twice. With drop_remainder=True, a worker must have "
            "the samples of a batch"
        )

    def _of_next_pass(self) -> Dataset:
        """Return the data of the next pass, and release the iterator of the last one."""
        dataset = self._dataset
        self.close()
        data = _checked(self._make()) if dataset is None else dataset
        self._dataset = data if isinstance(data, tf.data.Dataset) else None
        return data


class AssignedBatches:
    """Batches of the splits that the ledger assigns to this worker; an update's batches belong to one split.

    Args:
        source: the splits.
        assign: requests a split: its position and its number of trained batches, or None when there is none.
        device: the worker's CPU.
        compute: see `DatasetBatches`.
    """

    def __init__(
        self, source: Source, assign: Callable[[], tuple[int, int] | None], device: str, compute: str | None = None
    ) -> None:
        self._source, self._assign, self._device, self._compute = source, assign, device, compute or device
        self._split: _Split | None = None

    def draw(self, number: int) -> UpdateBatches:
        """Return the next batches of the current split."""
        if self._split is None or self._split.is_over:
            taken = self._assign()
            if taken is None:
                raise EndOfDataError
            self.close()
            with tf.device(self._device):
                self._split = _Split(*taken, self._open(taken[0]))
            if self._split.is_over:
                raise _nothing_left(*taken)
        with tf.device(self._device):
            return self._split.draw(number)

    def draw_ahead(self, number: int) -> UpdateBatches | None:
        """Return the next batches of the current split; None at its end."""
        if self._split is None or self._split.is_over:
            return None
        with tf.device(self._device):
            return self._split.draw(number)

    def sample(self, number: int) -> list[Batch]:
        """Return batches of the first split."""
        with tf.device(self._device):
            found = list(itertools.islice(self._open(0), number))
        if not found:
            raise _nothing_left(0, 0)
        return found

    def _open(self, position: int) -> Iterator[Batch]:
        return on_device(iter(_ending(self._source.open(position))), self._compute, cpu=self._device)

    def reset(self) -> bool:
        """Return True: the server knows the split and its progress."""
        self.close()
        return True

    def restart(self) -> None:
        """Do nothing: splits do not depend on the number of workers."""

    def close(self) -> None:
        """Release the current split."""
        held: list[object] = [self._split]
        self._split = None
        _let_go(held)


def check_batches(data: Dataset, argument: str) -> None:
    """Refuse what a function has returned if its elements are no batches.

    `iter` would also take arrays, whose elements are samples.

    Args:
        data: the returned object.
        argument: name of the `Trainer`'s argument with the function.

    Raises:
        DataError: names the type and the way out.
    """
    kind, arrays = type(data), (tuple, dict, np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    if isinstance(data, arrays) or hasattr(data, "iloc") or not hasattr(kind, "__iter__"):
        raise DataError(
            f"{argument}: the function returned {kind.__name__}; return a tf.data.Dataset of batches, such as "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(32)"
        )


def for_evaluation(data: Dataset) -> Dataset:
    """Return batches as Keras's `evaluate` accepts them: it takes a list for arrays, and refuses other iterables.

    Of a generator, it takes tuples alone; a worker also trains batches that are lists, and inputs without labels.
    """
    accepted = data_adapters.is_tf_dataset, data_adapters.is_torch_dataloader, data_adapters.is_grain_dataset
    if isinstance(data, keras.utils.PyDataset) or any(is_one(data) for is_one in accepted):
        return data
    return (
        batch if isinstance(batch, tuple) else tuple(batch) if isinstance(batch, list) else (batch,) for batch in data
    )


def first_batches(data: Dataset) -> list[Batch] | None:
    """Return the first two batches of a generator, or of an iterable that Keras reads as one; None for other data."""
    known = data_adapters.is_tf_dataset, data_adapters.is_torch_dataloader, data_adapters.is_grain_dataset
    if isinstance(data, keras.utils.PyDataset | Sequence) or any(is_one(data) for is_one in known):
        return None
    return list(itertools.islice(data, 2))


def types_of(data: Dataset) -> object:
    """Return the types of the batches that an evaluation will read; None if they are unknown.

    The first two batches of a PyDataset or a sequence are read, as Keras does. Nothing else is read.

    Raises:
        Exception: Keras refuses these batches, or the program cannot read them now.
    """
    if not isinstance(data, keras.utils.PyDataset | Sequence):
        return getattr(data, "element_spec", None)
    adapter = data_adapters.get_data_adapter(for_evaluation(data))
    found: object = adapter.get_tf_dataset().element_spec
    return found


def _checked(data: Dataset) -> Dataset:
    """Return what a data function has returned, if a worker can train it.

    Raises:
        DataError: names the type and the way out.
    """
    check_batches(data, "data")
    kind = type(data)
    for hook in ("on_epoch_begin", "on_epoch_end") if isinstance(data, keras.utils.PyDataset) else ():
        if getattr(kind, hook) is not getattr(keras.utils.PyDataset, hook):
            raise DataError(
                f"data: {kind.__name__}.{hook} would not be called, as a worker's data has no epochs: shuffle in "
                "__init__, which runs for each pass over the data, or return a tf.data.Dataset"
            )
    return data


def repeats_forever(data: Dataset) -> bool:
    """Return whether a `tf.data.Dataset` is known to be endless."""
    cardinality = getattr(data, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == tf.data.INFINITE_CARDINALITY


def is_empty(data: Dataset) -> bool:
    """Return whether data is known to have no batch, such as few samples with `drop_remainder`."""
    if isinstance(data, keras.utils.PyDataset):
        return bool(data.num_batches == 0)
    if isinstance(data, Sequence):
        return not data
    cardinality = getattr(data, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == 0


def _ending(split: Dataset) -> Dataset:
    """Return a split after a check that it is not known to be endless.

    Raises:
        EndlessSplitError: the split is endless.
    """
    if repeats_forever(_checked(split)):
        raise EndlessSplitError(
            "data: the dataset that `read` returns never ends (repeat() without a count), so no worker would be "
            "assigned a second split; leave out repeat(): epochs=... repeats all of the data"
        )
    return split


def _nothing_left(position: int, done: int) -> NoBatchError:
    """Return the error of a split without a batch to train, from its position and its number of trained batches."""
    if done == 0:
        return NoDataError(
            f"the data function returned an empty dataset for position {position}. Each file of Files, and each block "
            "of Ranges, must have a batch: leave out empty files. With drop_remainder=True, the last block must have "
            "the samples of a batch, too"
        )
    return NoBatchError(  # not final: a shuffle or filter without a seed may return enough the next time
        f"the data function returned at most {done} batches for position {position}, but more than {done} before. It "
        "must return the same batches each time. With another batch size, change the seed of Ranges or Files as well: "
        "the epoch that was not complete then starts again"
    )


def _let_go(held: list[object]) -> None:
    """Clear a list that holds a dataset's iterator, outside the training thread.

    The destructor waits until the iterator's tuner wakes up (tensorflow::data::model::Model::OptimizeLoop). Its periods
    grow with the iterator's age: measured 2.2 s at an age of 8 s, at most a minute.
    """
    if held[0] is not None:
        threading.Thread(target=held.clear, name="pstraining-data", daemon=True).start()


class _Split:
    """A split that is read one batch ahead, which identifies the last batch."""

    def __init__(self, position: int, done: int, batches: Iterator[Batch]) -> None:
        self._position, self._done, self._batches = position, 0, batches
        self._ahead = next(batches, None)
        while self._done < done and not self.is_over:
            self._advance()

    @property
    def is_over(self) -> bool:
        """Return whether every batch is drawn."""
        return self._ahead is None

    def draw(self, number: int) -> UpdateBatches:
        """Return the next batches and the progress after them."""
        found: list[Batch] = []
        while len(found) < number and not self.is_over:
            found.append(self._advance())
        return UpdateBatches(found, SplitPosition(self._position, self._done, self.is_over))

    def _advance(self) -> Batch:
        batch, self._ahead = self._ahead, next(self._batches, None)
        self._done += 1
        return batch
