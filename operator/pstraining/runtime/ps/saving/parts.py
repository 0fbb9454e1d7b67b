"""One parameter server's part of a checkpoint, saved and restored by operations to emit inside a traced function.

In a restore the server receives the whole state in one call, or pieces of bounded size. It does not count as
initialised until the last one.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.record import RecordField
from pstraining.runtime.ps.saving.part_copies import PartCopies, destroyed
from pstraining.runtime.ps.saving.state_parts import MODEL, Unit
from pstraining.runtime.ps.tensors import field


class ShardParts(PartCopies):
    """The parts of one shard's state, and the operations that read and write them."""

    # Each method below emits operations.

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
                with tf.control_dependencies([*written, *self._initialized(fresh=fresh), *self._rows.changed.forget()]):
                    return with_dependencies(self._copied_parameters() if fresh else [], applied())

            return tf.cond(self._is_incomplete(fence), apply, not_applied)

        return self.critical([fence, *values], body)

    def begin(self, fence: Tensor, token: Tensor) -> Tensor:
        """Start a restore in pieces, under the fence and in generation 0; return 1 if it applied.

        Every variable gets its initial value.
        """

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                reset = [done for arena in self.arenas for done in arena.reset()]
                with tf.control_dependencies([*reset, *self._rows.changed.forget()]):
                    begun = [v.assign(v.initial(), read_value=False) for v in (*self._variables, *self.shard.rest)]
                return with_dependencies([*begun, self._token.assign(token, read_value=False)], applied())

            return tf.cond(self._is_incomplete(fence), apply, not_applied)

        return self.critical([fence, token], body)

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

        return self.critical([fence, token, begin, *values], body)

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

        return self.critical([fence, token, begin, keys, *values], body)

    def remove_keys(self, fence: Tensor, token: Tensor) -> Tensor:
        """Remove all keys from all arenas, between `begin` and `finish`; return 1 if it applied."""

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                return with_dependencies([done for arena in self.arenas for done in arena.reset()], applied())

            return tf.cond(self.takes(fence, token), apply, not_applied)

        return self.critical([fence, token], body)

    def adopt(self, unit: Unit, fence: Tensor, token: Tensor) -> Tensor:
        """Assign the collected pieces of a split part to its variable, and delete the copy; return 1 if it applied."""
        (number,) = unit.numbers
        copy, own = self._copies[number], self._variables[number]

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                with tf.control_dependencies([own.assign(copy.read_value(), read_value=False)]):
                    return with_dependencies([destroyed(copy)], applied())

            return tf.cond(self.takes(fence, token) & copy.initialized(), apply, not_applied)

        return self.critical([fence, token], body)

    def finish(self, fence: Tensor, token: Tensor, *, fresh: bool) -> Tensor:
        """End a restore after its last piece; return 1 if it applied. `fresh`: see `write`."""

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def apply() -> Tensor:
                copied = self._copied_parameters() if fresh else []
                with tf.control_dependencies([*copied, *self._restarted_followers()]):
                    return with_dependencies(self._forgotten(), applied())

            return tf.cond(self.takes(fence, token), apply, not_applied)

        return self.critical([fence, token], body)

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

    def _initialized(self, *, fresh: bool) -> list[Operation]:
        own = [part.variable for part in self.parts if part.kind != MODEL] if fresh else []
        return [v.assign(v.initial(), read_value=False) for v in (*self.shard.rest, *own)]

    def _copied_parameters(self) -> list[Operation]:
        """Emit assigning the parameters to slots whose initial values they are."""
        copies, values = self.shard.optimizer.copies, self.shard.values
        return [slot.assign(values[number].read_value(), read_value=False) for slot, number in copies]

    def _restarted_followers(self) -> list[Operation]:
        """Emit initial values of the variables that follow the parameters: `begin` had other parameters."""
        mode, numbers = self.shard.mode_state, range(len(self.shard.segments))
        followers = [own for number in numbers for own in mode.followers(number)] if mode else []
        return [own.assign(own.initial(), read_value=False) for own in followers]

    def _is_incomplete(self, fence: Tensor) -> Tensor:
        """Return whether a restore under this fence is under way; a late call finds another generation. bool[]."""
        record = self.shard.record.read_value()
        return tf.equal(field(record, RecordField.FENCE), fence) & tf.equal(field(record, RecordField.GENERATION), 0)
