"""Chooses the update mode from the job's settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pstraining.api.training import Mode
from pstraining.runtime.compression import wire_format
from pstraining.runtime.compression.push import PushCompressor
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.ps.shard import ServerHooks
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.asynchronous import updates as asynchronous
from pstraining.runtime.updates.asynchronous.overlap import OverlappedUpdates
from pstraining.runtime.updates.asynchronous.state import StateBlend
from pstraining.runtime.updates.asynchronous.updates import AsyncUpdates, AsyncWorker
from pstraining.runtime.updates.base import Identity, Updates
from pstraining.runtime.updates.gradients import GradientComputer
from pstraining.runtime.updates.hybrid import updates as hybrid
from pstraining.runtime.updates.hybrid.updates import HybridUpdates
from pstraining.runtime.updates.hybrid.worker import HybridWorker
from pstraining.runtime.updates.synchronous import updates as synchronous
from pstraining.runtime.updates.synchronous.accumulators import RoundConfig
from pstraining.runtime.updates.synchronous.updates import SyncUpdates, SyncWorker


@dataclass(frozen=True)
class UpdateFactory:
    """Creates both sides of an update mode."""

    hooks: ServerHooks
    """The servers' side."""
    make: Callable[[ParameterStore, Identity], Updates]
    """Creates the worker's side."""


def choose(
    training: TrainingSettings,
    *,
    workers: int,
    with_ledger: bool = False,
    paired: bool = False,
    count: Callable[[], int] | None = None,
) -> UpdateFactory:
    """Return the factory of the mode in the settings.

    Args:
        training: the job's settings.
        workers: number of workers of the job.
        with_ledger: whether the first server assigns splits of the data.
        paired: whether shards have standbys that apply the same updates.
        count: returns the present number of workers, which changes when the job is scaled; None: it does not.
    """
    name = _name(training) + (" with ledger" if with_ledger else "")
    moves, is_sync = training.local_steps > 1, training.mode is Mode.SYNC
    choices = wire_format.plan(training.compression, with_shadow=is_sync)

    def share() -> float:
        return 1.0 if is_sync else 1.0 / (count() if count else workers)

    def own_part(store: ParameterStore, blend: StateBlend | None = None) -> tuple[GradientComputer, PushCompressor]:
        # In mode Sync the servers average the workers' moves; in mode Async each worker scales its own.
        together = max(1, workers - training.backup_workers) if is_sync and not training.ordered_sums else 1
        targets = blend.targets if blend else None
        # A local optimizer clips by itself; in mode Sync the servers clip the mean.
        clips = not moves and not is_sync
        computer = GradientComputer(store, moves=moves, share=share, parts=together, clips=clips, state_targets=targets)
        feedback = training.compression.error_feedback
        return computer, PushCompressor(store, [fmt.push for fmt in choices], feedback=feedback)

    if training.mode is Mode.HYBRID:
        config = RoundConfig(workers=workers, dense=False)
        hooks = replace(hybrid.hooks(name, config, paired=paired), with_ledger=with_ledger)
        return UpdateFactory(
            hooks,
            lambda store, identity: HybridUpdates(
                HybridWorker(store, identity), store, GradientComputer(store), config=config
            ),
        )
    if not is_sync:
        bound = training.max_staleness
        hooks = asynchronous.hooks(name, with_ledger=with_ledger, bound=bound, paired=paired)

        def make_async(store: ParameterStore, identity: Identity) -> Updates:
            blend = StateBlend(store.model, count or (lambda: workers)) if workers > 1 else None
            computer, compressor = own_part(store, blend)
            worker = AsyncWorker(store, identity, choices)
            if training.overlap_communication:
                return OverlappedUpdates(worker, store, computer, compressor, bound=bound, blend=blend)
            return AsyncUpdates(worker, store, computer, compressor, moves=moves, bound=bound, blend=blend)

        return UpdateFactory(hooks, make_async)
    config = RoundConfig(
        workers=workers,
        backups=training.backup_workers,
        ordered=training.ordered_sums,
        moves=moves,
        pulls=tuple(fmt.pull for fmt in choices),
    )
    hooks = replace(synchronous.hooks(name, config, paired=paired), with_ledger=with_ledger)

    def make_sync(store: ParameterStore, identity: Identity) -> Updates:
        computer, compressor = own_part(store)
        return SyncUpdates(SyncWorker(store, identity, choices), store, computer, compressor, config=config)

    return UpdateFactory(hooks, make_sync)


def _name(training: TrainingSettings) -> str:
    """Return a text that must be equal on all tasks of a job: the servers' variables and messages depend on it."""
    return training.model_dump_json(include={"mode", "local_steps", "ordered_sums", "compression"})
