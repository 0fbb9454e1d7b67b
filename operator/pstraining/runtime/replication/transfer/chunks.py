"""A shard's state in chunks, which a learner receives while it applies every step.

A step updates an element of a vector by the element's own slots and gradient, and by the optimizer's counters and
rates. A learner has the counters and rates from the beginning, when no steps are applied. So if a range
of a vector and its slots is correct after one step, it is correct after every later step.

A vector's pull shadow depends on the whole vector, and is sent after it. If the optimizer uses whole tensors, every
element depends on the others, and the vector is a single chunk. Rows of a table are updated independently. Therefore
chunks have an order, and a learner accepts a chunk only at the step at which the chunk was read.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.model.segment_optimizer import TensorVariables
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import not_applied
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.ps.variables import PSVariable
from pstraining.runtime.replication.acceptor_ops import AcceptorOps, inactive
from pstraining.runtime.replication.messages import NOT_A_LEARNER, AcceptorState, ChunkHeader, StateCopy

CHUNK_BYTES: Final = 4 << 20
"""Approximate size of a chunk: a step moves as much as a whole shard's gradient over the same links."""
CHUNKS_PER_VECTOR_MAX: Final = 32
"""Maximum number of chunks of a vector: accepting one copies the whole vector on its server."""
INCREMENTAL_BYTES: Final = 512 << 20
"""Minimum size of a shard's state for a transfer during training, which needs a second view change: 4.3 s at 1 Gbit/s.

A view change takes half a second to three seconds. A step of a dense model sends a third of its state or more. For a
model of 100 MB, copying 150 MB took no longer than a step, and no step was applied while chunks were sent.
"""


class Slicing(Enum):
    """Extent of a variable that one read or write covers."""

    WHOLE = "all of it"
    RANGE = "some elements"
    ROWS = "some rows, without reading the others"


class Group(NamedTuple):
    """Variables that are sliced at the same boundaries. A chunk is the same part of each variable."""

    slicing: Slicing
    variables: Sequence[PSVariable]


class Chunk(NamedTuple):
    """A part of a group."""

    group: int
    begin: int = 0
    end: int = 0


class ChunkPlan:
    """The chunks of a shard's state."""

    def __init__(self, shard: Shard) -> None:
        self.groups: list[Group] = []
        self.chunks: list[Chunk] = []
        """In the order in which they are sent."""
        small: list[PSVariable] = []
        for number, vector in enumerate(shard.vectors):
            own, is_whole = _with_slots(shard, vector, number), isinstance(vector, TensorVariables)
            held = shard.mode_state.followers(number) if shard.mode_state else ()
            if _bytes(own) > CHUNK_BYTES:
                self._cut(Slicing.WHOLE if is_whole else Slicing.RANGE, own)
                if held:
                    self._cut(Slicing.WHOLE, held)
                continue
            small += [*own, *held]
            if _bytes(small) > CHUNK_BYTES:
                self._cut(Slicing.WHOLE, small)
                small = []
        if small:
            self._cut(Slicing.WHOLE, small)
        for vector in shard.frozen:
            self._cut(Slicing.RANGE, [vector])
        for table, rows in enumerate(shard.rows):
            if table not in shard.dynamic:
                self._cut(Slicing.ROWS, _with_slots(shard, rows, len(shard.segments) + table))
        self.variables = [variable for group in self.groups for variable in group.variables]
        given = {id(variable) for variable in self.variables}
        self.small_state = [variable for variable in shard.copied if id(variable) not in given]
        """All other variables: step counters, and variables that steps do not update."""

    @property
    def bytes(self) -> int:
        """Return the size of all chunks."""
        return _bytes(self.variables)

    def _cut(self, slicing: Slicing, variables: Sequence[PSVariable]) -> None:
        number = len(self.groups)
        self.groups.append(Group(slicing, variables))
        if slicing is Slicing.WHOLE:
            self.chunks.append(Chunk(number))
            return
        length = variables[0].shape[0]
        most = max(1, CHUNK_BYTES * length // _bytes(variables)) if length else 1
        if slicing is Slicing.RANGE:
            most = max(most, math.ceil(length / CHUNKS_PER_VECTOR_MAX))
        self.chunks += [Chunk(number, begin, min(begin + most, length)) for begin in range(0, length, most)]


def _is_large(shards: Sequence[Shard]) -> bool:
    """Return whether some server's state is large enough for chunks."""
    return any(ChunkPlan(shard).bytes >= INCREMENTAL_BYTES for shard in shards)


def is_incremental(store: ParameterStore) -> bool:
    """Return whether a returning member receives its state in chunks, while training continues.

    This requires a large state, and an order of steps, which mode Async does not have. In mode Hybrid, workers write
    all dense parameters between two steps, independently of the chunk that is being sent. A table with rows by key
    would grow while its chunks are sent, and is therefore sent between two steps.
    """
    if any(shard.dynamic for shard in store.shards):
        return False
    by_steps = store.updates.follow is not None and store.updates.pause_steps is None
    return store.updates.paired and by_steps and _is_large(store.shards)


class StateTransferOps(AcceptorOps):
    """Emits the operations of both ends of a state transfer."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.plan = ChunkPlan(shard)

    def small_state(self) -> StateCopy:
        """Return the record and `ChunkPlan.small_state`, at one moment."""
        return self._copy(lambda: [variable.read_value() for variable in self.plan.small_state])

    def read_chunk(self, group: int, begin: Tensor, end: Tensor) -> StateCopy:
        """Return the record and a part of a group, at one moment.

        Args:
            group: its number.
            begin: the first element or row. int64[].
            end: the index after the last element or row. int64[].
        """
        slicing, variables = self.plan.groups[group]

        def body(begin: Tensor, end: Tensor) -> StateCopy:
            values = [_read(slicing, variable, begin, end) for variable in variables]
            return StateCopy(self._shard.record_or_zeros(), values)

        return self._critical([begin, end], body)

    def begin(self, incarnation: Tensor, fence: Tensor, copy: StateCopy) -> Tensor:
        """Become a learner under the view of this ballot, before any step of it; return 1 if it is one. int64[].

        Args:
            incarnation: the target process's. int64[].
            fence: the ballot's number. int64[].
            copy: the `small_state` of a member in sync.
        """

        def body(incarnation: Tensor, fence: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            own, own_record = self._state(), self._shard.record_or_zeros()
            addressed = _is_addressed(own, own_record, record, incarnation, fence) & tf.equal(own.ballot, fence)
            has_begun = field(own_record, RecordField.GENERATION) > 0  # it is active, and applies steps

            def write() -> Tensor:
                reset = [*self.plan.variables, *self._shard.not_copied]
                written = [v.assign(v.initial(), read_value=False) for v in reset]
                with tf.control_dependencies([*written, *self._assigned(values)]):
                    return self._write(own._replace(chunks=tf.constant(0, tf.int64)), inactive(record))

            done = tf.cond(addressed & tf.logical_not(has_begun), write, not_applied)
            return tf.maximum(done, tf.cast(addressed & has_begun, tf.int64))

        return self._critical([incarnation, fence, copy.record, *copy.values], body)

    def receive_chunk(self, group: int, header: Tensor, copy: StateCopy) -> Tensor:
        """Take a chunk, if it is the next one and was read at this member's own step.

        Args:
            group: its number.
            header: see `messages.ChunkHeader`. int64[5].
            copy: the chunk, by the source's `read_chunk`.

        Returns:
            The number of chunks received, or NOT_A_LEARNER. int64[].
        """
        slicing, variables = self.plan.groups[group]

        def body(header: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            chunk, own, own_record = ChunkHeader.unpack(header), self._state(), self._shard.record_or_zeros()
            learns = _is_addressed(own, own_record, record, chunk.incarnation, chunk.fence)
            learns &= tf.equal(own.ballot, chunk.fence) & _is_active_as(own_record, record)
            fits = learns & tf.equal(own.chunks, chunk.number) & self._is_at_same_step(own_record, record)

            def write() -> Tensor:
                written = [
                    _written(slicing, variable, chunk.begin, chunk.end, value)
                    for variable, value in zip(variables, values, strict=True)
                ]
                with tf.control_dependencies(written):
                    return self._write(own._replace(chunks=chunk.number + 1))

            received = own.chunks + tf.cond(fits, write, not_applied)
            return tf.where(learns, received, NOT_A_LEARNER)

        return self._critical([header, copy.record, *copy.values], body)

    def finish(self, incarnation: Tensor, fence: Tensor, former: Tensor, copy: StateCopy) -> Tensor:
        """Take the small state from a member that applies no steps; return 1 if it applied. int64[].

        It applies if every chunk was received under the former view, and this member is at the same step.

        Args:
            incarnation: the target process's. int64[].
            fence: the ballot's number, which both have promised. int64[].
            former: the number of the former view's ballot. int64[].
            copy: the other member's `small_state`.
        """

        def body(incarnation: Tensor, fence: Tensor, former: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            own, own_record = self._state(), self._shard.record_or_zeros()
            addressed = _is_addressed(own, own_record, record, incarnation, fence)
            addressed &= self._is_at_same_step(own_record, record)
            whole = tf.equal(own.ballot, former) & tf.equal(own.chunks, len(self.plan.chunks))

            def write() -> Tensor:
                with tf.control_dependencies(self._assigned(values)):
                    return self._write(own._replace(transferred_in=fence), record)

            return tf.cond(addressed & whole, write, not_applied)

        return self._critical([incarnation, fence, former, copy.record, *copy.values], body)

    def _is_at_same_step(self, own: Tensor, record: Tensor) -> Tensor:
        """Return whether both members are at the same step of the same generation. bool[]."""
        same = tf.equal(tf.abs(field(own, RecordField.GENERATION)), tf.abs(field(record, RecordField.GENERATION)))
        return same & tf.equal(field(own, RecordField.STEP), field(record, RecordField.STEP))

    def _assigned(self, values: Sequence[Tensor]) -> list[Operation]:
        pairs = zip(self.plan.small_state, values, strict=True)
        return [variable.assign(value, read_value=False) for variable, value in pairs]


def _is_addressed(own: AcceptorState, own_record: Tensor, record: Tensor, incarnation: Tensor, fence: Tensor) -> Tensor:
    """Return whether this process is addressed, and it and the source are under the ballot. bool[]."""
    both = tf.equal(field(own_record, RecordField.FENCE), fence) & tf.equal(field(record, RecordField.FENCE), fence)
    return tf.equal(own.incarnation, incarnation) & both & tf.not_equal(field(record, RecordField.GENERATION), 0)


def _is_active_as(own: Tensor, record: Tensor) -> Tensor:
    """Return whether this member applies steps of the source's generation. bool[]."""
    return (field(own, RecordField.GENERATION) > 0) & tf.equal(
        field(own, RecordField.GENERATION), field(record, RecordField.GENERATION)
    )


def _with_slots(shard: Shard, variable: PSVariable, number: int) -> list[PSVariable]:
    """Return a vector, or a table's rows, with the optimizer's slots of the same shape, or of whole tensors."""
    own = [(place, slot) for place, slot in shard.slots.items() if place.segment == number]
    return [variable, *(slot for place, slot in own if place.tensor is not None or slot.shape == variable.shape)]


def _bytes(variables: Sequence[PSVariable]) -> int:
    return sum((variable.shape.num_elements() or 0) * variable.dtype.size for variable in variables)


def _read(slicing: Slicing, variable: PSVariable, begin: Tensor, end: Tensor) -> Tensor:
    match slicing:
        case Slicing.WHOLE:
            return variable.read_value()
        case Slicing.RANGE:
            return variable.read_value()[begin:end]
        case Slicing.ROWS:
            # Without gathering, all rows would be copied: a variable whose rows are written one by one is not shared.
            return tf.raw_ops.ResourceGather(
                resource=variable.handle, indices=tf.range(begin, end), dtype=variable.dtype
            )


def _written(slicing: Slicing, variable: PSVariable, begin: Tensor, end: Tensor, value: Tensor) -> Operation:
    match slicing:
        case Slicing.WHOLE:
            return variable.assign(value, read_value=False)
        case Slicing.RANGE:
            # Slices written in place would make every later read copy the whole vector, in each step.
            own = variable.read_value()
            return variable.assign(tf.concat([own[:begin], value, own[end:]], 0), read_value=False)
        case Slicing.ROWS:
            return tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle, indices=tf.range(begin, end), updates=value
            )
