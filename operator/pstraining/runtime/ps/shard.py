"""One parameter server's part of the state, as operations to emit inside a traced function.

A shard consists of its segments, clones of the optimizers with their slots beside them, a record, the worker registry,
and the update mode's variables. Every write happens in the server's critical section, after a check of the record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from pstraining.runtime.model.keras_model import STATE, Model, Touched
from pstraining.runtime.model.optimizers import clipping
from pstraining.runtime.model.optimizers.learning_rates import rate_variables
from pstraining.runtime.model.optimizers.sparse_optimizer import TableOptimizers
from pstraining.runtime.model.partition import Layout, Segment
from pstraining.runtime.model.segment_optimizer import SegmentOptimizer, SlotPlace, TensorVariables
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, unless, with_dependencies
from pstraining.runtime.ps.data_ledger import Ledger
from pstraining.runtime.ps.member import LockstepRounds, MemberState, ModeVariables, UpdatePause
from pstraining.runtime.ps.messages import SessionToken
from pstraining.runtime.ps.record import ANY_GENERATION, ONE_STEP, RECORD_SIZE, RecordField
from pstraining.runtime.ps.tables import dynamic_table
from pstraining.runtime.ps.tables.arena import Arena
from pstraining.runtime.ps.tables.touched_rows import records_on
from pstraining.runtime.ps.tensors import field, with_field
from pstraining.runtime.ps.variables import PSVariable, variables_on
from pstraining.runtime.ps.worker_registry import WorkerRegistry


@dataclass(frozen=True)
class ServerHooks:
    """The hooks of an update mode on the servers."""

    name: str = ""
    """A text that must be equal on all tasks of the job; part of the layout's fingerprint."""
    fused: bool = True
    """Whether fused kernels may replace Keras's arithmetic."""
    make_mode_state: Callable[["Shard"], ModeVariables] | None = None
    """Creates the mode's variables on a server, after its segments and vectors."""
    with_ledger: bool = False
    """Whether the first server assigns the data."""
    lockstep_workers: int = 0
    """Number of workers that receive their splits together; 0 if each worker receives one on request."""
    paired: bool = False
    """Whether standbys apply the same updates."""
    agrees_on_norms: bool = False
    """Whether every process knows the norms of tensors that are cut before it applies a step."""
    on_newcomer: Callable[["Shard", Tensor, Tensor], list[Operation]] = lambda shard, worker, newcomer: []
    """Emits a server's reaction to the registration of a worker's process; the last argument is 1 for a new process."""
    follow: Callable[["Shard", Tensor, Tensor], Tensor] | None = None
    """Emits applying the step after a given one, which others have applied; its arguments are the session and that
    step. None if servers are not in lockstep."""
    member_round_ops: Callable[["Shard", bool], LockstepRounds] | None = None
    """Returns a member's part in rounds, as a standby or as a primary; see `updates.synchronous.two_phase_commit`. None
    if standbys do not apply the same steps."""
    pause_steps: Callable[["Shard", Tensor], Tensor] | None = None
    """Emits the request that workers push their dense parameters and apply no step for some seconds. It returns the
    server's step, and by how many steps its dense parameters are behind. int64[2]. None if they never are."""
    pause: UpdatePause | None = None
    """A pause of updates; None if an update is never on some servers only once no step is applied."""


class Shard:
    """The named variables of one server. Creating it sends nothing.

    Args:
        device: the server's device.
        container: the job's container there.
        layout: the layout of the whole model.
        ps: the server's number.
        model: the program's model, whose optimizers are cloned.
        updates: the hooks of the update mode, whose variables are `mode_state`.
        acceptor_size: length of the acceptor's vector, see `replication.encoding`; 0: the job has no standbys.
    """

    def __init__(
        self,
        *,
        device: str,
        container: str,
        layout: Layout,
        ps: int,
        model: Model,
        updates: ServerHooks,
        acceptor_size: int = 0,
    ) -> None:
        self.device, self.container, self.number = device, container, ps
        self.program, self.norms = len(model.optimizers), clipping.norms_of(model.trained_by, layout)
        self.segments, self.tables, self.frozen_segments = layout.on(ps), layout.tables_on(ps), layout.frozen_on(ps)
        self.held = [*self.segments, *self.tables, *self.frozen_segments]
        """The segments of `values`."""
        created: list[PSVariable] = []
        with variables_on(device, container=container, prefix=str(ps), created=created):
            self.record = tf.Variable(tf.zeros([RECORD_SIZE], tf.int64))
            self.member_state = MemberState.create(acceptor_size) if acceptor_size else None  # with standbys
            self.losses = tf.Variable(tf.zeros([2], tf.float64))
            """Sum of losses times samples, and samples, since the chief last took them; used on the first server."""
            self.registry = WorkerRegistry()
            self.optimizer = SegmentOptimizer.of(model, layout, ps, fused=updates.fused)
            self.loss_scale = self.optimizer.loss_scale
            self.vectors: list[PSVariable] = self.optimizer.vectors  # `TensorVariables` behave as one
            rows = [
                _zeros((length, table.slices[0].width), table.dtype, len(self.segments) + number)
                for number, table in enumerate(self.tables)
                for length in [1 if model.row_initializers[number] else table.slices[0].rows]
            ]
            self.rows: list[PSVariable] = [table.value for table in rows]
            """The server's rows of every table; each of shape [rows, width]."""
            self._table_optimizers = TableOptimizers(model.optimizers, rows, model.table_groups) if rows else None
            self.dynamic = dynamic_table.tables_on(ps, layout.ps, container, model, self.rows, self._slots_of_tables())
            """The tables with rows by key, by the numbers of the tables."""
            self.row_records = records_on(device, container, ps, self.tables, without=self.dynamic)
            of_tables = self._table_optimizers.clones if self._table_optimizers else {}
            self.rates = rate_variables([*self.optimizer.clones.items(), *of_tables.items()])
            """Numbers of the program's optimizers, and their learning rates on this server; without schedules."""
            leads = updates.with_ledger and ps == 0
            self.ledger = Ledger(updates.lockstep_workers, copied=updates.paired) if leads else None
            self.mode_state = updates.make_mode_state(self) if updates.make_mode_state else None
            first = len(self.segments) + len(self.tables)
            frozen = [_zeros((part.size,), part.dtype, first + n) for n, part in enumerate(self.frozen_segments)]
            self.frozen: list[PSVariable] = [vector.value for vector in frozen]
            """Vectors that no step changes."""
        self.slots: dict[SlotPlace, PSVariable] = dict(self.optimizer.slots)
        for slot, table, value in self._table_optimizers.slots() if self._table_optimizers else ():
            self.slots[SlotPlace(slot, len(self.segments) + table)] = value
        """The optimizers' slots; tables come after the segments."""
        self.scalars: dict[str, PSVariable] = self.optimizer.counters | (self.ledger.saved() if self.ledger else {})
        """The optimizers' counters, and on the first server the ledger's variables."""
        self.values = [*self.vectors, *self.rows, *self.frozen]
        """The model's variables: of segments, tables and frozen segments."""
        own_state = [*self.values, *self.slots.values(), *self.scalars.values()]
        own_state += [variable for arena in self.arenas for variable in arena.own]
        parts = [v for joined in own_state if isinstance(joined, TensorVariables) for v in joined.variables]
        written = {id(variable) for variable in (*own_state, *parts, self.record, *(self.member_state or ()))}
        self.rest = [variable for variable in created if id(variable) not in written]
        """Variables that no checkpoint has; a restored server starts them from initial values."""
        of_mode = self.mode_state.transient if self.mode_state else ()
        transient = {id(variable) for variable in (*of_mode, *self.registry.transient)}
        self.copied = [*own_state, *(variable for variable in self.rest if id(variable) not in transient)]
        """Variables that a returning member receives; `not_copied` starts from initial values."""
        self.not_copied = [variable for variable in self.rest if id(variable) in transient]

    @property
    def arenas(self) -> list[Arena]:
        """Return the arenas of all tables with rows by key."""
        return [arena for table in self.dynamic.values() for arena in table.arenas.values()]

    @property
    def dense(self) -> list[PSVariable]:
        """Return all state except that of tables: vectors, the optimizers' vectors, and their counters."""
        return self.optimizer.state

    def begins_as_parameters(self, place: SlotPlace) -> bool:
        """Return whether a new slot begins as a copy of the parameters, for example an average of them."""
        return place.slot == "average" or any(slot is self.slots[place] for slot, _ in self.optimizer.copies)

    # Every method below emits operations, in the critical section unless its docstring says otherwise.

    def read(self) -> Tensor:
        """Return the record, zeros if the server is empty; outside the section. int64[5]."""
        with tf.device(self.device):
            return self.record_or_zeros()

    def pull(self, dtype: str | None = None) -> list[Tensor]:
        """Return the current parameters; outside the section. One vector per segment, each of shape [segment.size].

        Args:
            dtype: the type in which trained float32 vectors are sent; None: as they are.
        """
        with tf.device(self.device):
            vectors = [vector.read_value() for vector in self.vectors]
            return [
                tf.cast(vector, dtype) if dtype and segment.dtype == "float32" and segment.group != STATE else vector
                for vector, segment in zip(vectors, self.segments, strict=True)
            ]

    def raise_fence(self, observed: Tensor, fence: Tensor) -> Tensor:
        """Raise the shard's fence to `fence` if it is still `observed`; return 1 if it applied."""

        def body(observed: Tensor, fence: Tensor) -> Tensor:
            record = self.record_or_zeros()

            def apply() -> Tensor:
                raised = with_field(record, RecordField.FENCE, fence)
                return with_dependencies([self.record.assign(raised, read_value=False)], applied())

            allowed = tf.equal(field(record, RecordField.FENCE), observed) & (fence >= field(record, RecordField.FENCE))
            return tf.cond(allowed, apply, not_applied)

        return critical(self.device, self.container, [observed, fence], body)

    def set_record(self, fence: Tensor, observed: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Overwrite the record's fields where `mask` is 1, under the fence; return 1 if it applied.

        Args:
            fence: the chief's fence. int64[].
            observed: the generation that the record must have, or ANY_GENERATION. int64[].
            values, mask: new values of all fields; 1 for each field that is written. int64[5].
        """

        def body(fence: Tensor, observed: Tensor, values: Tensor, mask: Tensor) -> Tensor:
            record = self.record.read_value()

            def apply() -> Tensor:
                merged = tf.where(tf.equal(mask, 1), values, record)
                return with_dependencies([self.record.assign(merged, read_value=False)], applied())

            unchanged = tf.equal(observed, ANY_GENERATION) | tf.equal(field(record, RecordField.GENERATION), observed)
            return tf.cond(tf.equal(field(record, RecordField.FENCE), fence) & unchanged, apply, not_applied)

        return critical(self.device, self.container, [fence, observed, values, mask], body)

    def in_session(self, record: Tensor, session: Tensor) -> Tensor:
        """Return whether updates of this session are accepted: see `is_session`; False if training is over. bool[]."""
        return self.is_session(record, session) & tf.equal(field(record, RecordField.DONE), 0)

    def is_session(self, record: Tensor, session: Tensor) -> Tensor:
        """Return whether this is the current session, also if training is over. bool[].

        Args:
            record: as read in the critical section. int64[5].
            session: see `messages.SessionToken`. For an inactive set it carries the negative generation: the session of
                a chief that lets a member follow the others. int64[2].
        """
        fence, generation = SessionToken.unpack(session)
        same = tf.equal(field(record, RecordField.FENCE), fence)
        same &= tf.equal(field(record, RecordField.GENERATION), generation)
        if self.member_state is not None:
            same &= (field(record, RecordField.GENERATION) < 0) | self.member_state.is_leased()
        return same

    def apply(
        self,
        vectors: Sequence[Tensor],
        touched: Sequence[Touched],
        losses: Tensor,
        *,
        moves: bool = False,
        state_weight: Callable[[Segment], Tensor] | None = None,
        overflowed: Tensor | None = None,
        trust: Tensor | None = None,
    ) -> list[Operation]:
        """Apply one step, inside a critical section; return the operations to wait for.

        Args:
            vectors: one per segment: its gradient, or the change of a segment of state.
            touched: for each table, local row indices without repetition, and the rows' gradients.
            losses: sum of the step's losses times their samples, and number of samples. float64[2].
            moves: whether the vectors of trained segments are changes as well, computed by the workers' optimizers.
            state_weight: emits the fraction by which each element of a segment of state moves towards its vector; None
                if the vector is a change.
            overflowed: whether a gradient of the scaled loss is not finite: then only segments of state change. bool[].
            trust: see `SegmentOptimizer.train`.
        """
        changes = list(vectors)
        for number, segment in enumerate(self.segments):
            if state_weight is not None and segment.group == STATE:
                changes[number] = (vectors[number] - self.vectors[number].read_value()) * state_weight(segment)
        trained = [] if moves else unless(overflowed, lambda: self.optimizer.train(changes, trust))
        with tf.control_dependencies(trained):
            self.optimizer.add(changes, moves=moves)
        return self.apply_rows(touched, losses, overflowed=overflowed)

    def apply_rows(
        self, touched: Sequence[Touched], losses: Tensor, *, overflowed: Tensor | None = None
    ) -> list[Operation]:
        """Apply one step to the tables only, and count it; see `apply`."""
        scale, moved = self.loss_scale, list[Operation]()
        if (tables := self._table_optimizers) is not None:
            step = field(self.record.read_value(), RecordField.STEP)
            if scale:
                step -= scale.skipped()  # as Keras's iterations
            moved = unless(overflowed, lambda: self._apply_rows(tables, step, touched))
            fixed = {n: rows for n, (rows, _) in enumerate(touched) if n not in self.dynamic}
            moved += self.row_records.record(fixed)
        moved += scale.skip(overflowed) if scale is not None and overflowed is not None else []
        with tf.control_dependencies(moved):
            return self.count_step(losses)

    def fetch_rows(self, table: int, indices: Tensor) -> Tensor:
        """Return current rows of a table by their local indices, or keys. int64[n] to [n, width].

        Outside the section, unless keys can lose their rows.
        """
        dynamic = self.dynamic.get(table)
        if dynamic is not None and dynamic.moves_rows:
            return critical(self.device, self.container, [indices], dynamic.fetch)
        with tf.device(self.device):
            if dynamic is not None:
                return dynamic.fetch(indices)
            variable = self.rows[table]
            return tf.raw_ops.ResourceGather(resource=variable.handle, indices=indices, dtype=variable.dtype)

    def _apply_rows(self, tables: TableOptimizers, step: Tensor, touched: Sequence[Touched]) -> list[Operation]:
        """Apply one step to touched rows, after an assignment of rows to new keys of dynamic tables."""
        dynamic = self.dynamic
        placed = [dynamic[n].placed(own, step) if n in dynamic else own for n, own in enumerate(touched)]
        updated = tables.apply(step, placed)
        with tf.control_dependencies(updated):
            return [*updated, *(done for table in dynamic.values() for done in table.expire(step))]

    def _slots_of_tables(self) -> dict[int, dict[str, PSVariable]]:
        found = dict[int, dict[str, PSVariable]]()
        for slot, table, value in self._table_optimizers.slots() if self._table_optimizers else ():
            found.setdefault(table, {})[slot] = value
        return found

    def count_step(self, losses: Tensor) -> list[Operation]:
        """Count one step without changing the parameters; return the operations to wait for."""
        return [
            self.record.assign_add(tf.constant(ONE_STEP, tf.int64), read_value=False),
            self.losses.assign_add(losses, read_value=False),
        ]

    def take_losses(self) -> Tensor:
        """Return the sum of losses times samples, and the number of samples, since the last call. float64[2]."""

        def body() -> Tensor:
            taken = self.losses.read_value()
            with tf.control_dependencies([taken]):
                return with_dependencies([self.losses.assign(tf.zeros([2], tf.float64), read_value=False)], taken)

        return critical(self.device, self.container, [], body)

    def register(self, on_newcomer: Callable[[Tensor, Tensor], list[Operation]], *sender: Tensor) -> Tensor:
        """Register a worker's process unless a newer process has its index; return 1 if it is registered. int64[].

        Args:
            on_newcomer: emits the reaction to a newer process, from the index and whether the process is newer.
            sender: the arguments of `WorkerRegistry.register`.
        """

        def body(worker: Tensor, incarnation: Tensor, workers: Tensor) -> Tensor:
            newcomer = self.registry.is_newer(worker, incarnation)
            changed = on_newcomer(worker, newcomer)
            with tf.control_dependencies(changed):
                return self.registry.register(worker, incarnation, workers)

        return critical(self.device, self.container, sender, body)

    def deregister(self, worker: Tensor, incarnation: Tensor) -> Tensor:
        """Deregister a worker's process; return 1 if it was registered. int64[]."""
        return critical(self.device, self.container, [worker, incarnation], self.registry.deregister)

    def heartbeat(self, worker: Tensor, incarnation: Tensor, report: Tensor) -> Tensor:
        """Record a heartbeat and its report; return 1 if the process is registered. int64[]."""

        def body(worker: Tensor, incarnation: Tensor, report: Tensor) -> Tensor:
            current = self.registry.is_current(worker, incarnation)
            return tf.cond(
                current, lambda: with_dependencies(self.registry.record_report(worker, report), applied()), not_applied
            )

        return critical(self.device, self.container, [worker, incarnation, report], body)

    def set_learning_rates(self, fence: Tensor, rates: Tensor) -> Tensor:
        """Overwrite the optimizers' learning rates that are numbers, under the fence; return 1 if it applied.

        Args:
            fence: the chief's fence. int64[].
            rates: for each of the program's optimizers its learning rate. float64[optimizers].
        """

        def body(fence: Tensor, rates: Tensor) -> Tensor:
            def apply() -> Tensor:
                written = [
                    variable.assign(tf.cast(rates[index], variable.dtype), read_value=False)
                    for index, variable in self.rates
                ]
                return with_dependencies(written, applied())

            return tf.cond(tf.equal(field(self.record.read_value(), RecordField.FENCE), fence), apply, not_applied)

        return critical(self.device, self.container, [fence, rates], body)

    def learning_rates(self) -> Tensor:
        """Return the optimizers' learning rates, NaN for a schedule and for one without variables on the server.

        Outside the section. float64[optimizers].
        """
        with tf.device(self.device):
            known = {index: tf.cast(variable.read_value(), tf.float64) for index, variable in self.rates}
            return tf.stack([known.get(index, tf.constant(float("nan"), tf.float64)) for index in range(self.program)])

    def record_or_zeros(self) -> Tensor:
        """Return the record, zeros if the server is empty. int64[5]."""
        return tf.cond(self.record.initialized(), self.record.read_value, lambda: tf.zeros([RECORD_SIZE], tf.int64))


def _zeros(shape: tuple[int, ...], dtype: str, number: int) -> keras.Variable:
    """Return a variable whose name has its number for the optimizer's clone; see `optimizer.state_of`."""
    return keras.Variable(initializer="zeros", shape=shape, dtype=dtype, name=f"segment{number}")
