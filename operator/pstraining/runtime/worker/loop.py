"""A worker's loop: pull, compute, push, until the servers' records say that training is done.

It depends on the parameter servers alone. While they are lost, or their state is restored, it waits. When its update is
rejected, it reads the servers' records again.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import tensorflow as tf

from pstraining.api.training import NonFinite
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.config.settings import TrainingSettings
from pstraining.runtime.data.batches import AssignedBatches, Batches, DatasetBatches, EndOfDataError, UpdateBatches
from pstraining.runtime.data.divided import DividedData
from pstraining.runtime.data.epochs import Epochs
from pstraining.runtime.data.sources import Source
from pstraining.runtime.model.own_state import CarriedStates, kept
from pstraining.runtime.model.training.training_step import number_of_samples
from pstraining.runtime.ps import record as records
from pstraining.runtime.ps.data_ledger import SplitPosition
from pstraining.runtime.ps.messages import ASSIGNED, SESSION_OVER
from pstraining.runtime.ps.worker_registry import HEARTBEAT_SECONDS
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.renewal import Renewal, RenewalDueError, is_another_away
from pstraining.runtime.telemetry import aggregation
from pstraining.runtime.telemetry.counters import WorkerCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.progress import StepReports
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.updates.base import Identity, StepResult
from pstraining.runtime.worker.router import Router

POLL: Final = 0.05
"""Seconds between reads of the servers' records while the worker has nothing to train."""


ASK_AGAIN_SECONDS: Final = 2.0
"""Seconds after which a worker without data requests a split again."""


class SessionOverError(Exception):
    """The servers have another fence or generation, or a newer process of this worker is registered."""


class NonFiniteError(ArithmeticError):
    """A gradient contains NaN or infinity."""


class Worker:
    """One worker's loop."""

    def __init__(
        self,
        where: Router,
        identity: Identity,
        data: Callable[[], tf.data.Dataset] | Source,
        *,
        training: TrainingSettings,
        counters: WorkerCounters | None = None,
        renewal: Renewal | None = None,
        epochs: Epochs | None = None,
    ) -> None:
        store = where.first[0]
        self._client, self._store, self._identity, self._training = store.client, store, identity, training
        self._batches: Batches = (
            DatasetBatches(data, store.client.local, store.client.compute, worker=identity.worker)
            if callable(data)
            else AssignedBatches(data, self._assign_split, store.client.local, store.client.compute)
        )
        self._divided = data if isinstance(data, DividedData) else None
        self._limit = training.positions(None if callable(data) else data.count)
        self._order = "" if callable(data) else data.order.text()
        self._where = where
        self._updates = where.first[1]
        self._reports = StepReports(identity.worker)
        self._counters = counters or WorkerCounters()
        self._session_counters = aggregation.SessionCounters()
        self._carried, self._has_seeds = CarriedStates(store.model.carried), False
        self._in_session = False
        self._epochs, self._epoch = epochs or Epochs(), 0
        self._wake = threading.Event()  # the heartbeat is due before its time
        self._sending = threading.Lock()  # one report at a time: an older one never replaces a newer one
        self._pending: UpdateBatches | None = None  # the batches to train next; kept until their update is applied
        self._upcoming: UpdateBatches | None = None  # those after them, if the updates look ahead
        self._session: records.Session | None = None
        self._outcome_unknown = False  # whether some servers may have the pending update
        self._renewal = renewal or Renewal(enabled=False)
        self._stall_reason: str | None = "renewed" if self._renewal.kept.times else None  # why no step is applied
        self._last_step_at = self._renewal.kept.left  # on the monotonic clock, in seconds
        self._resent: UpdateBatches | None = None

    def run(self) -> None:
        """Train until the job is done.

        Raises:
            RenewalDueError: this process is to be renewed; it has deregistered.
        """
        try:
            with self._heartbeats():
                self._train_until_done()
        except RenewalDueError:
            self._deregister()
            raise
        finally:
            self._batches.close()
            self._where.close()
        self._deregister()
        self._reports.report("worker_done")

    def _train_until_done(self) -> None:
        done = False
        while not done:
            try:
                session = self._wait_for_state()
                if session is None:
                    break
                done = self._train(session)
            except ShardLostError as lost:
                self._outcome_unknown = True
                self._note_stall("lost")
                self._client.recover(lost)

    def _wait_for_state(self) -> records.Session | None:
        """Return a session once the servers hold one consistent set of parameters; None when the job is done."""
        reported, superseded = time.monotonic(), False
        while True:
            session = None
            if found := self._where.find():
                self._store, self._updates = found
                shards = self._store.read()
                self._updates.on_idle(shards)
                unshared = list(self._store.model.unshared.digests)
                session = records.session(shards, layout=self._store.fingerprint, unshared=unshared)
            if session is not None:
                if all(shard.done for shard in shards):
                    return None
                if not self._training.is_over(shards[0].step) and not superseded:
                    self._warm_up(shards[0].step, session)
                    if not self._store.hold_frozen(session):
                        continue
                    if self._store.register(self._identity.worker, self._identity.incarnation):
                        return session
                    superseded = True  # permanently: this process idles until the job is done or the pod ends
                    event("superseded", worker=self._identity.worker, reason="a newer process has this worker's index")
            if time.monotonic() - reported >= 10:
                reported = time.monotonic()
                event("waiting", what="the end" if superseded else "the chief", worker=self._identity.worker)
            time.sleep(POLL)

    def _warm_up(self, step: int, session: records.Session) -> None:
        """Prepare the functions of a step with a sample; the state of this process does not change."""
        model = self._store.model
        if not self._has_seeds:
            self._has_seeds = True
            model.reseed(worker=self._identity.worker, step=step)
        if self._session is None or self._session.generation != session.generation:  # perhaps restored to another step
            workers = clusters.number_of_workers(self._client.cluster)  # as a worker that starts now counts them
            model.continue_schedules(self._training.optimizer_steps(step, workers))
        with kept(model.restored_after_trials()), model.step.trial():
            self._where.warm_up(lambda: self._batches.sample(self._training.batches_per_update))

    def _assign_split(self) -> tuple[int, int] | None:
        """Request a split; return its position and its number of trained batches, or None if no split is left."""
        if self._session is None:
            raise SessionOverError
        sender = (self._identity.worker, self._identity.incarnation)
        reply = self._store.assign_split(self._session, sender, self._limit)
        if reply.state == SESSION_OVER:
            raise SessionOverError
        return (reply.position, reply.done) if reply.state == ASSIGNED else None

    def _train(self, session: records.Session) -> bool:
        """Train until the session is over; return True when the job is done."""
        same_set = self._session is not None and self._session.generation == session.generation
        resends = self._outcome_unknown and same_set and self._updates.is_idempotent
        if not resends and self._batches.reset():
            self._pending = self._upcoming = None
        if self._session is None:
            self._begin_counting()
        self._session, self._outcome_unknown, self._resent = session, False, self._pending if resends else None
        self._session_counters.begin(session.fence, session.generation, self._count)
        self._updates.start_session(session)
        self._counters.begin()
        self._in_session = True
        try:
            return self._step_through(session)
        except SessionOverError:
            return False
        except EndOfDataError:
            self._in_session = False
            return self._wait_for_other_workers(session)
        finally:
            self._in_session = False

    def _begin_counting(self) -> None:
        """Report at the first session what the trial of a step has shown."""
        if not self._stall_reason:
            self._last_step_at = time.monotonic()
        if missing := self._store.model.connections.missing:
            reason = "the loss does not depend on them"
            event("no_gradient", worker=self._identity.worker, variables=missing, reason=reason)
        if lines := self._store.model.connections.of_no_layer:
            event("not_shared", worker=self._identity.worker, lines=lines, reason="no layer has these variables")
        step = self._store.model.step
        if self._training.backup_workers:  # a round may drop a gradient, whose batches are computed again
            self._carried = CarriedStates([*self._store.model.carried, *step.counted])
        metrics = step.compiled
        if metrics.left_out:
            event(
                "metrics_left_out",
                worker=self._identity.worker,
                metrics=metrics.left_out,
                reason=metrics.reason,
            )

    def _wait_for_other_workers(self, session: records.Session) -> bool:
        """Wait without data, as a split of a lost worker may be assigned again; return True when the job is done."""
        self._leave()
        until = time.monotonic() + ASK_AGAIN_SECONDS
        while time.monotonic() < until:
            shards = self._store.read()
            self._updates.on_idle(shards)
            if all(shard.done for shard in shards):
                return True
            if records.session(shards, layout=self._store.fingerprint) != session:
                return False
            time.sleep(POLL)
        return False

    def _step_through(self, session: records.Session) -> bool:
        while True:
            is_new = self._pending is None
            if self._pending is None:
                self._pending = self._draw()
            if self._updates.looks_ahead:
                self._look_ahead()
            self._carried.begin(again=not is_new)
            result = self._updates.step(self._pending.batches, self._pending.progress)
            if result.done:
                return True
            if not result.session_valid:
                self._outcome_unknown = (
                    self._pending is not self._resent
                )  # rejected twice: the split now belongs to another worker
                self._note_stall("refused")
                event("refused", worker=self._identity.worker, term=self._term(session), step=result.step)
                return False
            if not result.finite:
                self._skip_non_finite(result)
            samples = sum(number_of_samples(batch) for batch in self._pending.batches)
            self._counters.record_step(
                result.step, result.loss, samples=samples, applied=result.applied, staleness=result.staleness
            )
            if result.applied:
                self._note_epoch(result.step, self._pending.progress)
                self._carried.applied()
                self._pending = None
            self._note_step(result.step)
            self._reports.step(result.step, result.loss, result.staleness)
            if self._training.is_over(result.step):  # the chief ends the job; until then no step is left
                return False
            if self._pending is None and self._renewal.is_due(
                self._client.connection, settled=self._where.settled, is_another_away=self._is_another_away
            ):
                raise RenewalDueError

    def _is_another_away(self) -> bool:
        registered = self._store.registered().tolist()
        return is_another_away(registered, clusters.number_of_workers(self._client.cluster))

    def _draw(self) -> UpdateBatches:
        """Return the batches that were drawn ahead, else the next ones of the data."""
        if self._upcoming is not None:
            drawn, self._upcoming = self._upcoming, None
            return drawn
        self._follow_number_of_workers()
        return self._batches.draw(self._training.batches_per_update)

    def _look_ahead(self) -> None:
        """Draw the batches after the pending ones, and announce them to the updates."""
        if self._upcoming is None:
            self._follow_number_of_workers()
            self._upcoming = self._batches.draw_ahead(self._training.batches_per_update)
        self._updates.expect(self._upcoming.batches if self._upcoming else None)

    def _follow_number_of_workers(self) -> None:
        """Restart data that depends on the number of workers if the number has changed."""
        if self._divided and self._divided.has_changed():
            self._batches.restart()

    def _note_epoch(self, step: int, progress: SplitPosition | None) -> None:
        """Send a heartbeat at the first step of an epoch, which completes the metrics of the epoch before."""
        epoch = self._epochs.under_way(progress.position if progress else step)
        if epoch != self._epoch:
            self._epoch = epoch
            self._wake.set()

    def _note_stall(self, why: str) -> None:
        if self._session and self._stall_reason is None:
            self._stall_reason = why

    def _note_step(self, step: int) -> None:
        """Note the time of a step; after a loss or a new session, report the seconds since the last step."""
        since, self._last_step_at = self._last_step_at, time.monotonic()
        if self._stall_reason:
            seconds = round(self._last_step_at - since, 3)
            event("resumed", worker=self._identity.worker, after=self._stall_reason, step=step, seconds=seconds)
            self._stall_reason = None

    def _term(self, session: records.Session) -> int:
        """Return the chief's term."""
        return encoding.ballot(session.fence).term if self._client.cluster.members > 1 else session.fence

    def _skip_non_finite(self, result: StepResult) -> None:
        """Report a gradient that is not finite; raise if the policy is Fail.

        Raises:
            NonFiniteError: `nonFinite` is Fail.
        """
        so_far = self._counters.left_out = self._counters.left_out + 1
        event("non_finite", worker=self._identity.worker, step=result.step, loss=result.loss, so_far=so_far)
        if self._training.non_finite is NonFinite.FAIL:
            raise NonFiniteError(
                f"worker {self._identity.worker}: the gradient at step {result.step} has NaN or infinity in it, and "
                "was not applied. Lower the learning rate, clip gradients or look at the data; "
                "spec.training.nonFinite: Skip leaves such batches out"
            )

    @contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Send heartbeats in a thread while the block runs, however long a step takes."""
        ended = threading.Event()

        def send_heartbeats() -> None:
            while not ended.is_set():
                self._wake.wait(HEARTBEAT_SECONDS)
                self._wake.clear()
                if not self._in_session:
                    continue  # the servers may be empty yet
                with suppress(ShardLostError):  # the training thread notices it as well, and recovers
                    self._send_heartbeat()

        thread = threading.Thread(target=send_heartbeats, name="pstraining-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self._wake.set()
            thread.join(timeout=HEARTBEAT_SECONDS)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat with the worker's counters."""
        step, identity = self._store.model.step, self._identity
        with self._sending:
            report = aggregation.encode(
                identity.incarnation, self._count(), step.compiled.outputs, self._order, self._session_counters
            )
            self._store.heartbeat(identity.worker, identity.incarnation, report)

    def _count(self) -> aggregation.Counters:
        """Return the process's counters."""
        step = self._store.model.step
        return self._counters.report(self._client.links.look(), step.metrics(), step.compiled.sums())

    def _deregister(self) -> None:
        """Deregister, so that the chief need not wait for the heartbeats to lapse; a lost server is ignored."""
        try:
            self._leave()
        except ShardLostError as lost:
            event("good_bye_failed", worker=self._identity.worker, reason=str(lost))

    def _leave(self) -> None:
        """Report the counters of the last steps, then deregister: servers take no report of a deregistered worker."""
        self._send_heartbeat()
        self._store.deregister(self._identity.worker, self._identity.incarnation)
