"""A table with rows by any int64 key on one parameter server, as operations to emit inside a traced function.

Rows and their optimizer slots are columns of an arena. Only steps and restores insert keys. A step inserts its new
keys in ascending order, so equal steps give equal places. A pull of an unknown key returns the row with which the key
would begin, and inserts nothing.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

import tensorflow as tf

from pstraining.runtime.model.embeddings.dynamic_rows import RowInitializer, RowPolicy
from pstraining.runtime.model.keras_model import Model, Touched
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps.critical_section import applied, not_applied, with_dependencies
from pstraining.runtime.ps.tables.arena import SEEN, Arena
from pstraining.runtime.ps.variables import PSVariable

ROWS: Final = "rows"
"""The column of rows; those of slots have the slots' names, with a prefix."""
COUNT: Final = "count"
"""The column of the numbers of gradients of keys without rows."""
CANDIDATES: Final = "candidates"
"""The part of a checkpoint that has the keys without rows."""


class RowCount(IntEnum):
    """Indices in the vector that counts removed rows and dropped gradients since the table's variables were created."""

    INSERTED = 0
    EVICTED = 1
    """Rows that were removed because a new key needed their place."""
    NO_ROOM = 2
    """Gradients that were dropped because no place was free for their keys."""
    BELOW_MIN_COUNT = 3
    """Gradients that were dropped because their keys had too few gradients."""
    EXPIRED = 4
    """Rows that were removed because their keys had no gradient for some steps."""


class DynamicTable:
    """The rows of one table on one server; create it inside `variables_on` for that server.

    Args:
        name: the index's name, unique on the server.
        container: the job's container there.
        rows: the variable of rows, with one row so far.
        slots: the optimizer's slots of the table by name, with one row each, whose elements are equal.
        initializer: the initializer of new rows.
        policy: which keys have rows on this server.
    """

    def __init__(
        self,
        name: str,
        container: str,
        rows: PSVariable,
        slots: Mapping[str, PSVariable],
        initializer: RowInitializer,
        policy: RowPolicy,
    ) -> None:
        self._initializer, self._policy = initializer, policy
        self._width, self._dtype = rows.shape[1], rows.dtype
        dated = [SEEN] if policy.removes else []
        columns, begins = {ROWS: rows, **slots}, {ROWS: self._initial}
        self.rows = Arena(name, container, rows.device, dated, rows=columns, begins=begins)
        self.candidates = (
            Arena(f"{name}/{CANDIDATES}", container, rows.device, [COUNT, *dated]) if policy.min_count > 1 else None
        )
        """The keys that have had gradients, and have no rows; None if each key gets a row."""
        self.counts: PSVariable = tf.Variable(tf.zeros([len(RowCount)], tf.int64))
        """Numbers by `RowCount`. int64[n]."""

    @property
    def arenas(self) -> dict[str, Arena]:
        """Return the arenas by the part of a checkpoint in which their columns are."""
        return {"": self.rows} if self.candidates is None else {"": self.rows, CANDIDATES: self.candidates}

    @property
    def moves_rows(self) -> bool:
        """Return whether steps move rows; if so, pulls must run in the critical section."""
        return self._policy.removes

    def fetch(self, keys: Tensor) -> Tensor:
        """Return the rows of keys; for unknown keys, their initial rows. int64[n] to [n, width]."""
        places = self.rows.find(keys)
        rows = self.rows.read(ROWS, tf.maximum(places, 0))
        missing = tf.where(places < 0)

        def completed() -> Tensor:
            return tf.tensor_scatter_nd_update(rows, missing, self._initial(tf.gather_nd(keys, missing)))

        return tf.cond(tf.size(missing) > 0, completed, lambda: tf.identity(rows))

    # The methods below must run in the critical section.

    def placed(self, touched: Touched, step: Tensor) -> Touched:
        """Insert a step's unknown keys; return the places of keys with rows, and their gradients.

        Args:
            touched: keys in any order, without repetition, int64[n], and their gradients. [n, width].
            step: number of earlier updates. int64[].
        """
        keys, gradients = touched
        places = self.rows.find(keys)
        new, dated = tf.sort(tf.boolean_mask(keys, places < 0)), list[Operation]()
        if self._policy.removes:
            known = tf.boolean_mask(places, places >= 0)
            dated.append(self.rows.write(SEEN, known, tf.fill(tf.shape(known), step)))
        is_new = tf.size(new) > 0
        with tf.control_dependencies(dated):
            inserted = tf.cond(is_new, lambda: self._insert(new, step), not_applied)
        with tf.control_dependencies([inserted]):
            places = tf.cond(is_new, lambda: self.rows.find(keys), lambda: tf.identity(places))
        if not self._policy.drops:
            return places, gradients
        kept = tf.where(places >= 0)[:, 0]
        return tf.gather(places, kept), tf.gather(gradients, kept)

    def _insert(self, keys: Tensor, step: Tensor) -> Tensor:
        """Insert unknown keys that may have rows, in ascending order; return 1. int64[]."""
        due = keys if self.candidates is None else self._due(self.candidates, keys, step)
        number, evicted = self._insert_into(self.rows, due, {}, step)
        counted = {
            RowCount.INSERTED: number,
            RowCount.EVICTED: evicted,
            RowCount.NO_ROOM: tf.size(due, tf.int64) - number,
            RowCount.BELOW_MIN_COUNT: tf.size(keys, tf.int64) - tf.size(due, tf.int64),
        }
        return with_dependencies([self._count(counted)], applied())

    def expire(self, step: Tensor) -> list[Operation]:
        """Remove some of the rows without a recent update; return the operations to wait for.

        Args:
            step: number of updates before the last one. int64[].
        """
        if (age := self._policy.expire_after) is None:
            return []
        forgotten = [self.candidates.expire(step - age, age)] if self.candidates is not None else []
        return [*forgotten, self._count({RowCount.EXPIRED: self.rows.expire(step - age, age)})]

    def _count(self, numbers: Mapping[RowCount, Tensor]) -> Operation:
        added = [numbers.get(name, tf.constant(0, tf.int64)) for name in RowCount]
        return self.counts.assign_add(tf.stack(added), read_value=False)

    def _due(self, candidates: Arena, keys: Tensor, step: Tensor) -> Tensor:
        """Count a gradient of keys without rows; return the keys that receive rows. int64[n] to int64[m]."""
        places = candidates.find(keys)
        counts = tf.where(places < 0, tf.zeros_like(keys), candidates.read(COUNT, tf.maximum(places, 0))) + 1
        is_known, is_due = places >= 0, counts >= self._policy.min_count
        waiting = is_known & ~is_due
        written = [candidates.write(COUNT, tf.boolean_mask(places, waiting), tf.boolean_mask(counts, waiting))]
        if self._policy.removes:
            own = tf.boolean_mask(places, waiting)
            written.append(candidates.write(SEEN, own, tf.fill(tf.shape(own), step)))
        with tf.control_dependencies(written):
            left = candidates.remove(tf.boolean_mask(places, is_known & is_due))
        with tf.control_dependencies([left]):
            new = tf.boolean_mask(keys, ~is_known & ~is_due)
            number, _ = self._insert_into(candidates, new, {COUNT: tf.ones_like(new)}, step)
        return with_dependencies([number], tf.boolean_mask(keys, is_due))

    def _insert_into(
        self, arena: Arena, keys: Tensor, given: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Insert unknown keys while there is room; return the numbers of inserted and replaced keys. int64[] each."""
        evicted, most = not_applied(), self._policy.max_rows
        given = {**given, SEEN: tf.fill(tf.shape(keys), step)} if self._policy.removes else given
        if most is not None:
            excess = arena.used.read_value() + tf.size(keys, tf.int64) - most
            evicts = (excess > 0) & (tf.size(keys) > 0)
            evicted = tf.cond(evicts, lambda: arena.remove(arena.oldest(excess, step)), not_applied)
            with tf.control_dependencies([evicted]):
                room = tf.maximum(most - arena.used.read_value(), 0)
            keys, given = keys[:room], {name: values[:room] for name, values in given.items()}
        with tf.control_dependencies([evicted]):
            inserted = arena.insert(keys, given)
        return with_dependencies([inserted], tf.size(keys, tf.int64)), evicted

    def _initial(self, keys: Tensor) -> Tensor:
        return self._initializer.rows(keys, self._width, self._dtype)


def counts_of(tables: Sequence[DynamicTable]) -> Tensor:
    """Emit the number of rows of each table, and then its `counts`; outside the section. int64[tables, n]."""
    return tf.stack([tf.concat([[own.rows.used.read_value()], own.counts.read_value()], 0) for own in tables])


def tables_on(
    ps: int,
    servers: int,
    container: str,
    model: Model,
    rows: Sequence[PSVariable],
    slots: Mapping[int, Mapping[str, PSVariable]],
) -> dict[int, DynamicTable]:
    """Create a server's tables with rows by key; return them by the numbers of the tables.

    Args:
        ps: number of the server.
        servers: number of servers.
        container: the job's container there.
        model: the program's model.
        rows: every table's rows on the server.
        slots: the optimizers' slots of each table by name, by the numbers of the tables.
    """
    return {
        number: DynamicTable(
            f"{ps}/index/{number}",
            container,
            rows[number],
            {f"slot/{name}": value for name, value in slots.get(number, {}).items()},
            initializer,
            policy.on_each_of(servers),
        )
        for number, (initializer, policy) in enumerate(zip(model.row_initializers, model.row_policies, strict=True))
        if initializer is not None
    }
