"""The chief's reports during training: progress lines, epochs, callbacks, summaries, metrics."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.chief.callbacks import SCHEDULE, CallbackError, EpochEnd, EpochEnds, learning_rate
from pstraining.runtime.chief.store_admin import StoreAdmin
from pstraining.runtime.data.epochs import Ends, Epochs
from pstraining.runtime.model.tensor import Dataset
from pstraining.runtime.telemetry.aggregation import LINK, RECEIVED, SAMPLES, SENT, CounterAggregate, Window
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.load_skew import SkewDetector, heaviest
from pstraining.runtime.telemetry.progress import PROGRESS_SECONDS, Rate, Seen, show
from pstraining.runtime.telemetry.tensorboard import Summaries

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class FitOptions:
    """The program's options for `fit`: epochs, validation, callbacks and summaries."""

    epochs: Epochs = field(default_factory=lambda: Epochs(number=1))
    validation: Callable[[], Dataset] | None = None
    validation_every: int = 1
    """Epochs from one validation to the next."""
    callbacks: Sequence["keras.callbacks.Callback"] = ()
    """Keras callbacks."""
    summaries: Path | None = None
    """Folder for TensorBoard."""
    local_optimizers: bool = False
    """Workers have optimizers of their own, whose learning rate nobody changes."""


class TrainingReporter:
    """Reports training. It runs in the chief's own thread, except for callbacks and validation.

    Args:
        admin: returns the current administration of the servers.
        fit: options of the program.
        counters: the chief's counters for Prometheus.
        steps: of the whole job, if they are limited.
        total: steps, or pieces of handed out data, in the whole job; None: nobody knows.
    """

    def __init__(
        self,
        admin: Callable[[], StoreAdmin],
        fit: FitOptions,
        counters: ChiefCounters,
        *,
        steps: int | None,
        total: int | None,
    ) -> None:
        self._at, self._fit, self._counters = admin, fit, counters
        model, client = admin().store.model, admin().client
        self._optimizer = model.optimizer
        epochs = fit.epochs
        self._summaries = Summaries(fit.summaries, client.local)
        self._rate = Rate(steps, epochs.number, total)
        self._aggregate = CounterAggregate()
        self._line, self._epoch = Window(self._aggregate), Window(self._aggregate)
        self._skew = SkewDetector()
        self._told = time.monotonic()
        self._ends = EpochEnds(model, client.local, fit.callbacks, fit.validation, self._note_epoch)
        self._watch: Ends | None = None
        self._rate_there: float | None = None  # the learning rate on the servers; None: nobody knows

    @property
    def _admin(self) -> StoreAdmin:
        return self._at()

    @property
    def stop_asked(self) -> bool:
        """Whether a callback wants training to end now."""
        return self._ends.stop_asked

    @property
    def is_busy(self) -> bool:
        """Whether an epoch's end is under way: its validation, its callbacks.

        Raises:
            CallbackError: one of them has failed.
        """
        return self._ends.busy

    def begin(self, done: int) -> None:
        """Training begins, or goes on, at so many steps or pieces; not called when it is over."""
        if self._watch is None:
            self._aggregate.note(self._admin.reports())
            self._watch = Ends(self._fit.epochs, done)
            if self._ends.wants_state and (rate := self._admin.learning_rate()) is not None:
                self._optimizer.learning_rate = self._rate_there = rate  # as callbacks of the former chief have set it
            epochs = self._fit.epochs
            self._ends.begin(epochs.under_way(done), epochs=epochs.number, steps=epochs.size)

    def restored(self) -> None:
        """The servers hold a restored state, with the program's own learning rate."""
        self._rate_there = None

    def report(self, step: int, done: int, snapshot: Callable[[], State], fence: int) -> None:
        """Report at this step, with `done` steps or splits trained, under the chief's fence.

        Raises:
            CallbackError: a callback, or the validation, has failed.
        """
        if (watch := self._watch) is None:  # before `begin` there is nothing to report
            return
        busy = self._ends.busy
        self._take_learning_rate(fence)
        if (seconds := time.monotonic() - self._told) >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            self._tell(step, done)
            self._weigh(seconds)
            self._line = Window(self._aggregate)
        waiting = watch.waiting(done)
        if waiting and not busy and not self.stop_asked:  # else with the next ones: nobody waits for the chief
            self._end_epoch(watch, waiting, step, snapshot, following=self._fit.epochs.under_way(done))

    def finish(self, final: State, done: int, *, early: bool, wait: Callable[[], None]) -> None:
        """Training is over: tell the last epoch's end, and return when every callback is done.

        Args:
            final: the last state.
            done: steps, or pieces, in it.
            early: a callback has ended it; what was trained since is no epoch.
            wait: called over and over meanwhile.
        """
        if (watch := self._watch) is None:
            return
        self._drain(wait)
        if not early and (waiting := watch.waiting(done, over=True)):
            self._end_epoch(watch, waiting, final.step, lambda: final, following=None)
        self._ends.close()
        self._drain(wait)

    def _take_learning_rate(self, fence: int) -> None:
        """Put what a callback has made of the learning rate onto the servers."""
        if not self._ends.wants_state or isinstance(self._optimizer._learning_rate, SCHEDULE):
            return
        rate = float(np.asarray(self._optimizer.learning_rate))
        if rate == self._rate_there:
            return
        if self._fit.local_optimizers:
            raise CallbackError(
                "a callback has set the learning rate; with localSteps the workers' own optimizers count"
            )
        self._admin.set_learning_rate(fence, rate)
        self._rate_there = rate
        event("learning_rate", value=rate)

    def _drain(self, wait: Callable[[], None]) -> None:
        while self._ends.busy:
            wait()

    def _end_epoch(
        self, watch: Ends, number: int, step: int, snapshot: Callable[[], State], following: int | None
    ) -> None:
        every, told = self._fit.validation_every, watch.told
        validate = self._fit.validation is not None and told // every != (told + number) // every
        state = snapshot() if validate or self._ends.wants_state else None
        self._collect()
        logs = {"loss": self._epoch.loss} if math.isfinite(self._epoch.loss) else {}
        logs |= self._epoch.metrics()
        if (rate := learning_rate(self._optimizer, step)) is not None:
            logs["learning_rate"] = rate
        self._epoch = Window(self._aggregate)
        epoch = watch.tell(number)
        following = None if following is None or following <= epoch else following
        self._ends.end(EpochEnd(epoch, state.step if state else step, logs, state, validate, following))

    def _tell(self, step: int, done: int) -> None:
        self._collect()
        counters, counted = self._counters, self._aggregate.total
        counters.step, counters.epoch = step, self._fit.epochs.under_way(done)
        counters.workers = self._admin.workers_present()
        counters.samples, counters.sent, counters.received = (
            counted.get(name, 0.0) for name in (SAMPLES, SENT, RECEIVED)
        )
        if math.isfinite(self._line.loss):
            counters.loss = self._line.loss
        seen = Seen(step, self._line.loss, counters.epoch, done, counters.samples, counters.sent, counters.received)
        show(self._rate.line(seen), self._rate.fraction(seen))
        scalars = {"workers": float(counters.workers), "loss": self._line.loss, **self._rate.speeds()}
        self._summaries.write(step, {name: value for name, value in scalars.items() if math.isfinite(value)})

    def _weigh(self, seconds: float) -> None:
        """Tell of a shard that carries more than the others, by what workers have exchanged with its servers."""
        store, cluster = self._admin.store, self._admin.client.cluster
        servers = [range(shard, len(cluster.ps), cluster.shards) for shard in range(store.layout.ps)]
        moved = [sum(self._line.counted(f"{LINK}ps-{index}") for index in own) for own in servers]
        self._counters.skew = heaviest(moved).times
        if load := self._skew.observe(moved, seconds):
            reason = (
                f"workers exchange {load.times:.1f} times the mean with it. Rows of embedding tables lie on shard "
                f"i modulo {len(moved)}: give those that are wanted most indices that are spread"
            )
            event("uneven_load", shard=load.shard, times=round(load.times, 2), reason=reason)

    def _collect(self) -> None:
        """Take what the workers have told since the last time."""
        losses = self._admin.take_losses()
        self._line.add_losses(*losses)
        self._epoch.add_losses(*losses)
        self._aggregate.note(self._admin.reports())

    def _note_epoch(self, end: EpochEnd) -> None:
        """In the callbacks' thread: an epoch's logs are whole."""
        self._counters.scalars = dict(end.logs)
        self._summaries.write(end.step, {f"epoch/{name}": value for name, value in end.logs.items()})
