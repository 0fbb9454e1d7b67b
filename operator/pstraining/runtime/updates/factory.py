"""Ways to bring workers' gradients into the parameters, one a module."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pstraining.api.training import Mode as UpdateMode
from pstraining.runtime.compression import wire_format
from pstraining.runtime.compression.push import PushCompressor
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.ps.shard import ServerHooks
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.asynchronous import updates as asynchronous
from pstraining.runtime.updates.asynchronous.updates import AsyncUpdates
from pstraining.runtime.updates.base import Identity, Updates
from pstraining.runtime.updates.gradients import GradientComputer
from pstraining.runtime.updates.hybrid import updates as hybrid
from pstraining.runtime.updates.hybrid.updates import HybridUpdates
from pstraining.runtime.updates.synchronous import updates as synchronous
from pstraining.runtime.updates.synchronous.accumulators import RoundConfig
from pstraining.runtime.updates.synchronous.updates import SyncUpdates


@dataclass(frozen=True)
class Mode:
    """An update mode: what it wants of the servers, and the worker's side of it."""

    hooks: ServerHooks
    make: Callable[[ParameterStore, Identity], Updates]


def choose(training: TrainingSettings, *, workers: int, with_ledger: bool = False, paired: bool = False) -> Mode:
    """The mode that the settings ask for, in a job of so many workers.

    Args:
        training: the settings.
        workers: of the job.
        with_ledger: the first server hands data out.
        paired: every shard has standbys that get the same updates.
    """
    name = _name(training) + (" with ledger" if with_ledger else "")
    moves, is_sync = training.local_steps > 1, training.mode is UpdateMode.SYNC
    choices = wire_format.plan(training.compression, with_shadow=is_sync)

    def own_part(store: ParameterStore) -> tuple[GradientComputer, PushCompressor]:
        # In the mode Sync the servers take the mean of the workers' moves; else each adds its share.
        together = max(1, workers - training.backup_workers) if is_sync and not training.ordered_sums else 1
        computer = GradientComputer(store, moves=moves, share=1.0 if is_sync else 1.0 / workers, parts=together)
        feedback = training.compression.error_feedback
        return computer, PushCompressor(store, [fmt.push for fmt in choices], feedback=feedback)

    if training.mode is UpdateMode.HYBRID:
        around = RoundConfig(workers=workers, dense=False)
        hooks = replace(hybrid.hooks(name, around, paired=paired), with_ledger=with_ledger)
        return Mode(hooks, lambda store, identity: HybridUpdates(store, identity, around, GradientComputer(store)))
    if not is_sync:
        bound = training.max_staleness
        hooks = asynchronous.hooks(name, with_ledger=with_ledger, bound=bound, paired=paired)
        return Mode(
            hooks,
            lambda store, identity: AsyncUpdates(store, identity, choices, *own_part(store), moves=moves, bound=bound),
        )
    config = RoundConfig(
        workers=workers,
        backups=training.backup_workers,
        ordered=training.ordered_sums,
        moves=moves,
        pulls=tuple(fmt.pull for fmt in choices),
    )
    hooks = replace(synchronous.hooks(name, config, paired=paired), with_ledger=with_ledger)
    return Mode(hooks, lambda store, identity: SyncUpdates(store, identity, config, choices, *own_part(store)))


def _name(training: TrainingSettings) -> str:
    """What tasks of a job must agree on: the variables on the servers, and what is sent to them, depend on it."""
    return training.model_dump_json(include={"mode", "local_steps", "ordered_sums", "compression"})
