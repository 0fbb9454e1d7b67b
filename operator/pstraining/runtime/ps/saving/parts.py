"""One parameter server's part of a checkpoint, as operations to emit inside a traced function.

A small state is read or written by one call, in one critical section. A larger state is copied on the server first, to
variables beside the shard's own. The chief then reads the copy in calls of bounded size while training continues.

Tables are copied ahead in ranges, each in a short critical section (`copy_ahead`). One more section (`keep`) completes
the copy with the rows that steps have changed meanwhile, and with all other variables. Assigning a dense vector takes
no time there, because TensorFlow copies it at the next step that changes it.

In a restore the server receives pieces of bounded size, and does not count as initialised until the last one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import DType, Operation, Shape, Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.saving.state_parts import MODEL, StatePart, Unit, parts_of
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tables.arena import sizes
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.ps.variables import PSVariable

SMALL_TABLE: Final = 1 << 20
"""Maximum bytes of a table that is copied in `keep`: tracing and calling the copies of ranges would take longer."""


class ShardParts:
    """The parts of one shard's state, and the operations that read and write them."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.arenas = shard.arenas
        """The rows by key, and the values of keys without rows."""
        self.parts = list(parts_of(shard))

    @cached_property
    def table_parts(self) -> dict[int, int]:
        """The tables' numbers of the parts that are copied ahead, by the parts' numbers."""
        tables = self.shard.tables
        return {
            number: tables.index(part.segment)
            for number, part in enumerate(self.parts)
            if part.has_rows and part.segment and part.bytes > SMALL_TABLE
        }

    @property
    def bytes(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.bytes for part in self.parts)

    def units(self, most: int) -> list["Unit"]:
        """Group the parts by calls of at most `most` bytes; a larger part is split into rows."""
        units: list[Unit] = []
        total = 0
        for number, part in enumerate(self.parts):
            if part.arena:
                units.append(Unit([number], is_cut=True))
                total = most
            elif units and total + part.bytes <= most:
                units[-1].numbers.append(number)
                total += part.bytes
            else:
                units.append(Unit([number], is_cut=part.bytes > most))
                total = part.bytes
        return units

    # Each method below emits operations.

    def snapshot(self) -> tuple[Tensor, list[Tensor]]:
        """Return the record and every part, at one moment between two updates."""

        def body() -> list[Tensor]:
            return [variable.read_value() for variable in (self.shard.record, *self._variables)]

        record, *values = self._critical([], body)
        return record, values

    def begin_copy(self, fence: Tensor, token: Tensor) -> Tensor:
        """Allocate a copy of the tables, and record the rows that change from now on; return 1 if it applied.

        Applies under the fence only.

        Args:
            fence: the chief's fence. int64[].
            token: the copy's name, not 0. int64[].
        """

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                room = [self._with_room(number) for number in self.table_parts]
                return with_dependencies([*room, *self.shard.touched.begin(token)], applied())

            return tf.cond(self._is_under(fence), apply, not_applied)

        return self._critical([fence, token], body)

    def copy_ahead(self, number: int, fence: Tensor, token: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """Copy some rows of a table between `begin_copy` and `keep`; return 1 if it applied.

        Args:
            number: the part's number.
            fence: the chief's fence. int64[].
            token: the token of `begin_copy`. int64[].
            begin, end: the first row, and the first row after the range. int64[].
        """

        def body(fence: Tensor, token: Tensor, begin: Tensor, end: Tensor) -> Tensor:
            allowed = self._is_under(fence) & self.shard.touched.is_recorded(token)
            rows = tf.range(begin, end)
            return tf.cond(allowed, lambda: with_dependencies([self._copied(number, rows)], applied()), not_applied)

        return self._critical([fence, token, begin, end], body)

    def keep(self, fence: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Complete a copy of every part at one moment between two updates, under the fence.

        A further call replaces the copy by a later one.

        Args:
            fence: the chief's fence. int64[].
            token: the token of `begin_copy`. int64[].

        Returns:
            The record, int64[5], and the number of keys in each arena, int64[n].
        """

        def body(fence: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
            record, rows, touched = self.shard.record.read_value(), sizes(self.arenas), self.shard.touched

            def copy() -> Tensor:
                changed = {table: touched.rows(table) for table in set(self.table_parts.values())}
                copied = [self._copied(number, changed[table]) for number, table in self.table_parts.items()]
                copied += [
                    self._copies[number].assign(_value(part), read_value=False)
                    for number, part in enumerate(self.parts)
                    if number not in self.table_parts
                ]
                return with_dependencies([*copied, self._token.assign(token, read_value=False)], applied())

            allowed = tf.equal(field(record, RecordField.FENCE), fence) & touched.is_recorded(token)
            done = tf.cond(allowed, copy, not_applied)
            return with_dependencies([done], record), with_dependencies([done], rows)

        found: tuple[Tensor, Tensor] = self._critical([fence, token], body)
        return found

    def read(self, unit: Unit, token: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return whether the server has the copy, bool[], and a unit of it, one flattened tensor for each part.

        Outside the section.

        Args:
            unit: the unit.
            token: the copy's name. int64[].
            begin, end: for a part that is split, the first row, and the first row after the range. int64[].
        """

        def rows(number: int) -> Tensor:
            copy = self._copies[number]
            if not unit.is_cut:
                return copy.read_value()
            if number in self.table_parts:  # TensorFlow copies all of a variable with written rows when it is read
                return tf.raw_ops.ResourceGather(resource=copy.handle, indices=tf.range(begin, end), dtype=copy.dtype)
            return copy.read_value()[begin:end]

        def flat() -> list[Tensor]:
            return [tf.reshape(rows(number), [-1]) for number in unit.numbers]

        def nothing() -> list[Tensor]:
            return [tf.zeros([0], self._variables[number].dtype) for number in unit.numbers]

        with tf.device(self.shard.device):
            is_there = tf.equal(self._token_or_zero(), token)
            found = tf.cond(is_there, flat, nothing)
            return is_there, list(found) if isinstance(found, list | tuple) else [found]

    def release(self, fence: Tensor) -> Tensor:
        """Delete the copy, under the fence; return 1 if it applied."""

        def body(fence: Tensor) -> Tensor:
            return tf.cond(self._is_under(fence), lambda: with_dependencies(self._forgotten(), applied()), not_applied)

        return self._critical([fence], body)

    def write(self, fence: Tensor, values: Sequence[Tensor], *, fresh: bool) -> Tensor:
        """Overwrite the whole shard except its record, under the fence and in generation 0; return 1 if it applied.

        Args:
            fence: the chief's fence. int64[].
            values: one tensor for each part, in the order of `parts`; with `fresh` without slots and counters.
            fresh: whether slots and counters get the optimizer's initial values.
        """

        def body(fence: Tensor, *values: Tensor) -> Tensor:
            def apply() -> Tensor:
                pairs = zip(self._variables, values, strict=False)
                written = [own.assign(value, read_value=False) for own, value in pairs]
                with tf.control_dependencies([*written, *self._initialized(fresh=fresh)]):
                    return with_dependencies(self._copied_parameters() if fresh else [], applied())

            return tf.cond(self._is_incomplete(fence), apply, not_applied)

        return self._critical([fence, *values], body)

    def begin(self, fence: Tensor, token: Tensor) -> Tensor:
        """Start a restore in pieces, under the fence and in generation 0; return 1 if it applied.

        Every variable gets its initial value.
        """

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                with tf.control_dependencies([done for arena in self.arenas for done in arena.reset()]):
                    begun = [v.assign(v.initial(), read_value=False) for v in (*self._variables, *self.shard.rest)]
                return with_dependencies([*begun, self._token.assign(token, read_value=False)], applied())

            return tf.cond(self._is_incomplete(fence), apply, not_applied)

        return self._critical([fence, token], body)

    def take(self, unit: Unit, fence: Tensor, token: Tensor, begin: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Write a unit, or some rows of a split part, between `begin` and `finish`; return 1 if it applied.

        Args:
            unit: the unit.
            fence: the chief's fence. int64[].
            token: the token of `begin`. int64[].
            begin: the first row, for a part that is split. int64[].
            values: one flattened tensor for each part.
        """

        def body(fence: Tensor, token: Tensor, begin: Tensor, *values: Tensor) -> Tensor:
            def apply() -> Tensor:
                if unit.is_cut:
                    (number,), (value,) = unit.numbers, values
                    written = [self._taken(number, begin, value)]
                else:
                    pairs = zip((self.parts[number] for number in unit.numbers), values, strict=True)
                    written = [p.variable.assign(tf.reshape(value, p.shape), read_value=False) for p, value in pairs]
                return with_dependencies(written, applied())

            return tf.cond(self.takes(fence, token), apply, not_applied)

        return self._critical([fence, token, begin, *values], body)

    def append(
        self, number: int, fence: Tensor, token: Tensor, begin: Tensor, keys: Tensor, columns: Mapping[str, Tensor]
    ) -> Tensor:
        """Append keys to an arena, between `begin` and `finish`; return 1 if it applied.

        Args:
            number: index of the arena in `arenas`.
            fence: the chief's fence. int64[].
            token: the token of `begin`. int64[].
            begin: number of keys in the arena before the call. int64[].
            keys: see `Arena.append`. int64[n].
            columns: see `Arena.append`.
        """
        names, values = list(columns), list(columns.values())

        def body(fence: Tensor, token: Tensor, begin: Tensor, keys: Tensor, *values: Tensor) -> Tensor:
            given = dict(zip(names, values, strict=True))
            return tf.cond(
                self.takes(fence, token), lambda: self.arenas[number].append(begin, keys, given), not_applied
            )

        return self._critical([fence, token, begin, keys, *values], body)

    def adopt(self, unit: Unit, fence: Tensor, token: Tensor) -> Tensor:
        """Assign the collected pieces of a split part to its variable, and delete the copy; return 1 if it applied."""
        (number,) = unit.numbers
        copy, own = self._copies[number], self._variables[number]

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                with tf.control_dependencies([own.assign(copy.read_value(), read_value=False)]):
                    return with_dependencies([_destroyed(copy)], applied())

            return tf.cond(self.takes(fence, token) & copy.initialized(), apply, not_applied)

        return self._critical([fence, token], body)

    def finish(self, fence: Tensor, token: Tensor, *, fresh: bool) -> Tensor:
        """End a restore after its last piece; return 1 if it applied. `fresh`: see `write`."""

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                with tf.control_dependencies(self._copied_parameters() if fresh else []):
                    return with_dependencies(self._forgotten(), applied())

            return tf.cond(self.takes(fence, token), apply, not_applied)

        return self._critical([fence, token], body)

    def takes(self, fence: Tensor, token: Tensor) -> Tensor:
        """Return whether the server is between `begin` and `finish` of this restore; in the section. bool[]."""
        return self._is_incomplete(fence) & tf.equal(self._token_or_zero(), token)

    def _taken(self, number: int, begin: Tensor, value: Tensor) -> Operation:
        """Emit writing rows of a table to its variable, or rows of another part to a copy."""
        part = self.parts[number]
        rows = tf.reshape(value, [-1, *part.shape[1:]])
        end = begin + tf.shape(rows, tf.int64)[0]
        if part.is_table:
            return tf.raw_ops.ResourceScatterUpdate(
                resource=part.variable.handle, indices=tf.range(begin, end), updates=rows
            )
        # Slices written to the variable itself would make every later read copy all of it, in each step.
        copy = self._copies[number]
        started = tf.cond(
            copy.initialized(),
            applied,
            lambda: with_dependencies([copy.assign(part.variable.initial(), read_value=False)], applied()),
        )
        with tf.control_dependencies([started]):
            return tf.raw_ops.ResourceStridedSliceAssign(
                ref=copy.handle, begin=[begin], end=[end], strides=tf.ones([1], tf.int64), value=rows
            )

    def _with_room(self, number: int) -> Operation:
        """Emit allocating the copy of a table. The system provides its pages when rows are first written."""
        copy = self._copies[number]
        with tf.control_dependencies([_destroyed(copy)]):  # assigning to a variable with written rows would copy
            room = tf.raw_ops.Empty(shape=self.parts[number].shape, dtype=copy.dtype, init=False)
            return copy.assign(room, read_value=False)

    def _copied(self, number: int, rows: Tensor) -> Operation:
        """Emit copying rows of a table, inside the critical section."""
        own, copy = self._variables[number], self._copies[number]
        values = tf.raw_ops.ResourceGather(resource=own.handle, indices=rows, dtype=own.dtype)
        return tf.raw_ops.ResourceScatterUpdate(resource=copy.handle, indices=rows, updates=values)

    def _is_under(self, fence: Tensor) -> Tensor:
        """Return whether the server is under this fence. bool[]."""
        return tf.equal(field(self.shard.record_or_zeros(), RecordField.FENCE), fence)

    def _initialized(self, *, fresh: bool) -> list[Operation]:
        own = [part.variable for part in self.parts if part.kind != MODEL] if fresh else []
        return [v.assign(v.initial(), read_value=False) for v in (*self.shard.rest, *own)]

    def _copied_parameters(self) -> list[Operation]:
        """Emit assigning the parameters to slots whose initial values they are."""
        copies, values = self.shard.optimizer.copies, self.shard.values
        return [slot.assign(values[number].read_value(), read_value=False) for slot, number in copies]

    def _is_incomplete(self, fence: Tensor) -> Tensor:
        """Return whether a restore under this fence is under way; a late call finds another generation. bool[]."""
        record = self.shard.record.read_value()
        return tf.equal(field(record, RecordField.FENCE), fence) & tf.equal(field(record, RecordField.GENERATION), 0)

    @cached_property
    def _variables(self) -> list[PSVariable]:
        return [part.variable for part in self.parts]

    @cached_property
    def _copies(self) -> list[PSVariable]:
        return [
            self._beside(f"copy/{number}", own.shape, own.dtype, own.initial)
            for number, own in enumerate(self._variables)
        ]

    @cached_property
    def _token(self) -> PSVariable:
        return self._beside("copy", (), tf.int64, lambda: tf.zeros([], tf.int64))

    def _beside(self, name: str, shape: Shape, dtype: DType, initial: Callable[[], Tensor]) -> PSVariable:
        shard = self.shard
        return PSVariable(
            name=f"{shard.number}/{name}",
            container=shard.container,
            device=shard.device,
            shape=shape,
            dtype=dtype,
            initial=initial,
        )

    def _token_or_zero(self) -> Tensor:
        token = self._token
        return tf.cond(token.initialized(), token.read_value, lambda: tf.zeros([], tf.int64))

    def _forgotten(self) -> list[Operation]:
        return [*(_destroyed(variable) for variable in (*self._copies, self._token)), *self.shard.touched.forget()]

    def _critical(self, inputs: Sequence[Tensor], body: Callable[..., Tensor]) -> Tensor:
        return critical(self.shard.device, self.shard.container, inputs, body)


def _value(part: StatePart) -> Tensor:
    """Emit all elements of a part; for an arena's column, the rows in use."""
    return part.arena.live(part.variable) if part.arena else part.variable.read_value()


def _destroyed(variable: PSVariable) -> Operation:
    return tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
