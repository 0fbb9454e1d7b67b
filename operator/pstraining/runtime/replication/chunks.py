"""A shard's state in pieces, which a member that comes back is given while it takes part in every step.

A step moves an element of a vector by the element's own slots and gradient, and by the optimizer's counters and rates.
A learner has those last ones from the beginning, when no steps are made. So a range of a vector together with its slots
that is right after one step is right after every later one. What workers hold of a vector (its shadow) follows all of
it, and comes when all of it is there; a table's rows are moved each by itself. Therefore pieces have an order, and each
is taken if it is of the learner's own step alone.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import zero
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication.acceptor_ops import Seat, noted
from pstraining.runtime.replication.encoding import BALLOT, COPIED, LEARNED, LIFE

PIECE_BYTES: Final = 4 << 20
"""What a piece has, about: a step moves as much as a whole shard's gradient over the same links."""
PARTS: Final = 32
"""Into how many pieces a vector is cut at most: taking one copies the whole vector on its server."""
ENOUGH_BYTES: Final = 512 << 20
"""A shard's state from which it is worth a second change of the roster to have training go on: 4.3 s at 1 Gbit/s.

That change costs half a second to three. A dense model's step sends a third of its state or more: copying 150 MB for a
model of 100 MB took no longer than a step, and no step was made in the time in which they were learned.
"""


class How(Enum):
    """How a part of a variable is read and written."""

    WHOLE = "all of it"
    RANGE = "some elements"
    ROWS = "some rows, without reading the others"


class Group(NamedTuple):
    """Variables that are cut alike; the same part of all of them is a piece."""

    how: How
    variables: Sequence[Any]


class Piece(NamedTuple):
    """A part of a group."""

    group: int
    begin: int = 0
    end: int = 0


class Pieces:
    """What a shard's state is cut into."""

    def __init__(self, shard: Shard) -> None:
        self.groups: list[Group] = []
        self.all: list[Piece] = []
        """In the order in which they are given."""
        shadow = getattr(shard.extra, "shadow", None)
        small: list[Any] = []
        for number, vector in enumerate(shard.vectors):
            own = _with_slots(shard, vector, number)
            held = [shadow.values[number], *shadow.moves[number]] if shadow and number in shadow.values else []
            if _bytes(own) > PIECE_BYTES:
                self._cut(How.RANGE, own)
                if held:
                    self._cut(How.WHOLE, held)
                continue
            small += [*own, *held]
            if _bytes(small) > PIECE_BYTES:
                self._cut(How.WHOLE, small)
                small = []
        if small:
            self._cut(How.WHOLE, small)
        for number, rows in enumerate(shard.rows, start=len(shard.segments)):
            self._cut(How.ROWS, _with_slots(shard, rows, number))
        self.variables = [variable for group in self.groups for variable in group.variables]
        given = {id(variable) for variable in self.variables}
        self.light = [variable for variable in shard.copied if id(variable) not in given]
        """The rest: what steps are counted by, and what is not made by steps."""

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return _bytes(self.variables)

    def _cut(self, how: How, variables: Sequence[Any]) -> None:
        number = len(self.groups)
        self.groups.append(Group(how, variables))
        if how is How.WHOLE:
            self.all.append(Piece(number))
            return
        length = variables[0].shape[0]
        most = max(1, PIECE_BYTES * length // _bytes(variables)) if length else 1
        if how is How.RANGE:
            most = max(most, math.ceil(length / PARTS))
        self.all += [Piece(number, begin, min(begin + most, length)) for begin in range(0, length, most)]


def are_worth_it(shards: Sequence[Shard]) -> bool:
    """Whether there is so much on some server that its copy is made of pieces."""
    return any(Pieces(shard).bytes >= ENOUGH_BYTES for shard in shards)


def is_incremental(store: ParameterStore) -> bool:
    """Whether a member that comes back is given its state while training goes on, as there is much of it.

    In the mode Async there is no order of steps in which a piece has its place; in the mode Hybrid workers write all
    dense parameters between two steps, whatever piece is on its way.
    """
    by_steps = store.updates.follow is not None and store.updates.hold_up is None
    return store.updates.paired and by_steps and are_worth_it(store.shards)


class Learner(Seat):
    """Emits what one member gives and another one takes."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.pieces = Pieces(shard)

    def light(self) -> tuple[Tensor, list[Tensor]]:
        """The record and `Pieces.light`, of one moment."""

        def body() -> tuple[Tensor, list[Tensor]]:
            return self._shard.record_or_zeros(), [variable.read_value() for variable in self.pieces.light]

        found: tuple[Tensor, list[Tensor]] = self._critical([], body)
        return found

    def give(self, group: int, begin: Tensor, end: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The record and a part of a group, of one moment.

        Args:
            group: its number.
            begin: the first element or row, and
            end: the one behind the last. int64[].
        """
        how, variables = self.pieces.groups[group]

        def body(begin: Tensor, end: Tensor) -> tuple[Tensor, list[Tensor]]:
            return self._shard.record_or_zeros(), [_read(how, variable, begin, end) for variable in variables]

        found: tuple[Tensor, list[Tensor]] = self._critical([begin, end], body)
        return found

    def begin(self, life: Tensor, fence: Tensor, record: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Learn under the roster of this ballot, of which no step is made before; 1 if it does. int64[].

        Args:
            life: of the process that is meant. int64[].
            fence: the ballot's number. int64[].
            record: of a member in sync. int64[5].
            values: its `Pieces.light`.
        """

        def body(life: Tensor, fence: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            seat, own = self._or_zeros(), self._shard.record_or_zeros()
            meant = self._is_meant(seat, own, record, life, fence) & tf.equal(seat[BALLOT], fence)
            begun = own[RecordField.GENERATION] > 0  # it was opened, and makes steps
            shut = tf.concat(
                [
                    record[: RecordField.GENERATION],
                    [-tf.abs(record[RecordField.GENERATION])],
                    record[RecordField.GENERATION + 1 :],
                ],
                0,
            )

            def write() -> Tensor:
                anew = [*self.pieces.variables, *self._shard.not_copied]
                written = [v.assign(v.initial(), read_value=False) for v in anew]
                with tf.control_dependencies([*written, *self._assigned(values)]):
                    return self._write(noted(seat, LEARNED, zero()), shut)

            done = tf.cond(meant & tf.logical_not(begun), write, zero)
            return tf.maximum(done, tf.cast(meant & begun, tf.int64))

        return self._critical([life, fence, record, *values], body)

    def learn(
        self,
        piece: tuple[int, Tensor, Tensor],
        number: Tensor,
        life: Tensor,
        fence: Tensor,
        record: Tensor,
        values: Sequence[Tensor],
    ) -> Tensor:
        """Take a piece, if it is the next one and of this member's own step.

        Args:
            piece: as of `give`.
            number: of the piece. int64[].
            life: of the process that is meant. int64[].
            fence: the ballot's number. int64[].
            record: of the member that gave it, then. int64[5].
            values: what it gave.

        Returns:
            How many pieces are there; -1: it does not learn under this ballot. int64[].
        """
        how, variables = self.pieces.groups[piece[0]]

        def body(
            begin: Tensor, end: Tensor, number: Tensor, life: Tensor, fence: Tensor, record: Tensor, *values: Tensor
        ) -> Tensor:
            seat, own = self._or_zeros(), self._shard.record_or_zeros()
            meant = self._is_meant(seat, own, record, life, fence) & tf.equal(seat[BALLOT], fence)
            meant &= (own[RecordField.GENERATION] > 0) & tf.equal(
                own[RecordField.GENERATION], record[RecordField.GENERATION]
            )
            fits = meant & tf.equal(seat[LEARNED], number) & self._is_of(own, record)

            def write() -> Tensor:
                written = [
                    _written(how, variable, begin, end, value)
                    for variable, value in zip(variables, values, strict=True)
                ]
                with tf.control_dependencies(written):
                    return self._write(noted(seat, LEARNED, number + 1))

            there = seat[LEARNED] + tf.cond(fits, write, zero)
            return tf.where(meant, there, -1)

        return self._critical([*piece[1:], number, life, fence, record, *values], body)

    def join(self, life: Tensor, fence: Tensor, former: Tensor, record: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Take the rest from a member that makes no steps, if every piece was given under the former roster and this
        member is at the same step; 1 if done. int64[].

        Args:
            life: of the process that is meant. int64[].
            fence: the ballot's number, which both have promised. int64[].
            former: the former roster's ballot's number. int64[].
            record: the other member's. int64[5].
            values: its `Pieces.light`.
        """

        def body(life: Tensor, fence: Tensor, former: Tensor, record: Tensor, *values: Tensor) -> Tensor:
            seat, own = self._or_zeros(), self._shard.record_or_zeros()
            meant = self._is_meant(seat, own, record, life, fence) & self._is_of(own, record)
            whole = tf.equal(seat[BALLOT], former) & tf.equal(seat[LEARNED], len(self.pieces.all))

            def write() -> Tensor:
                with tf.control_dependencies(self._assigned(values)):
                    return self._write(noted(seat, COPIED, fence), record)

            return tf.cond(meant & whole, write, zero)

        return self._critical([life, fence, former, record, *values], body)

    def _is_meant(self, seat: Tensor, own: Tensor, record: Tensor, life: Tensor, fence: Tensor) -> Tensor:
        """Whether this is the process that is meant, and both are under the ballot. bool[]."""
        both = tf.equal(own[RecordField.FENCE], fence) & tf.equal(record[RecordField.FENCE], fence)
        return tf.equal(seat[LIFE], life) & both & tf.not_equal(record[RecordField.GENERATION], 0)

    def _is_of(self, own: Tensor, record: Tensor) -> Tensor:
        """Whether both are at the same step of the same set. bool[]."""
        same = tf.equal(tf.abs(own[RecordField.GENERATION]), tf.abs(record[RecordField.GENERATION]))
        return same & tf.equal(own[RecordField.STEP], record[RecordField.STEP])

    def _assigned(self, values: Sequence[Tensor]) -> list[Any]:
        pairs = zip(self.pieces.light, values, strict=True)
        return [variable.assign(value, read_value=False) for variable, value in pairs]


def _with_slots(shard: Shard, variable: Any, number: int) -> list[Any]:
    """A vector, or a table's rows, and the optimizer's for it, element by element."""
    slots = [slot for (_, of), slot in shard.slots.items() if of == number and slot.shape == variable.shape]
    return [variable, *slots]


def _bytes(variables: Sequence[Any]) -> int:
    return sum((variable.shape.num_elements() or 0) * variable.dtype.size for variable in variables)


def _read(how: How, variable: Any, begin: Tensor, end: Tensor) -> Tensor:
    match how:
        case How.WHOLE:
            return variable.read_value()
        case How.RANGE:
            return variable.read_value()[begin:end]
        case How.ROWS:
            # Without gathering, all rows would be copied: a variable whose rows are written one by one is not shared.
            return tf.raw_ops.ResourceGather(
                resource=variable.handle, indices=tf.range(begin, end), dtype=variable.dtype
            )


def _written(how: How, variable: Any, begin: Tensor, end: Tensor, value: Tensor) -> Any:
    match how:
        case How.WHOLE:
            return variable.assign(value, read_value=False)
        case How.RANGE:
            # Not in place: every later reading would copy the vector from then on, that of each step too.
            own = variable.read_value()
            return variable.assign(tf.concat([own[:begin], value, own[end:]], 0), read_value=False)
        case How.ROWS:
            return tf.raw_ops.ResourceScatterUpdate(
                resource=variable.handle, indices=tf.range(begin, end), updates=value
            )
