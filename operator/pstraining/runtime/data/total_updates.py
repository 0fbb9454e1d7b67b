"""The number of updates in a job, for learning-rate schedules. Pure; imports no TensorFlow."""

import math

from pstraining.api.training import Mode
from pstraining.runtime.config.arguments import count
from pstraining.runtime.config.settings import SettingsError, TrainingSettings
from pstraining.runtime.data.epochs import by_steps
from pstraining.runtime.data.sources import Ranges, Source


def total_updates(
    training: TrainingSettings,
    workers: int,
    source: Source | None,
    *,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
    drop_remainder: bool = False,
) -> int:
    """Return the number of times that the optimizer is applied in the job, which its schedule counts.

    With `localSteps`, each worker has its own optimizer, and the number is that of its steps.

    Args:
        training: the job's settings.
        workers: number of workers.
        source: the assigned data; None for a function of (worker, workers).
        steps_per_epoch: updates in an epoch of data that is not assigned.
        batch_size: samples in a batch of assigned data.
        samples: samples in all `Files`, which are assumed to have equal sizes.
        drop_remainder: whether a split has no batch with fewer samples.

    Raises:
        SettingsError: the number does not follow from the settings; the message names what is missing.
    """
    for name, number in {"batch_size": batch_size, "samples": samples}.items():
        if number is not None:
            count(f"total_updates: {name}", number)
    steps, _ = by_steps(training.steps, training.epochs if source is None else None, steps_per_epoch)
    limits = [] if steps is None else [steps]
    if source is not None and training.epochs is not None:
        in_splits = _batches(source, batch_size, samples, whole=drop_remainder)
        limits.append(_of_data(training, workers, in_splits))
    if not limits:
        raise SettingsError("total_updates: give steps, or epochs and steps_per_epoch")
    return training.optimizer_steps(min(limits), workers)


def _of_data(training: TrainingSettings, workers: int, batches: list[int]) -> int:
    """Return the updates in all epochs, from the batches in each split; an update's batches are of one split."""
    updates = sum(math.ceil(number / training.batches_per_update) for number in batches)
    together = 1 if training.mode is Mode.ASYNC else max(1, workers - training.backup_workers)
    return math.ceil((training.epochs or 1) * updates / together)


def _batches(source: Source, batch_size: int | None, samples: int | None, *, whole: bool) -> list[int]:
    """Return the number of batches, or of `whole` ones, in each split."""
    if batch_size is None:
        raise SettingsError("total_updates: give batch_size, the samples in a batch of Ranges or Files")
    if isinstance(source, Ranges):
        sizes = [min(source.block, source.size - first) for first in range(0, source.size, source.block)]
    elif samples is None:
        raise SettingsError("total_updates: give samples, the number of samples in all Files")
    else:
        sizes = [math.ceil(samples / source.count)] * source.count
    return [size // batch_size if whole else math.ceil(size / batch_size) for size in sizes]
