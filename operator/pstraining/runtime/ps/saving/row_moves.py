"""Both ends of moving rows of tables from a server of one layout to servers of another, as operations to emit.

The source records the rows that its targets lack: first all, then those that steps change. A row is read and removed
from the record in one critical section, so no change of it is missed. The targets take rows during a restore.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.saving.parts import ShardParts


class TakenRows(NamedTuple):
    """Rows of a table on one server."""

    accepted: Tensor
    """Whether the server records the rows that are missing elsewhere; 1 or 0. int64[]."""
    rows: Tensor
    """Local indices of the rows. int64[n]."""
    values: list[Tensor]
    """The rows of each part, of shape [n, width] each."""


class RowMoves:
    """The operations of one server.

    Args:
        parts: the parts of the server's state.
    """

    def __init__(self, parts: ShardParts) -> None:
        self.parts, self.shard = parts, parts.shard

    def begin(self, fence: Tensor, token: Tensor) -> Tensor:
        """Record all rows as missing, and from now on those that change; return 1 if it applied.

        Applies under the fence only.

        Args:
            fence: the chief's fence. int64[].
            token: the record's name, not 0. int64[].
        """
        missing = self.shard.row_records.missing

        def body(fence: Tensor, token: Tensor) -> Tensor:
            def start() -> Tensor:
                return with_dependencies(missing.begin(token, with_all=True), applied())

            return tf.cond(self.parts.is_under(fence), start, not_applied)

        return self.parts.critical([fence, token], body)

    def counts(self, token: Tensor) -> Tensor:
        """Return the number of missing rows of each table, or -1 without the record. int64[tables].

        Outside the section.

        Args:
            token: the record's name. int64[].
        """
        with tf.device(self.shard.device):
            return self.shard.row_records.missing.counts(token, len(self.shard.tables))

    def take(
        self,
        table: int,
        numbers: Sequence[int],
        fence: Tensor,
        token: Tensor,
        begin: Tensor,
        end: Tensor,
        most: Tensor,
    ) -> TakenRows:
        """Return the missing rows of a table in a range, and remove them from the record.

        Args:
            table: the table's number.
            numbers: numbers of the parts that hold its rows.
            fence: the chief's fence. int64[].
            token: the record's name. int64[].
            begin, end: the first row, and the first row after the range. int64[].
            most: maximum number of rows. int64[].
        """
        variables = [self.parts.parts[number].variable for number in numbers]
        missing = self.shard.row_records.missing

        def body(fence: Tensor, token: Tensor, begin: Tensor, end: Tensor, most: Tensor) -> TakenRows:
            def taken() -> TakenRows:
                rows = missing.take(table, begin, end, most)
                values = [
                    tf.raw_ops.ResourceGather(resource=own.handle, indices=rows, dtype=own.dtype) for own in variables
                ]
                return TakenRows(applied(), rows, values)

            def nothing() -> TakenRows:
                values = [tf.zeros([0, *own.shape[1:]], own.dtype) for own in variables]
                return TakenRows(not_applied(), tf.zeros([0], tf.int64), values)

            found: TakenRows = tf.cond(self.parts.is_under(fence) & missing.is_recorded(token), taken, nothing)
            return found

        return self.parts.critical([fence, token, begin, end, most], body)

    def put(
        self, numbers: Sequence[int], fence: Tensor, token: Tensor, rows: Tensor, values: Sequence[Tensor]
    ) -> Tensor:
        """Write rows of a table during the restore of this name; return 1 if it applied.

        Args:
            numbers: numbers of the parts that hold the table's rows.
            fence: the chief's fence. int64[].
            token: the token of `ShardParts.begin`. int64[].
            rows: local indices. int64[n].
            values: the rows of each part, of shape [n, width] each.
        """
        variables = [self.parts.parts[number].variable for number in numbers]

        def body(fence: Tensor, token: Tensor, rows: Tensor, *values: Tensor) -> Tensor:
            def write() -> Tensor:
                written = [
                    tf.raw_ops.ResourceScatterUpdate(resource=own.handle, indices=rows, updates=value)
                    for own, value in zip(variables, values, strict=True)
                ]
                return with_dependencies(written, applied())

            return tf.cond(self.parts.takes(fence, token), write, not_applied)

        return self.parts.critical([fence, token, rows, *values], body)

    def end(self, token: Tensor) -> Tensor:
        """Delete the record of this name; return 1.

        Args:
            token: the record's name. int64[].
        """
        missing = self.shard.row_records.missing

        def body(token: Tensor) -> Tensor:
            return tf.cond(missing.is_recorded(token), lambda: with_dependencies(missing.forget(), applied()), applied)

        return self.parts.critical([token], body)
