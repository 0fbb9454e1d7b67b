"""Copies of one parameter server's part of the state for a checkpoint, as operations to emit inside a traced function.

A small state is read by one call, in one critical section. A larger state is copied on the server first, to variables
beside the shard's own. The chief then reads the copy in calls of bounded size while training continues.

Tables are copied ahead in ranges, each in a short critical section (`copy_ahead`). One more section (`keep`) completes
the copy with the rows that steps have changed meanwhile, and with all other variables. Assigning a dense vector takes
no time there, because TensorFlow copies it at the next step that changes it.

An incremental save copies only the rows of large tables that steps have changed since a former copy (`keep_changed`).
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.tensor import DType, Operation, Shape, Structure, Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.saving.state_parts import StatePart, Unit, parts_of
from pstraining.runtime.ps.shard import Shard
from pstraining.runtime.ps.tables.arena import sizes
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.ps.variables import PSVariable

SMALL_TABLE: Final = 1 << 20
"""Maximum bytes of a table that is copied in `keep`: tracing and calling the copies of ranges would take longer."""


class PartCopies:
    """The parts of one shard's state, and the operations that copy them and read the copies."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self._rows = shard, shard.row_records
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

    def snapshot(self, numbers: Sequence[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the record and the parts, at one moment between two updates; of an arena's columns, the rows in use.

        Args:
            numbers: the numbers of the parts; None: all.
        """
        parts = self.parts if numbers is None else [self.parts[number] for number in numbers]

        def body() -> list[Tensor]:
            return [self.shard.record.read_value(), *map(_value, parts)]

        record, *values = self.critical([], body)
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
                return with_dependencies([*room, *self._rows.touched.begin(token)], applied())

            return tf.cond(self.is_under(fence), apply, not_applied)

        return self.critical([fence, token], body)

    def copy_ahead(self, number: int, fence: Tensor, token: Tensor, begin: Tensor, end: Tensor) -> Tensor:
        """Copy some rows of a table between `begin_copy` and `keep`; return 1 if it applied.

        Args:
            number: the part's number.
            fence: the chief's fence. int64[].
            token: the token of `begin_copy`. int64[].
            begin, end: the first row, and the first row after the range. int64[].
        """

        def body(fence: Tensor, token: Tensor, begin: Tensor, end: Tensor) -> Tensor:
            allowed = self.is_under(fence) & self._rows.touched.is_recorded(token)
            rows = tf.range(begin, end)
            return tf.cond(allowed, lambda: with_dependencies([self._copied(number, rows)], applied()), not_applied)

        return self.critical([fence, token, begin, end], body)

    def keep(self, fence: Tensor, token: Tensor, *, recorded: bool = False) -> tuple[Tensor, Tensor]:
        """Complete a copy of every part at one moment between two updates, under the fence.

        A further call replaces the copy by a later one.

        Args:
            fence: the chief's fence. int64[].
            token: the token of `begin_copy`. int64[].
            recorded: whether to record the rows that change from now on, for `keep_changed`.

        Returns:
            The record, int64[5], and the number of keys in each arena, int64[n].
        """

        def body(fence: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
            record, rows, touched = self.shard.record.read_value(), sizes(self.arenas), self._rows.touched

            def copy() -> Tensor:
                changed = {table: touched.rows(table) for table in set(self.table_parts.values())}
                copied = [self._copied(number, changed[table]) for number, table in self.table_parts.items()]
                copied += [
                    self._copies[number].assign(_value(part), read_value=False)
                    for number, part in enumerate(self.parts)
                    if number not in self.table_parts
                ]
                copied += self._rows.changed.begin(token) if recorded else []
                return with_dependencies([*copied, self._token.assign(token, read_value=False)], applied())

            allowed = tf.equal(field(record, RecordField.FENCE), fence) & touched.is_recorded(token)
            done = tf.cond(allowed, copy, not_applied)
            return with_dependencies([done], record), with_dependencies([done], rows)

        found: tuple[Tensor, Tensor] = self.critical([fence, token], body)
        return found

    def changed_counts(self, base: Tensor) -> Tensor:
        """Return the number of changed rows of each table since a copy, or -1 if they are unknown. int64[tables].

        Outside the section.

        Args:
            base: the copy's name. int64[].
        """
        with tf.device(self.shard.device):
            return self._rows.changed.counts(base, len(self.shard.tables))

    def keep_changed(
        self, numbers: Collection[int], fence: Tensor, base: Tensor, token: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Copy the changed rows of some parts, and all other parts, at one moment between two updates, under the fence.

        Rows that change from now on are recorded for the next call. A further call with the same names replaces the
        copy by a later one.

        Args:
            numbers: numbers of parts in `table_parts`.
            fence: the chief's fence. int64[].
            base: the name of the copy since which rows have changed. int64[].
            token: the new copy's name, not 0. int64[].

        Returns:
            The record, int64[5]; the number of keys in each arena, int64[n]; and the number of copied rows of each
            table, or -1 if nothing was copied, int64[tables].
        """
        tables = sorted({self.table_parts[number] for number in numbers})

        def body(fence: Tensor, base: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            record, keys, changed = self.shard.record.read_value(), sizes(self.arenas), self._rows.changed
            missing = tf.fill([len(self.shard.tables)], tf.constant(-1, tf.int64))

            def copy() -> Tensor:
                # The record was emptied by a former call: its rows are added to those that have changed since.
                former = [
                    tf.cond(changed.is_recorded(token), partial(self._mark_again, table), not_applied)
                    for table in tables
                ]
                with tf.control_dependencies(former):
                    rows = {table: changed.rows(table) for table in tables}
                copied = [self._changed_rows[table].assign(own, read_value=False) for table, own in rows.items()]
                for number, part in enumerate(self.parts):
                    if number in numbers:
                        own, found = part.variable, rows[self.table_parts[number]]
                        values = tf.raw_ops.ResourceGather(resource=own.handle, indices=found, dtype=own.dtype)
                        copied.append(self._changed_values[number].assign(values, read_value=False))
                    else:
                        copied.append(self._copies[number].assign(_value(part), read_value=False))
                counts = [
                    tf.size(rows[table], tf.int64) if table in rows else tf.zeros([], tf.int64)
                    for table in range(len(self.shard.tables))
                ]
                with tf.control_dependencies(copied):
                    begun = [*changed.begin(token), self._token.assign(token, read_value=False)]
                return with_dependencies(begun, tf.stack(counts))

            is_known = changed.is_recorded(base) | changed.is_recorded(token)
            allowed = tf.equal(field(record, RecordField.FENCE), fence) & is_known
            counts = tf.cond(allowed, copy, lambda: missing)
            return with_dependencies([counts], record), with_dependencies([counts], keys), counts

        found: tuple[Tensor, Tensor, Tensor] = self.critical([fence, base, token], body)
        return found

    def read_changed(
        self, table: int, number: int | None, token: Tensor, begin: Tensor, end: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return whether the server has the copy of `keep_changed`, bool[], and some of its rows.

        Outside the section.

        Args:
            table: the table's number.
            number: the part's number; None for the local indices of the rows, int64[n].
            token: the copy's name. int64[].
            begin, end: the first row in the copy, and the first row after the range. int64[].
        """
        own = self._changed_rows[table] if number is None else self._changed_values[number]
        with tf.device(self.shard.device):
            is_there = tf.equal(self._token_or_zero(), token)
            found = tf.cond(is_there, lambda: own.read_value()[begin:end], own.initial)
            return is_there, found

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
            return tf.cond(self.is_under(fence), lambda: with_dependencies(self._forgotten(), applied()), not_applied)

        return self.critical([fence], body)

    def _with_room(self, number: int) -> Operation:
        """Emit allocating the copy of a table. The system provides its pages when rows are first written."""
        copy = self._copies[number]
        with tf.control_dependencies([destroyed(copy)]):  # assigning to a variable with written rows would copy
            room = tf.raw_ops.Empty(shape=self.parts[number].shape, dtype=copy.dtype, init=False)
            return copy.assign(room, read_value=False)

    def _copied(self, number: int, rows: Tensor) -> Operation:
        """Emit copying rows of a table, inside the critical section."""
        own, copy = self._variables[number], self._copies[number]
        values = tf.raw_ops.ResourceGather(resource=own.handle, indices=rows, dtype=own.dtype)
        return tf.raw_ops.ResourceScatterUpdate(resource=copy.handle, indices=rows, updates=values)

    def _mark_again(self, table: int) -> Tensor:
        return with_dependencies([self._rows.changed.mark(table, self._changed_rows[table].read_value())], applied())

    def is_under(self, fence: Tensor) -> Tensor:
        """Return whether the server is under this fence. bool[]."""
        return tf.equal(field(self.shard.record_or_zeros(), RecordField.FENCE), fence)

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
    def _changed_rows(self) -> dict[int, PSVariable]:
        """The local indices of the copied rows, by the tables' numbers."""
        return {table: self._growing(f"rows/{table}", (), tf.int64) for table in set(self.table_parts.values())}

    @cached_property
    def _changed_values(self) -> dict[int, PSVariable]:
        """The copied rows, by the parts' numbers."""
        parts = ((number, self.parts[number]) for number in self.table_parts)
        return {
            number: self._growing(f"changed/{number}", part.shape[1:], part.variable.dtype) for number, part in parts
        }

    def _growing(self, name: str, shape: tuple[int, ...], dtype: DType) -> PSVariable:
        """Return a variable of any number of rows of a shape."""
        return self._beside(f"copy/{name}", tf.TensorShape([None, *shape]), dtype, lambda: tf.zeros([0, *shape], dtype))

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
        changed = [*self._changed_rows.values(), *self._changed_values.values()]
        return [
            *(destroyed(variable) for variable in (*self._copies, *changed, self._token)),
            *self._rows.touched.forget(),
        ]

    def critical(self, inputs: Sequence[Tensor], body: Callable[..., Structure]) -> Structure:
        """Emit a critical section on the server; see `critical_section.critical`."""
        return critical(self.shard.device, self.shard.container, inputs, body)


def _value(part: StatePart) -> Tensor:
    """Emit all elements of a part; for an arena's column, the rows in use."""
    return part.arena.live(part.variable) if part.arena else part.variable.read_value()


def destroyed(variable: PSVariable) -> Operation:
    """Emit deleting a variable from its server; return the operation to wait for."""
    return tf.raw_ops.DestroyResourceOp(resource=variable.handle, ignore_lookup_error=True)
