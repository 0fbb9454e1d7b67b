"""Administration of the training state on all servers: fencing, restoring and saving, as traced functions."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.checkpoint.state import FULL, SavePlan, State, StateParts, whole
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.recovery import ORDER_BITS
from pstraining.runtime.chief.state.server_parts import ServerParts
from pstraining.runtime.chief.state.server_state import ServerState
from pstraining.runtime.chief.state.state_copies import StateCopies
from pstraining.runtime.chief.state.state_restore import StateRestore
from pstraining.runtime.model.partition import Array
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps import ledger_ops
from pstraining.runtime.ps.critical_section import applied, with_dependencies
from pstraining.runtime.ps.member import LockstepRounds
from pstraining.runtime.ps.messages import DataLeft
from pstraining.runtime.ps.record import ANY_GENERATION, RECORD_SIZE, RecordField, ShardRecord
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore, int64
from pstraining.runtime.ps.tables.dynamic_table import RowCount, counts_of
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.updates.hybrid.messages import DenseAge

PAUSE_SECONDS: Final = 5.0
"""Seconds for which steps are paused while the chief saves; each call renews the pause."""


class StoreAdmin:
    """The chief's traced functions over a store. Each call returns when every server has replied.

    Args:
        store: the store.
        learners: the number of learners of each shard, which are its last members in the store; None: no member.
    """

    def __init__(self, store: ParameterStore, learners: Sequence[int] | None = None) -> None:
        self.store, self.client = store, store.client
        self._raise_fence = self._on_all(lambda shard, observed, fence: shard.raise_fence(observed, fence))
        self._record = self._on_all(lambda shard, *arguments: shard.set_record(*arguments))
        self.parts = ServerParts(store, self._demand, learners)
        self.copies = StateCopies(self.parts)
        self.restores = StateRestore(self.parts, self.copies)
        self.find_damaged = self.copies.files.find_damaged
        self._rate = self._on_all(lambda shard, *arguments: self._with_rates(shard).set_learning_rates(*arguments))
        self._rates = self._on_primaries(lambda shard: self._with_rates(shard).learning_rates())
        sources = [own.shard for own in self.parts.sources]
        self._follow = self._on(sources, self._emit_follow) if store.updates.follow else None
        pause_steps = store.updates.pause_steps
        self._pause = self._on_all(pause_steps) if pause_steps else None
        first = store.shards[0]
        self._skipped = self._on_first(first.loss_scale.skipped) if first.loss_scale else None
        self._losses = tf.function(self._emit_losses, autograph=False)
        self._by_key = list(first.dynamic)
        self._row_counts = self._on_primaries(_emit_row_counts)
        registry = first.registry
        self._reports = self._on_first(registry.read_reports)
        self._left = tf.function(lambda: self.client.to_local(ledger_ops.left(first)), autograph=False)
        self._alive = self._on_first(registry.list_alive)

    def raise_fence(self, shards: Sequence[ShardRecord], fence: int) -> None:
        """Raise every server's fence to `fence`.

        Args:
            shards: the servers' observed records, the primaries first.
            fence: the chief's fence.

        Raises:
            FencedError: another chief raised a server's fence meanwhile.
        """
        self._demand(self._raise_fence, [(int64(shard.fence), int64(fence)) for shard in shards])

    def restore(
        self,
        state: StateParts,
        *,
        fence: int,
        generation: int,
        fresh: bool,
        done: int = 0,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        """Replace the state on every server by one set, named `generation`.

        Until the set is complete no server counts as initialised, so no worker uses a part of it.

        Args:
            state: the state to write, which is read in parts.
            fence: the chief's fence.
            generation: number of the set.
            fresh: whether to write only the variables, and initialise the optimizer's state.
            done: value of the record's field DONE; not 0 for a finished state.
            given: tensors that replace those of the state, by name.

        Raises:
            FencedError: a server is under another term.
            StateMismatchError: the state belongs to another model or optimizer.
        """
        contents = self.restores.contents(state, fresh=fresh, given=given)
        self.invalidate(fence)
        self.restores.write(contents, fence, fresh=fresh)
        self.complete(fence, step=state.step, generation=generation, done=done)

    def invalidate(self, fence: int) -> None:
        """Let no server count as initialised.

        Raises:
            FencedError: a server is under another term.
        """
        # Each call names the generation that it expects: a late call of a former attempt changes nothing.
        self.set_record(fence, observed=[record.generation for record in self.store.read()], generation=0, done=0)

    def complete(self, fence: int, **fields: int) -> None:
        """Set fields of every server's record at the end of a restore, or during it; see `set_record`."""
        self.set_record(fence, observed=[0] * len(self.store.every), layout=self.store.fingerprint, **fields)

    def set_record(self, fence: int, *, observed: Sequence[int] | None = None, **fields: int) -> None:
        """Set fields of every server's record: generation, done, step, layout.

        Args:
            fence: the chief's fence.
            observed: the generations that the servers must have, in the order of `store.every`; None: any.
            fields: the new values by name.

        Raises:
            FencedError: a server is under another term, or has another generation.
        """
        places = {
            "generation": RecordField.GENERATION,
            "done": RecordField.DONE,
            "step": RecordField.STEP,
            "layout": RecordField.LAYOUT,
        }
        values, mask = np.zeros([2, RECORD_SIZE], np.int64)
        for name, value in fields.items():
            values[places[name]], mask[places[name]] = value, 1
        generations = [ANY_GENERATION] * len(self.store.every) if observed is None else observed
        fixed = tf.constant(values), tf.constant(mask)
        self._demand(self._record, [(int64(fence), int64(generation), *fixed) for generation in generations])

    def flush_dense(self, wait: Callable[[], None]) -> int | None:
        """Pause steps for some seconds, and wait until workers have pushed newer dense parameters.

        Args:
            wait: called repeatedly until the push is done; may raise to end the wait.

        Returns:
            The global step of the servers' state; None in modes whose workers have no newer parameters.
        """
        while self._pause:
            found = self.client.call(self._pause, self._same(tf.constant(PAUSE_SECONDS, tf.float64)))
            ages = [DenseAge.unpack(age) for age in found]
            steps = {age.step for age in ages}
            if len(steps) == 1 and not any(age.behind for age in ages):
                return steps.pop()
            wait()
        return None

    def resume_steps(self) -> bool:
        """Resume steps after `flush_dense`; return whether workers have no newer dense parameters than the servers."""
        if self._pause is None:
            return True
        found = self.client.call(self._pause, self._same(tf.constant(0.0, tf.float64)))
        return not any(DenseAge.unpack(age).behind for age in found)

    def _same(self, argument: Tensor) -> list[tuple[Tensor]]:
        return [(argument,)] * len(self.store.every)

    def snapshot(self, *, fence: int, wait: Callable[[], None] = lambda: time.sleep(0.01)) -> State:
        """Return the state with all tensors in memory; see `copied`."""
        with self.copied(fence=fence, wait=wait) as state:
            return whole(state)

    @contextmanager
    def copied(
        self,
        plan: SavePlan = FULL,
        *,
        fence: int,
        wait: Callable[[], None],
        between: Callable[[], None] = lambda: None,
    ) -> Iterator[ServerState]:
        """Copy the state, consistent on each server, and yield it; the servers keep the copy until the block's end.

        Args:
            plan: the copy that this one may continue.
            fence: the chief's fence.
            wait: called while workers push newer dense parameters; may raise to end the wait.
            between: called between the calls that create and read the copy; may raise to end it.

        In mode Async servers are a few updates apart. In modes with rounds all servers are at one step: a step that a
        worker left incomplete is applied on the other servers first.

        Raises:
            FencedError: a server is under another term.
        """
        try:
            yield self._copy(fence, wait, between, plan)
        except ShardLostError:  # the chief's next term releases the copy
            raise
        except BaseException:
            self.release(fence)
            raise
        self.release(fence)

    def release(self, fence: int) -> None:
        """Let every server delete the copy that it keeps for this chief or its predecessor."""
        self.copies.release(fence)

    def _copy(self, fence: int, wait: Callable[[], None], between: Callable[[], None], plan: SavePlan) -> ServerState:
        if plan.base is not None and not self.copies.continues(fence, plan.base):
            plan = plan._replace(base=None)
        token = self.copies.copy_ahead(fence, between) if plan.base is None else time.time_ns()
        while True:
            flushed = self.flush_dense(wait)
            records, state = self.copies.copy(fence, token, between, plan)
            for index, record in enumerate(records):
                if int(record[RecordField.FENCE]) != fence:
                    raise FencedError(f"parameter server {index} is under term {int(record[RecordField.FENCE])}")
            generations = {int(record[RecordField.GENERATION]) for record in records}
            steps = [int(record[RecordField.STEP]) for record in records]
            if self._follow is None or min(steps) == max(steps):
                if len(generations) > 1 or 0 in generations:
                    raise FencedError("the servers do not hold one complete set of parameters")
                if flushed in (None, steps[0]):
                    return replace(state(steps[0]), updates=tuple(steps))
                continue
            session = tf.constant([fence, records[0][RecordField.GENERATION]], tf.int64)
            self.client.call(self._follow, [(session, int64(min(steps)))] * len(steps))

    def set_learning_rates(self, fence: int, rates: Sequence[float | None]) -> None:
        """Set the learning rate of each optimizer on every server; a restore resets them to the program's.

        Args:
            fence: the chief's fence.
            rates: one for each of the program's optimizers; None for a schedule.

        Raises:
            FencedError: a server is under another term.
        """
        values = tf.constant([math.nan if rate is None else rate for rate in rates], tf.float64)
        self._demand(self._rate, [(int64(fence), values)] * len(self.store.every))

    def learning_rates(self) -> list[float | None]:
        """Return the learning rate of each optimizer on the servers; None for a schedule."""
        rates = np.asarray(self.client.call(self._rates, [()] * len(self.store.shards)))
        return [next((float(rate) for rate in own if np.isfinite(rate)), None) for own in rates.T]

    def skipped_steps(self) -> int:
        """Return the number of steps that overflowed, which optimizers do not count; 0 without loss scaling."""
        return int(self.client.call(self._skipped)) if self._skipped else 0

    def registered(self) -> Array:
        """Return the incarnation of each worker that is registered on the first server, by index; 0: none."""
        return self.store.registered()

    def mark_owned(self) -> None:
        """Mark the state as owned by the runtime on all servers: their launchers keep it when a new chief starts."""
        try:
            self.mark(*(f"{contract.RUN_DIR}/{name}" for name in contract.OWNED_MARKERS))
        except tf.errors.OpError as error:  # a new chief then restores empty servers
            event("not_owned", reason=str(error).partition("\n")[0])

    def mark(self, *files: str, contents: str = "") -> None:
        """Write files on each server's disk, including servers without a shard."""

        def write(device: str) -> Tensor:
            with tf.device(device):
                markers = [tf.raw_ops.WriteFile(filename=file, contents=contents) for file in files]
                written = with_dependencies(markers, applied())
            return self.client.to_local(written)

        there = [self.client.shards[index] for index in sorted(self.client.connected)]
        self.client.call(tf.function(lambda: [write(device) for device in there], autograph=False))

    def have_file(self, name: str) -> bool:
        """Return whether all servers in use have a file."""

        def emit(shard: Shard, name: Tensor) -> Tensor:  # TensorFlow would look up a constant in this process
            with tf.device(shard.device):
                return tf.size(tf.io.matching_files(name))

        there = self.client.call(self._on_all(emit), [(tf.constant(name),)] * len(self.store.every))
        return all(int(number) for number in there)

    def take_losses(self) -> tuple[float, float]:
        """Return the sum of the workers' losses times samples, and the number of samples, since the last call."""
        total, number = self.client.call(self._losses)
        return float(total), float(number)

    def reports(self) -> list[str]:
        """Return each worker's last report, by index; empty without a report."""
        return [report.decode() for report in self.client.call(self._reports).tolist()]

    def row_counts(self) -> dict[str, tuple[int, dict[RowCount, int]]]:
        """Return the number of rows and the counts of each table with rows by key, by its path."""
        if not self._by_key:
            return {}
        found = np.sum(self.client.call(self._row_counts, [()] * len(self.store.shards)), 0)
        paths = [self.store.model.tables[number].path for number in self._by_key]
        return {
            path: (int(rows), dict(zip(RowCount, counts, strict=True)))
            for path, (rows, *counts) in zip(paths, found.tolist(), strict=True)
        }

    def data_left(self) -> tuple[int, int]:
        """Return the first unassigned position of the data, and the number of splits in training."""
        left = DataLeft.unpack(self.client.call(self._left))
        return left.following, left.held

    def data_trained(self) -> int:
        """Return the number of trained splits before the first untrained position."""
        return DataLeft.unpack(self.client.call(self._left)).first

    def workers_present(self) -> tuple[int, ...]:
        """Return the indices of the registered workers with recent heartbeats, in ascending order."""
        return tuple(self.client.call(self._alive).tolist())

    def _on_all(self, emit: Callable[..., Tensor]) -> TracedFunction:
        """Return a traced function over a list of arguments, a tuple per server, that returns a list of results."""
        return self._on(self.store.every, emit)

    def _on_primaries(self, emit: Callable[..., Tensor]) -> TracedFunction:
        """Return a function as `_on_all` does, over the primaries."""
        return self._on(self.store.shards, emit)

    def _on_first(self, emit: Callable[[], Tensor]) -> TracedFunction:
        """Return a traced function that runs the emitted operations on the first server."""

        def there() -> Tensor:
            with tf.device(self.store.shards[0].device):
                found = emit()
            return self.client.to_local(found)

        function: TracedFunction = tf.function(there, autograph=False)
        return function

    def _on(self, shards: Sequence[Shard], emit: Callable[..., Tensor]) -> TracedFunction:
        def everywhere(arguments: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
            return [self.client.to_local(emit(shard, *own)) for shard, own in zip(shards, arguments, strict=True)]

        function: TracedFunction = tf.function(everywhere, autograph=False)
        return function

    def _emit_follow(self, shard: Shard, session: Tensor, step: Tensor) -> Tensor:
        """Emit applying the step after `step`, which others have applied, on a primary or a standby. int64[]."""
        updates = self.store.updates
        if updates.member_round_ops is not None:
            return updates.member_round_ops(shard, shard in self.store.standbys).follow(session, step)
        if updates.follow is None:
            raise ValueError("servers of this update mode are not in lockstep, and follow no step")
        return updates.follow(shard, session, step)

    def _with_rates(self, shard: Shard) -> Shard | LockstepRounds:
        """Return what sets a server's learning rates: its part in rounds, if its standbys apply the same steps."""
        make = self.store.updates.member_round_ops
        return shard if make is None else make(shard, False)

    def _emit_losses(self) -> Tensor:
        """Take the losses of the first server and its standbys, which have equal sums."""
        taken = [shard.take_losses() for shard in (self.store.shards[0], *self.store.standbys_of[0])]
        with tf.control_dependencies(taken):
            return self.client.to_local(taken[0])

    def _demand(self, function: TracedFunction, *arguments: object) -> None:
        """Call a function whose result is 1 on every server that accepts the chief's fence."""
        replies = self.client.call(function, *arguments)
        if refused := [index for index, reply in enumerate(replies) if not int(reply)]:
            raise FencedError(f"parameter servers {refused} are under another term, or hold another set of parameters")


def _emit_row_counts(shard: Shard) -> Tensor:
    with tf.device(shard.device):
        return counts_of(list(shard.dynamic.values()))


def new_generation(order: int = 0) -> int:
    """Return a number that no earlier set of parameters had; `order`: see `recovery.decide`."""
    return (time.time_ns() // 1_000_000 << ORDER_BITS) + order
