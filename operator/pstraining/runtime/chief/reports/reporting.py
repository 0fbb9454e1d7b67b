"""The chief's reports during training: progress lines, epochs, callbacks, summaries, metrics."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pstraining import progress
from pstraining.runtime.checkpoint.state import StateParts
from pstraining.runtime.chief.refusals import CallbackRefusedError, LogNames, check_directions, check_monitors
from pstraining.runtime.chief.reports.callbacks import EpochEnd, EpochEnds
from pstraining.runtime.chief.reports.epoch_sums import EpochSums
from pstraining.runtime.chief.reports.rates import RepeatedRates, learning_rates, rates_of, scheduled
from pstraining.runtime.chief.reports.row_reports import RowReporter
from pstraining.runtime.chief.store_admin import StoreAdmin
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.data.epochs import Ends, Epochs
from pstraining.runtime.data.sources import Order, check_workers
from pstraining.runtime.data.validation import Validation
from pstraining.runtime.model.overrides import names_results
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.training.training_metrics import TrainingMetrics
from pstraining.runtime.telemetry.aggregation import LINK, METRIC, RECEIVED, SAMPLES, SENT, CounterAggregate, Window
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.load_skew import SkewDetector, heaviest
from pstraining.runtime.telemetry.progress import PROGRESS_SECONDS, Rate, Seen, StallDetector, show
from pstraining.runtime.telemetry.tensorboard import Summaries

if TYPE_CHECKING:
    import keras

METRICS_SECONDS: Final = 2.0
"""Seconds for which an epoch's end waits for the workers' metrics; they report them every second."""


@dataclass(frozen=True)
class FitOptions:
    """The program's options for `fit`: epochs, validation, callbacks and summaries."""

    epochs: Epochs = field(default_factory=lambda: Epochs(number=1))
    validation: Validation | None = None
    callbacks: Sequence["keras.callbacks.Callback"] = ()
    """Keras callbacks."""
    summaries: Path | None = None
    """Folder for TensorBoard."""
    track: Callable[[int, Mapping[str, float]], None] = lambda step, scalars: None
    """Takes numbers at a step for the tracker of experiments."""
    local_optimizers: bool = False
    """Whether workers have local optimizers, whose learning rate cannot be changed."""
    optimizer_steps: Callable[[int], int] = lambda step: step
    """Returns the steps of an optimizer at a global step."""


def log_names(
    metrics: TrainingMetrics,
    outputs: str,
    others: Collection[str],
    *,
    validated: Validation | None,
    has_own_results: bool = False,
) -> LogNames:
    """Return the names that logs can have.

    Args:
        metrics: the chief's metrics.
        outputs: see `TrainingMetrics.results`.
        others: names in the logs of training that are no metrics of `compile`.
        validated: the validation; None: no validation.
        has_own_results: whether the model itself may name the results of its validation.
    """
    names = metrics.names(outputs)
    if validated is None:
        validation: Collection[str] | None = ()
    elif names is None or metrics.left_out or has_own_results:  # the validation has names that are not known
        validation = None
    else:
        validation = {"val_loss", *(f"val_{name}" for name in names)}
    return LogNames({*others, *(names or ())}, validation)


class TrainingReporter:
    """Reports training. It runs in the chief's thread, except for callbacks and validation.

    Args:
        admin: returns the current administration of the servers.
        fit: options of the program.
        counters: the chief's counters for Prometheus.
        steps: number of steps in the job; None without a limit.
        total: number of steps, or of splits of assigned data, in the job; None if unknown.
        order: the splits of the chief's assigned data and their order; None: the data is not assigned.
        report: sends the job's progress to the operator.
    """

    def __init__(
        self,
        admin: Callable[[], StoreAdmin],
        fit: FitOptions,
        counters: ChiefCounters,
        *,
        steps: int | None,
        total: int | None,
        order: Order | None = None,
        report: Callable[..., None] = progress.report,
    ) -> None:
        self._at, self._fit, self._counters, self._order = admin, fit, counters, order
        model, client = admin().store.model, admin().client
        self._optimizers, self._metrics = model.optimizers, model.step.compiled
        epochs = fit.epochs
        self._summaries = Summaries(fit.summaries, client.local)
        self._rate = Rate(steps, epochs.number, total)
        self._aggregate = CounterAggregate()
        self._line, self._epoch = Window(self._aggregate), EpochSums(self._aggregate)
        self._skew, self._stall = SkewDetector(), StallDetector()
        self._report_progress, self._rows = report, RowReporter(counters)
        self._reported_at = time.monotonic()
        steps_of = fit.optimizer_steps
        self._ends = EpochEnds(
            model, client.compute, fit.callbacks, fit.validation, self._note_epoch, optimizer_steps=steps_of
        )
        self._repeated = RepeatedRates(self._optimizers, fit.callbacks)
        self._watch: Ends | None = None
        self._has_restored = False  # whether this chief has put the state on the servers
        self._done = 0  # steps or splits in the last state
        self._monitors_checked = False
        self._waiting_since: float | None = None  # when an epoch had ended whose metrics are not reported yet
        self._present: tuple[int, ...] = ()  # the indices of the workers that take part
        self._rates_there: list[float | None] | None = None  # the learning rates on the servers; None if unknown

    @property
    def _admin(self) -> StoreAdmin:
        return self._at()

    def stops(self, step: int) -> bool:
        """Return whether a callback ends training at this step."""
        return self._ends.stops(step)

    @property
    def is_busy(self) -> bool:
        """Return whether an epoch's validation or callbacks are running.

        Raises:
            CallbackError: a callback or the validation has failed.
        """
        return self._ends.busy

    def begin(self, done: int, step: int = 0, snapshot: Callable[[], StateParts] | None = None) -> None:
        """Start reporting at `done` steps or splits, and this step, with this state; later calls do nothing."""
        if self._watch is None:
            state = snapshot() if snapshot and self._ends.wants_state else None  # without one, the model has it
            self._aggregate.note(self._admin.reports())
            if not self._has_restored:  # like the workers' counts, losses under a former chief are not of this epoch
                self._admin.take_losses()
            self._watch = Ends(self._fit.epochs, done)
            epochs = self._fit.epochs
            if self._ends.wants_state:
                self._adopt_learning_rates(epochs.under_way(done))
            self._ends.begin(epochs.under_way(done), step, state, epochs=epochs.number, steps=epochs.steps)

    def saving(self, step: int) -> None:
        """Note what the logs of the epoch have at this step, of which a checkpoint has been copied just now."""
        self._collect()
        self._epoch.saved(step)

    def restored(self, step: int) -> None:
        """Handle a restore, which sets the program's learning rate on the servers; local optimizers keep theirs."""
        self._has_restored = True
        self._epoch.restored(step)
        if not self._fit.local_optimizers:
            self._rates_there = None

    def report(self, step: int, done: int, snapshot: Callable[[], StateParts], fence: int) -> None:
        """Report at this step, with `done` steps or splits trained, under the chief's fence.

        Raises:
            CallbackError: a callback, or the validation, has failed.
        """
        if (watch := self._watch) is None:  # before `begin` there is nothing to report
            return
        busy = self._ends.busy
        self._follow_restore(watch, done, busy=busy)
        self._take_learning_rates(fence)
        if (seconds := time.monotonic() - self._reported_at) >= PROGRESS_SECONDS:
            self._reported_at = time.monotonic()
            self._tell(step, done)
            self._weigh(seconds)
            self._line = Window(self._aggregate)
        if not busy:  # the validation creates the metrics as well
            self._check_monitors()
        waiting = watch.waiting(done)
        if (
            waiting and not busy and not self._ends.stop_asked and self._has_metrics()
        ):  # otherwise the epoch ends with the next one: training never waits for the chief
            self._end_epoch(watch, waiting, step, snapshot, following=self._fit.epochs.under_way(done))

    def _follow_restore(self, watch: Ends, done: int, *, busy: bool = False) -> None:
        """Leave steps of reported epochs that are trained again out of the next logs; report steps that these lack.

        Such epochs have the learning rates that they had before the restore. `busy`: whether callbacks may set others.
        """
        if not busy:
            self._repeated.follow(self._fit.epochs.under_way(done) if watch.begun(done) < 0 else None)
        if self._epoch.has_caught_up(watch, done):
            self._collect()
            self._epoch.begin()
        step = self._epoch.missing_before(watch, done, by_splits=self._fit.epochs.by_splits)
        if step is not None:
            event("logs_incomplete", epoch=watch.reported, step=step, reason="the chief has no sums of earlier steps")

    def finish(self, final: StateParts, done: int, *, early: bool, wait: Callable[[], None]) -> None:
        """Report the last epoch's end, and return when every callback is done.

        Args:
            final: the last state.
            done: number of steps or splits in the last state.
            early: whether a callback ended training. An epoch that it stopped at its beginning ends incomplete.
            wait: called repeatedly until the callbacks are done.
        """
        self._done = done
        if (watch := self._watch) is None:
            return
        self._drain(wait)
        stopped = self._ends.open_epoch
        begun = 0 if stopped is None else stopped + 1 - watch.reported
        if (waiting := begun if early else watch.waiting(done, over=True)) > 0:
            self._end_epoch(watch, waiting, final.step, lambda: final, following=None)
        self._ends.close(final if self._ends.wants_state else None, averaged=not self._fit.local_optimizers)
        self._drain(wait)

    def conclude(self, result: dict[str, float]) -> dict[str, float]:
        """Report the job's result as its last progress, and return it."""
        tests, done = {name: value for name, value in result.items() if name != "step"}, self._done
        self._send_progress(Seen(int(result["step"]), epoch=self._fit.epochs.under_way(done), done=done), tests)
        return result

    def best(self) -> dict[str, Array] | None:
        """Return the parameters that a callback has restored at the end of training; see `EpochEnds.best`."""
        return self._ends.best()

    def _has_metrics(self) -> bool:
        """Return whether the workers have reported metrics of this epoch, or have had the time for it."""
        self._collect()
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        late = time.monotonic() - self._waiting_since > METRICS_SECONDS
        own = bool(self._aggregate.names(METRIC))
        epoch = self._epoch.window
        found = bool(epoch.metrics()) if own else any(epoch.state().values())
        return late or found or not (own or self._metrics.are_reported)

    def _check_monitors(self) -> None:
        """Check once what callbacks monitor, when the workers have reported the names of their metrics.

        Raises:
            CallbackRefusedError: no log has the name, or Keras does not know whether it is to fall or to rise.
        """
        if self._monitors_checked or not (outputs := self._aggregate.outputs):
            return
        self._monitors_checked = True
        others = {"loss", *self._aggregate.names(METRIC), *learning_rates(self._optimizers, 0)}
        model, validated = self._admin.store.model.keras, self._fit.validation
        own = names_results(model)
        names = log_names(self._metrics, outputs, others, validated=validated, has_own_results=own)
        check_monitors(self._fit.callbacks, names)
        check_directions(self._fit.callbacks, model)

    def _adopt_learning_rates(self, epoch: int) -> None:
        """Adopt the servers' learning rates, which callbacks of the former chief may have set.

        Those of LearningRateScheduler are computed instead, from the first epoch on: it is about to set the rate of
        this epoch again, and may multiply the present one.
        """
        there = self._admin.learning_rates()
        if scheduled(self._optimizers, self._fit.callbacks, epoch):
            self._rates_there = there
            return
        for optimizer, rate in zip(self._optimizers, there, strict=True):
            if rate is not None:
                optimizer.learning_rate = rate
        self._rates_there = rates_of(self._optimizers)

    def _take_learning_rates(self, fence: int) -> None:
        """Set a callback's learning rates on the servers."""
        rates, there = rates_of(self._optimizers) if self._ends.wants_state else [], self._rates_there
        changed = [n for n, rate in enumerate(rates) if rate is not None and (there is None or rate != there[n])]
        if not changed:
            return
        if self._fit.local_optimizers:
            raise CallbackRefusedError(
                "a callback has set the learning rate, which has no effect with localSteps: workers have local "
                "optimizers. Set the rate in the program's optimizer, or leave out localSteps"
            )
        self._admin.set_learning_rates(fence, rates)
        self._rates_there = rates
        for number in changed:
            own = {"optimizer": self._optimizers[number].name} if len(rates) > 1 else {}
            event("learning_rate", value=rates[number], **own)

    def _drain(self, wait: Callable[[], None]) -> None:
        with self._counters.busy():
            while self._ends.busy:
                wait()

    def _end_epoch(
        self, watch: Ends, number: int, step: int, snapshot: Callable[[], StateParts], following: int | None
    ) -> None:
        validation, reported = self._fit.validation, watch.reported
        validate = validation is not None and reported // validation.every != (reported + number) // validation.every
        state = snapshot() if validate or self._ends.wants_state else None
        self._collect()
        self._waiting_since = None
        sums = self._epoch.window
        logs = sums.losses | sums.metrics() | self._metrics.results(self._aggregate.outputs, sums.state())
        skipped = self._admin.skipped_steps()
        logs |= learning_rates(self._optimizers, max(0, self._fit.optimizer_steps(step) - skipped))
        self._epoch.begin()
        epoch = watch.report(number)
        following = None if following is None or following <= epoch else following
        self._ends.end(EpochEnd(epoch, state.step if state else step, logs, state, validate, following, skipped))

    def _tell(self, step: int, done: int) -> None:
        self._collect()
        counters, counted = self._counters, self._aggregate.total
        counters.step, counters.epoch = step, self._fit.epochs.under_way(done)
        self._present = self._admin.workers_present()
        counters.workers = len(self._present)
        self._rows.report(self._admin.row_counts())
        counters.samples, counters.sent, counters.received = (
            counted.get(name, 0.0) for name in (SAMPLES, SENT, RECEIVED)
        )
        if math.isfinite(self._line.loss):
            counters.loss = self._line.loss
        seen = Seen(step, self._line.loss, counters.epoch, done, counters.samples, counters.sent, counters.received)
        show(self._rate.line(seen), self._rate.fraction(seen))
        self._send_progress(seen)
        scalars = {"workers": float(counters.workers), "loss": self._line.loss, **self._rate.speeds()}
        self._write(step, scalars)

    def _send_progress(self, seen: Seen, result: Mapping[str, float] | None = None) -> None:
        """Send the progress. `result` is the job's result at the end of training, when there are no rates."""
        counters, fraction, over = self._counters, self._rate.fraction(seen), result is not None
        cluster = self._admin.client.cluster
        workers = clusters.number_of_workers(cluster)  # the job may have been scaled since this process started
        self._report_progress(
            step=seen.step,
            steps=self._rate.steps,
            epoch=seen.epoch,
            loss=counters.scalars.get("loss", counters.loss) if over else counters.loss,
            metrics={**counters.scalars, **(result or {})},
            samples_per_second=None if over else self._rate.speeds().get("samples_per_second"),
            remaining_seconds=0.0 if over else self._rate.remaining(seen),
            percentage=None if fraction is None else 100 * fraction,
            checkpoint_step=counters.checkpoint_step if counters.checkpoints else None,
            checkpoint_time=counters.checkpoint_time,
            layout=cluster.layout,
            term=cluster.term,
            stalled="" if over else self._stall.observe(seen.step, self._present, workers),
        )

    def _weigh(self, seconds: float) -> None:
        """Report a shard with more load than the others, by the bytes that workers exchange with its servers."""
        store, cluster = self._admin.store, self._admin.client.cluster
        servers = [store.servers.numbers[shard :: cluster.shards] for shard in range(store.layout.ps)]
        name = self._admin.client.links.name
        moved = [sum(self._line.counted(LINK + name(number)) for number in own) for own in servers]
        self._counters.skew = heaviest(moved).times
        if load := self._skew.observe(moved, seconds):
            reason = (
                f"workers exchange {load.times:.1f} times the mean with it. Row i of an embedding table is on shard "
                f"i modulo {len(moved)}: spread the indices of the most frequent rows"
            )
            event("uneven_load", shard=load.shard, times=round(load.times, 2), reason=reason)

    def _collect(self) -> None:
        """Read the workers' losses and counters since the last call.

        Raises:
            SettingsError: a worker has other data than the chief.
        """
        losses = self._admin.take_losses()
        self._line.add_losses(*losses)
        self._epoch.window.add_losses(*losses)
        self._aggregate.note(self._admin.reports())
        check_workers(self._aggregate.orders, self._order)

    def _note_epoch(self, end: EpochEnd) -> None:
        """Record an epoch's complete logs; called in the callbacks' thread."""
        self._counters.scalars = dict(end.logs)
        self._write(end.step, {f"epoch/{name}": value for name, value in end.logs.items()})

    def _write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the finite numbers for TensorBoard, and send them to the tracker."""
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        self._summaries.write(step, finite)
        self._fit.track(step, finite)
