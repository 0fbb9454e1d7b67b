"""One parameter server's part of the state, as operations to emit inside a traced function.

A shard is its segments, a clone of the optimizer on them (slots and iteration count live beside the vectors), and a
record. Every write is made in the server's critical section, where the record is checked first.
"""

from collections.abc import Sequence
from typing import Any, Final

import keras
import tensorflow as tf

from pstraining.runtime import optimizer as optimizers
from pstraining.runtime.critical import after, critical
from pstraining.runtime.layout import Layout
from pstraining.runtime.model import STATE
from pstraining.runtime.variables import PSVariable, variables_on

Tensor = Any

FENCE: Final = 0
GENERATION: Final = 1
DONE: Final = 2
STEP: Final = 3
LAYOUT: Final = 4
RECORD_SIZE: Final = 5
"""The record is one vector, so that it is read and written whole. int64[5]; see `recovery.Shard`."""
WORKER_SLOTS: Final = 4096
"""Workers that can say hello and good-bye."""


class Shard:
    """The named variables of one server. Creating it sends nothing."""

    def __init__(self, *, device: str, container: str, layout: Layout, ps: int, optimizer: Any) -> None:
        self.device, self.container = device, container
        self.segments = layout.on(ps)
        made: list[PSVariable] = []
        with variables_on(device, container=container, prefix=str(ps), made=made):
            self.record = tf.Variable(tf.zeros([RECORD_SIZE], tf.int64))
            self.losses = tf.Variable(tf.zeros([2], tf.float64))
            """Sum and number of the losses since the chief last took them; kept on the first server."""
            self.present = tf.Variable(tf.zeros([WORKER_SLOTS], tf.int64))
            """1 for every worker that said hello and not yet good-bye; kept on the first server."""
            vectors = [
                keras.Variable(initializer="zeros", shape=(segment.size,), dtype=segment.dtype, name=f"segment{number}")
                for number, segment in enumerate(self.segments)
            ]
            self._trained = [number for number, segment in enumerate(self.segments) if segment.group != STATE]
            self._vectors = vectors
            self._clone = None
            if self._trained:
                self._clone = optimizers.clone(
                    optimizer,
                    [vectors[number] for number in self._trained],
                    [self.segments[number].group for number in self._trained],
                )
        self.vectors: list[PSVariable] = [vector.value for vector in vectors]
        self.slots: dict[tuple[str, int], PSVariable] = {}
        """The optimizer's vectors, by slot name and number of the segment."""
        self.scalars: dict[str, PSVariable] = {}
        """The optimizer's own state, without the learning rate: that is the program's, also after a restore."""
        self._sort_optimizer_variables()
        written = {id(variable) for variable in [*self.vectors, *self.slots.values(), *self.scalars.values()]}
        self._rest = [variable for variable in made if id(variable) not in written and variable is not self.record]

    def _sort_optimizer_variables(self) -> None:
        if self._clone is None:
            return
        for variable in self._clone.variables:
            if variable is getattr(self._clone, "_learning_rate", None):
                continue
            head, _, slot = variable.name.partition("_")
            if head.startswith("segment") and head[7:].isdecimal():
                self.slots[slot, int(head[7:])] = variable.value
            else:  # Keras numbers the names of some by process, their order is fixed
                self.scalars[f"counter{len(self.scalars)}"] = variable.value

    # What follows emits operations; each runs in the critical section unless it says otherwise.

    def read(self) -> Tensor:
        """The record, zeros when the server is empty; outside the section. int64[5]."""
        with tf.device(self.device):
            return self._record_or_zeros()

    def pull(self) -> list[Tensor]:
        """The segments' vectors as they are now; outside the section. Each of shape [segment.size]."""
        with tf.device(self.device):
            return [vector.read_value() for vector in self.vectors]

    def raise_fence(self, observed: Tensor, term: Tensor) -> Tensor:
        """Compare and set: put the shard under `term` if its fence is still `observed`; 1 if done."""

        def body(observed: Tensor, term: Tensor) -> Tensor:
            record = self._record_or_zeros()

            def apply() -> Tensor:
                raised = tf.concat([tf.reshape(term, [1]), record[1:]], 0)
                return after([self.record.assign(raised, read_value=False)], tf.constant(1, tf.int64))

            allowed = tf.equal(record[FENCE], observed) & (term >= record[FENCE])
            return tf.cond(allowed, apply, _refuse)

        return critical(self.device, self.container, [observed, term], body)

    def set_record(self, term: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Overwrite the record's fields where `mask` is 1, under the fence; 1 if done."""

        def body(term: Tensor, values: Tensor, mask: Tensor) -> Tensor:
            record = self.record.read_value()

            def apply() -> Tensor:
                merged = tf.where(tf.equal(mask, 1), values, record)
                return after([self.record.assign(merged, read_value=False)], tf.constant(1, tf.int64))

            return tf.cond(tf.equal(record[FENCE], term), apply, _refuse)

        return critical(self.device, self.container, [term, values, mask], body)

    def write(self, term: Tensor, vectors: Sequence[Tensor], optimizer_state: Sequence[Tensor] | None) -> Tensor:
        """Overwrite the whole shard but its record, under the fence; 1 if done.

        Args:
            term: the chief's term. int64[].
            vectors: the segments' vectors.
            optimizer_state: slots and scalars in the order of `slots` and `scalars`; None: the optimizer's own
                initial values, made on the server.
        """
        own = [*self.slots.values(), *self.scalars.values()]
        targets = list(self.vectors) + (own if optimizer_state is not None else [])
        initial = self._rest + (own if optimizer_state is None else [])

        def body(term: Tensor, *values: Tensor) -> Tensor:
            def apply() -> Tensor:
                written = [
                    variable.assign(value, read_value=False) for variable, value in zip(targets, values, strict=True)
                ]
                written += [variable.assign(variable.initial(), read_value=False) for variable in initial]
                return after(written, tf.constant(1, tf.int64))

            return tf.cond(tf.equal(self.record.read_value()[FENCE], term), apply, _refuse)

        return critical(self.device, self.container, [term, *vectors, *(optimizer_state or [])], body)

    def snapshot(self) -> tuple[Tensor, list[Tensor]]:
        """The record, and vectors, slots and scalars as they are between two updates."""

        def body() -> list[Tensor]:
            variables = [self.record, *self.vectors, *self.slots.values(), *self.scalars.values()]
            return [variable.read_value() for variable in variables]

        record, *values = critical(self.device, self.container, [], body)
        return record, values

    def push(self, session: Tensor, loss: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Apply one worker's gradients (and changes of state), if its session is the shard's.

        Args:
            session: term and generation that the worker synchronised with. int64[2].
            loss: the batch's mean loss. float64[].
            vectors: one per segment: its gradient, or the change of a segment of state.

        Returns:
            Whether it was applied, done, and the shard's step. int64[3].
        """

        def body(session: Tensor, loss: Tensor, *vectors: Tensor) -> Tensor:
            record = self.record.read_value()

            def apply() -> Tensor:
                self._apply(vectors)
                counted = [
                    self.record.assign_add(tf.one_hot(STEP, RECORD_SIZE, dtype=tf.int64), read_value=False),
                    self.losses.assign_add(tf.stack([loss, tf.ones([], tf.float64)]), read_value=False),
                ]
                return after(counted, tf.constant(1, tf.int64))

            same = tf.equal(record[FENCE], session[0]) & tf.equal(record[GENERATION], session[1])
            accepted = tf.cond(same & tf.equal(record[DONE], 0), apply, _refuse)
            return tf.stack([accepted, record[DONE], record[STEP] + accepted])

        return critical(self.device, self.container, [session, loss, *vectors], body)

    def take_losses(self) -> Tensor:
        """Sum and number of the losses since the last call. float64[2]."""

        def body() -> Tensor:
            taken = self.losses.read_value()
            with tf.control_dependencies([taken]):
                return after([self.losses.assign(tf.zeros([2], tf.float64), read_value=False)], taken)

        return critical(self.device, self.container, [], body)

    def set_present(self, worker: Tensor, value: Tensor) -> Tensor:
        """Note a worker's hello (1) or good-bye (0); outside the section."""
        with tf.device(self.device):
            operation = tf.raw_ops.ResourceScatterUpdate(
                resource=self.present.handle, indices=tf.reshape(worker, [1]), updates=tf.reshape(value, [1])
            )
            return after([operation], tf.constant(1, tf.int64))

    def mark(self, file: str) -> Tensor:
        """Write an empty file where the server runs; outside the section."""
        with tf.device(self.device):
            return after([tf.raw_ops.WriteFile(filename=file, contents="")], tf.constant(1, tf.int64))

    def count_present(self) -> Tensor:
        """How many workers have not said good-bye; outside the section. int64[]."""
        with tf.device(self.device):
            return tf.reduce_sum(self.present.read_value())

    def _record_or_zeros(self) -> Tensor:
        return tf.cond(
            self.record.initialized(),
            self.record.read_value,
            lambda: tf.zeros([RECORD_SIZE], tf.int64),
        )

    def _apply(self, vectors: Sequence[Tensor]) -> None:
        if self._clone is not None:
            self._clone.apply([vectors[number] for number in self._trained], [self._vectors[n] for n in self._trained])
        for number, segment in enumerate(self.segments):
            if segment.group == STATE:
                self.vectors[number].assign_add(vectors[number], read_value=False)


def _refuse() -> Tensor:
    return tf.constant(0, tf.int64)
