"""The chief: it leads a job, and takes no part in training.

It fences the parameter servers, initialises or restores their state, saves checkpoints, restores servers that lost
their state, ends training at the step budget or on a callback's request, and evaluates the last checkpoint. It can
crash at any moment: the next chief finds complete state on the servers, or a checkpoint. After SIGTERM it accepts no
more updates, and saves the newest state first if it has a folder for checkpoints.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import tensorflow as tf

from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import FULL, SavePlan, StateLostError, StateParts, SupersededError, whole
from pstraining.runtime.chief import recovery
from pstraining.runtime.chief.conclusion import conclude
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.membership import Membership
from pstraining.runtime.chief.options import ChiefOptions
from pstraining.runtime.chief.recovery import ChiefAction
from pstraining.runtime.chief.reports.evaluation import with_weights
from pstraining.runtime.chief.reports.reporting import TrainingReporter
from pstraining.runtime.chief.reports.unused import report_no_checkpoints, report_unused
from pstraining.runtime.chief.shutdown import GracefulStop, StoppedError
from pstraining.runtime.chief.state.initial_state import InitialState
from pstraining.runtime.chief.state.origin import data_order
from pstraining.runtime.chief.state.server_state import ServerState
from pstraining.runtime.chief.store_admin import StoreAdmin, new_generation
from pstraining.runtime.chief.worker_wait import wait_for_workers
from pstraining.runtime.ps.record import EARLY, Assignment
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.renewal import RenewalDueError
from pstraining.runtime.replication.view_change import ViewChanger
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import PSClient, ShardLostError

POLL: Final = 0.1
"""Seconds between reads of the servers' records."""
GOOD_BYE_SECONDS: Final = 10.0
"""Seconds that the chief waits for workers to leave."""

Result = TypeVar("Result")


class Chief:
    """The chief of one term.

    Args:
        client: the connection to the servers.
        store: the job's parameter store.
        options: the chief's settings.
        check_abort: called in every loop; may raise to end it.
        stop: handles SIGTERM.
        may_be_renewed: returns whether the process is to be renewed; called with whether the view changer is quiet.
        epoch: see `ViewChanger`.
    """

    def __init__(
        self,
        client: PSClient,
        store: ParameterStore,
        options: ChiefOptions,
        *,
        check_abort: Callable[[], None] = lambda: None,
        stop: GracefulStop | None = None,
        may_be_renewed: Callable[[bool], bool] = lambda quiet: False,
        epoch: int = 0,
    ) -> None:
        self._client, self._model, self._options, self._check_abort = client, store.model, options, check_abort
        self._stop, self._may_be_renewed = stop or GracefulStop(), may_be_renewed
        self._members = Membership(
            client,
            store,
            restore=self._restore_on,
            on_layout=self._on_layout,
            check_abort=check_abort,
            counters=options.counters,
            epoch=epoch,
        )
        changes = self._members.joins or bool(options.fit.callbacks or options.fit.validation)
        self._initial = InitialState(store.model, changes=changes)
        self._saver = self._open_folder(options) if options.checkpoint.path else None
        steps = options.training.steps
        self._reporter = TrainingReporter(
            lambda: self._admin,
            options.fit,
            options.counters,
            steps=steps,
            total=options.positions if options.by_splits else steps,
            order=options.order,
            report=options.history.report,
        )
        # Whether training ended before its limit, the newest dense parameters are lost, and the last save shuts out
        # updates.
        self._has_led = self._early = self._is_lost = self._is_shut = False

    def _open_folder(self, options: ChiefOptions) -> Saver:
        saver = Saver(
            options.checkpoint,
            self._store.layout,
            term=lambda: self._members.term,
            # Worker 0 of a job without a chief has no term that would order it and its predecessor.
            writer=Writer() if self._members.joins else Writer(self._client.cluster.job_uid, self._members.term),
            damaged=lambda place, expected: self._admin.find_damaged(place, expected),  # noqa: PLW0108 - the members change
            counters=options.counters,
        )
        options.history.attach(saver.checkpoints)
        self._members.saved_step = saver.newest_step
        return saver

    def _on_layout(self) -> None:
        """Write checkpoints in the layout in use."""
        if self._saver:
            self._saver.layout = self._members.whole.layout

    @property
    def _admin(self) -> StoreAdmin:
        return self._members.admin

    @property
    def _store(self) -> ParameterStore:
        return self._admin.store

    def run(self) -> dict[str, float]:
        """Lead the job to its end, and return the result.

        Raises:
            SupersededError: a chief of a later term leads the job.
            RenewalDueError: the process is to be renewed; training continues.
            SystemExit: after SIGTERM, once the newest state is saved.
        """
        if self._saver is None:
            report_no_checkpoints()
        report_unused(self._store.layout, self._client.cluster.shards)
        self._repeated(self._establish_term)
        with self._stop.deferred():
            final = self._repeated(self._lead)
        evaluate, local = self._options.evaluate, self._options.fit.local_optimizers
        with tf.device(self._client.compute), self._options.counters.busy():
            result = conclude(self._model, evaluate, final, self._saver, local_optimizers=local)
        return self._reporter.conclude(result)

    def _repeated(self, attempt: Callable[[], Result]) -> Result:
        """Return an attempt's result; recover and repeat it after a loss."""
        while True:
            try:
                return attempt()
            except ShardLostError as lost:
                with self._stop.recovering():
                    self._client.recover(lost)
            except StateLostError:
                event("state_lost", reason="no worker is left that has the newest dense parameters")
                self._is_lost = True
            except FencedError:  # another chief changed the records: read them again and decide
                time.sleep(POLL)

    def _lead(self) -> StateParts:
        if self._has_led:  # a repetition
            with self._stop.recovering():
                self._establish_term()
        try:
            self._watch()
            return self._end()
        except StoppedError:
            with self._stop.saving(self._saver.hurry if self._saver else None):
                self._save_and_shut()
            raise

    def _save_and_shut(self) -> None:
        """Shut out further updates, which the saved state would lack, and save the state for the next chief."""
        self._options.history.stopping()
        self._admin.flush_dense(self._waiting())
        if self._saver and not any(shard.done for shard in self._store.read()):
            self._is_shut = True
            self._admin.set_record(self._members.fence, generation=-self._shards[0].generation)
        event("stopped", term=self._members.term, step=self._save_for_successor())

    def _save_for_successor(self) -> int:
        """Save the state, incrementally if that succeeds, and return its step."""
        plan = self._saver.plan() if self._saver else FULL
        if self._saver and plan.base is not None:
            with self._copied(plan) as state:
                if self._saver.try_increment(state):
                    return state.step
        with self._copied(plan._replace(base=None)) as state:
            if self._saver:
                self._saver.save_last(state)
            return state.step

    def _establish_term(self) -> None:
        """Raise every server's fence to this term, and restore the servers if they lack one complete set."""
        if self._is_lost:
            self._admin.set_record(self._members.fence, generation=0)
            self._is_lost = False
        members, self._is_shut = self._members, False
        if members.view_changer:
            members.establish()
        elif members.joins:  # without a chief, worker 0 takes the next term
            members.joins = False
            members.term = members.fence = max(members.term, 1 + max(shard.fence for shard in self._store.read()))
        while (action := self._decide()) is not ChiefAction.PROCEED:
            if action is ChiefAction.RAISE_FENCE:
                self._admin.raise_fence(self._shards, self._members.fence)
            elif action is ChiefAction.REOPEN:
                self._admin.set_record(self._members.fence, generation=abs(self._shards[0].generation))
            else:
                self._stop.exit_unsaved("the parameter servers have lost the state")
                self._restore()
        if any(shard.done for shard in self._shards) and not self._is_over():
            self._admin.set_record(self._members.fence, done=0)
        self._admin.release(self._members.fence)

    def _decide(self) -> ChiefAction:
        self._shards = self._store.read()
        fence, layout, order = self._members.fence, self._store.fingerprint, self._options.order_number
        action = recovery.decide(self._shards, fence=fence, layout=layout, order=order)
        if action is ChiefAction.SUPERSEDED:
            highest = max(shard.fence for shard in self._shards)
            if self._members.is_own(highest):
                raise FencedError("a call of this chief was carried out late: a server has promised a later ballot")
            raise SupersededError(f"term {self._members.term} is over: a server has fence {highest}")
        return action

    def _restore_on(self, assignment: Assignment, fence: int) -> None:
        """Restore on these members under a fence, without accepting updates yet."""
        self._members.restore_on(assignment, fence)
        self._restore(shut=True)

    def _restore(self, *, shut: bool = False) -> None:
        """Put the newest checkpoint on all servers together, or the initial values when there is none."""
        started = time.monotonic()
        with self._options.counters.busy():
            state = self._saver.checkpoints.newest() if self._saver else None
            fresh, step = state is None, 0 if state is None else state.step
            self._early = state is not None and state.ended_early
            recovery.check_order(self._shards if fresh and not shut else (), self._options.order_number)
            generation = new_generation(self._options.order_number)
            if self._client.cluster.in_pod:
                self._admin.mark_owned()
            self._admin.restore(
                state or self._initial,
                fence=self._members.fence,
                generation=-generation if shut else generation,
                fresh=fresh,
                done=EARLY if self._early else 0,
                given=data_order.ledger_of(state, self._options.order) if state else {},
            )
            if self._saver:
                self._saver.restored(state, lost=self._has_led)
            self._options.counters.restores += not fresh
            self._reporter.restored(step)
            if fresh:  # before any worker can have trained
                self._reporter.begin(0)
        seconds = round(time.monotonic() - started, 3)
        event("initialized" if fresh else "restored", term=self._members.term, step=step, seconds=seconds)

    def _watch(self) -> None:
        """Poll the servers, report, save and restore until training is over."""
        self._has_led = True
        while True:
            self._check_abort()
            self._stop.check()
            self._options.history.tend()
            self._members.warm_up_next()
            if self._members.view_changer and self._members.is_due:
                with self._stop.recovering():  # without a quorum, it waits
                    self._members.establish(readmit=True)
                self._leave_to_successor(self._members.view_changer)
                self._members.follow_layout(self._stop.check)
            if self._decide() is not ChiefAction.PROCEED:
                self._establish_term()
            if self._is_over():
                return
            if not self._members.is_layout_wanted:
                self._stop.check_layout(can_save=self._saver is not None)
            done = self._trained()
            self._reporter.begin(done, self._shards[0].step, self._snapshot)
            if self._reporter.stops(self._shards[0].step):
                self._early = True
                event("ended_early", step=self._shards[0].step, reason="a callback has set model.stop_training")
                return
            self._reporter.report(self._shards[0].step, done, self._snapshot, self._members.fence)
            if self._saver and self._saver.is_due():
                with self._copied(self._saver.plan()) as state:
                    self._reporter.saving(state.step)
                    self._saver.try_to_save(state)
            changer = self._members.view_changer
            if not (changer and changer.transfer(POLL)):
                time.sleep(POLL)

    def _leave_to_successor(self, view_changer: ViewChanger) -> None:
        """Let the process be renewed, if it is due, while the job can do without a chief for some seconds.

        The state is saved first, because the next run's checkpoint interval starts at its beginning. The view is
        renewed last, and holds as long as its leases.

        Raises:
            RenewalDueError: the process is to be renewed.
        """
        if self._reporter.is_busy or not self._may_be_renewed(view_changer.is_quiet):
            return
        if self._saver:
            with self._copied() as state:
                self._saver.try_to_save(state)
        self._members.establish(readmit=True)
        self._stop.check()
        if self._may_be_renewed(view_changer.is_quiet):
            raise RenewalDueError(epoch=encoding.ballot(view_changer.fence).epoch)

    @contextmanager
    def _copied(self, plan: SavePlan = FULL) -> Iterator[ServerState]:
        """Copy the state on the servers, which train on meanwhile, and mark it if training ended early."""
        copied = self._admin.copied(plan, fence=self._members.fence, wait=self._waiting(), between=self._while_saving)
        with self._options.counters.busy(), copied as state:
            self._admin.resume_steps()
            ordered = data_order.noted(state, self._options.order)
            yield ordered.ended() if self._early else ordered

    def _while_saving(self) -> None:
        self._check_abort()
        if not self._is_shut:  # a renewed view would accept updates again, which the saved state lacks
            self._members.hold()

    def _snapshot(self) -> StateParts:
        """Return the state with all tensors in memory, for callbacks and the validation."""
        with self._copied() as state:
            return whole(state)

    def _trained(self) -> int:
        """Return the number of steps, or of splits of assigned data, that are trained."""
        return self._admin.data_trained() if self._options.by_splits else self._shards[0].step

    def _is_over(self) -> bool:
        """Return whether all steps are applied, all data is trained, or training ended early."""
        options = self._options
        self._early |= any(shard.early for shard in self._shards)
        if self._early or options.training.is_over(self._shards[0].step):
            return True
        if options.positions is None:
            return False
        position, held = self._admin.data_left()
        return position >= options.positions and not held

    def _save_last(self) -> StateParts:
        """Save the last state and return it as it is on disk; in a job without a folder, return it in memory."""
        with self._copied() as state:
            if self._saver is None:
                return whole(state)
            self._saver.save_last(state)
            return self._saver.read_back(state)

    def _waiting(self) -> Callable[[], None]:
        """Return a function to call while workers push dense parameters; it raises if no worker can."""

        def check() -> None:
            self._while_saving()
            if self._decide() is not ChiefAction.PROCEED:
                raise FencedError("the servers' state has changed")

        return wait_for_workers(check, self._admin.workers_present)

    def _end(self) -> StateParts:
        """Mark training as done on all servers, wait for the workers to leave, and save the last state."""
        self._admin.flush_dense(self._waiting())
        self._admin.set_record(self._members.fence, done=EARLY if self._early else 1)
        deadline = time.monotonic() + GOOD_BYE_SECONDS
        while (left := self._admin.workers_present()) and time.monotonic() < deadline:
            self._pause()
        if left:
            event("workers_left_behind", number=len(left))
        self._options.history.workers_left()
        final = self._save_last()
        self._reporter.finish(final, self._trained(), early=self._early, wait=self._pause)
        return self._with_best(final)

    def _with_best(self, final: StateParts) -> StateParts:
        """Return the last state with the parameters that a callback has restored, and restore them on the servers."""
        if (best := self._reporter.best()) is None:
            return final
        changed = with_weights(whole(final), best, self._model.trained_by)
        done = EARLY if self._early else 1
        self._admin.restore(changed, fence=self._members.fence, generation=new_generation(), fresh=False, done=done)
        if self._saver:
            self._saver.replace_last(changed)
        event("best_restored", step=changed.step)
        return self._saver.read_back(changed) if self._saver else changed

    def _pause(self) -> None:
        self._check_abort()
        self._stop.check()
        time.sleep(POLL)
