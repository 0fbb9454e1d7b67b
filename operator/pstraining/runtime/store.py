"""The state of training on all parameter servers together.

`ParameterStore` emits the operations that workers put into their traced step. `StoreControl` is the chief's hand on the
same state: traced functions for reading, fencing, restoring and saving it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pstraining.runtime import layout as layouts
from pstraining.runtime import recovery
from pstraining.runtime.client import Client
from pstraining.runtime.layout import Array
from pstraining.runtime.model import Model
from pstraining.runtime.shard import DONE, FENCE, GENERATION, LAYOUT, RECORD_SIZE, STEP, Shard
from pstraining.runtime.state import State, StateMismatchError

Tensor = Any


class ParameterStore:
    """A model's segments on the servers of a job."""

    def __init__(self, client: Client, model: Model) -> None:
        self.client, self.model = client, model
        self.layout = layouts.plan(model.tensors, len(client.shards))
        self.fingerprint = self.layout.fingerprint(model.identity())
        self.shards = [
            Shard(
                device=device,
                container=client.container,
                layout=self.layout,
                ps=index,
                optimizer=model.optimizer,
            )
            for index, device in enumerate(client.shards)
        ]
        self._read = tf.function(self._emit_read, autograph=False)
        self._present = tf.function(self._emit_present, autograph=False)

    def read(self) -> list[recovery.Shard]:
        """Every server's record."""
        return [as_shard(row) for row in self.client.call(self._read)]

    def say(self, worker: int, present: bool) -> None:
        """Note on the first server that a worker takes part, or has ended."""
        self.client.call(self._present, tf.constant(worker, tf.int64), tf.constant(int(present), tf.int64))

    def emit_pull(self) -> list[Tensor]:
        """The model's variables from the servers, in the model's order and shapes, on this task's device."""
        parts: dict[int, list[tuple[int, Tensor]]] = {}
        for shard in self.shards:
            vectors = shard.pull()
            with tf.device(self.client.local):
                for segment, vector in zip(shard.segments, vectors, strict=True):
                    sizes = [piece.size for piece in segment.pieces]
                    pieces = tf.split(vector, sizes) if len(sizes) > 1 else [vector]
                    for piece, value in zip(segment.pieces, pieces, strict=True):
                        parts.setdefault(piece.tensor, []).append((piece.begin, value))
        pulled = []
        with tf.device(self.client.local):
            for index, tensor in enumerate(self.layout.tensors):
                found = [value for _, value in sorted(parts[index], key=lambda part: part[0])]
                whole = tf.concat(found, 0) if len(found) > 1 else found[0]
                pulled.append(tf.reshape(whole, tensor.shape))
        return pulled

    def emit_push(self, values: Sequence[Tensor], session: Tensor, loss: Tensor) -> Tensor:
        """Send gradients (and changes of state) to every server.

        Args:
            values: one per variable of the model, in its order and shape.
            session: int64[2].
            loss: the batch's loss. [].

        Returns:
            Whether every server applied them, whether the job is done, the global step. int64[3] on this task's device.
        """
        with tf.device(self.client.local):
            loss = tf.cast(loss, tf.float64)
            flat = [tf.reshape(value, [-1]) for value in values]
        replies = []
        for shard in self.shards:
            with tf.device(self.client.local):
                vectors = [self._packed(segment, flat) for segment in shard.segments]
            replies.append(shard.push(session, loss, vectors))
        with tf.device(self.client.local):
            stacked = tf.stack([tf.identity(reply) for reply in replies])
            return tf.stack([tf.reduce_min(stacked[:, 0]), tf.reduce_max(stacked[:, 1]), stacked[0, 2]])

    def _packed(self, segment: layouts.Segment, flat: Sequence[Tensor]) -> Tensor:
        parts = [
            flat[piece.tensor]
            if piece.size == self.layout.tensors[piece.tensor].size
            else flat[piece.tensor][piece.begin : piece.end]
            for piece in segment.pieces
        ]
        return tf.concat(parts, 0) if len(parts) > 1 else parts[0]

    def _emit_read(self) -> Tensor:
        records = [shard.read() for shard in self.shards]
        with tf.device(self.client.local):
            return tf.stack([tf.identity(record) for record in records])

    def _emit_present(self, worker: Tensor, value: Tensor) -> Tensor:
        reply = self.shards[0].set_present(worker, value)
        with tf.device(self.client.local):
            return tf.identity(reply)


class RefusedError(Exception):
    """A server is under another term than this chief's."""


class StoreControl:
    """The chief's traced functions over a store; each returns only when every server has answered."""

    def __init__(self, store: ParameterStore) -> None:
        self.store, self.client = store, store.client
        self._fence = self._on_all(lambda shard, observed, term: shard.raise_fence(observed, term))
        self._record = self._on_all(lambda shard, term, values, mask: shard.set_record(term, values, mask))
        self._write = self._on_all(lambda shard, term, vectors, own: shard.write(term, vectors, own))
        self._snapshot = self._on_all(lambda shard: shard.snapshot())
        first = store.shards[0]
        self._losses = tf.function(lambda: self._fetched(first.take_losses()), autograph=False)
        self._count = tf.function(lambda: self._fetched(first.count_present()), autograph=False)

    def raise_fence(self, shards: Sequence[recovery.Shard], term: int) -> None:
        """Put every server under `term`.

        Raises:
            RefusedError: another chief was faster on one of them.
        """
        self._demand(self._fence, [(_int64(shard.fence), _int64(term)) for shard in shards])

    def restore(self, state: State, *, term: int, generation: int, fresh: bool) -> None:
        """Replace the state on every server by one set, named `generation`.

        Until all of it is there no server counts as initialised, so nobody works on a part of it.

        Args:
            state: what to write; with `fresh` only its variables count, and the optimizer starts anew.

        Raises:
            RefusedError: a server is under another term.
            StateMismatchError: the state is not of this model and optimizer.
        """
        contents = [self._contents(shard, state, fresh) for shard in self.store.shards]
        self.set_record(term, generation=0, done=0)
        self._demand(self._write, [(_int64(term), vectors, own) for vectors, own in contents])
        self.set_record(term, generation=generation, done=0, step=state.step, layout=self.store.fingerprint)

    def set_record(self, term: int, **fields: int) -> None:
        """Set fields of every server's record: generation, done, step, layout."""
        places = {"generation": GENERATION, "done": DONE, "step": STEP, "layout": LAYOUT}
        values, mask = np.zeros([2, RECORD_SIZE], np.int64)
        for name, value in fields.items():
            values[places[name]], mask[places[name]] = value, 1
        arguments = (_int64(term), tf.constant(values), tf.constant(mask))
        self._demand(self._record, [arguments] * len(self.store.shards))

    def snapshot(self, *, term: int) -> State:
        """The state as it is: of one moment on each server, a few updates apart between servers.

        Raises:
            RefusedError: a server is under another term.
        """
        vectors: list[tuple[layouts.Segment, Array]] = []
        slots: dict[str, list[tuple[layouts.Segment, Array]]] = {}
        scalars: dict[str, Array] = {}
        step, generations = 0, set()
        taken = self.client.call(self._snapshot, [()] * len(self.store.shards))
        for index, (shard, (record, values)) in enumerate(zip(self.store.shards, taken, strict=True)):
            if int(record[FENCE]) != term:
                raise RefusedError(f"parameter server {index} is under term {int(record[FENCE])}")
            generations.add(int(record[GENERATION]))
            step = int(record[STEP]) if index == 0 else step
            found = iter(values)
            vectors += [(segment, next(found)) for segment in shard.segments]
            for slot, number in shard.slots:
                slots.setdefault(slot, []).append((shard.segments[number], next(found)))
            for name in shard.scalars:
                value = next(found)
                scalars.setdefault(name, value)  # servers count alike, a few updates apart: the first one's word
        if len(generations) > 1 or 0 in generations:
            raise RefusedError("the servers do not hold one whole set")
        layout = self.store.layout
        return State(
            step=step,
            variables=layouts.unpack(layout, vectors),
            slots={slot: layouts.unpack(layout, found) for slot, found in slots.items()},
            scalars=scalars,
        )

    def mark(self, file: str) -> None:
        """Write an empty file where each server runs."""
        self.client.call(self._on_all(lambda shard: shard.mark(file)), [()] * len(self.store.shards))

    def take_loss(self) -> float:
        """Mean of the workers' losses since the last call; NaN if there was none."""
        total, number = self.client.call(self._losses)
        return float(total / number) if number else float("nan")

    def workers_present(self) -> int:
        """How many workers have said hello and not good-bye."""
        return int(self.client.call(self._count))

    def _contents(self, shard: Shard, state: State, fresh: bool) -> tuple[list[Array], list[Array] | None]:
        layout = self.store.layout
        try:
            for tensor in layout.tensors:
                if state.variables[tensor.path].shape != tensor.shape:
                    raise StateMismatchError(f"{tensor.path} has another shape in the saved state than in the model")
            vectors = [layouts.pack(layout, segment, state.variables) for segment in shard.segments]
            if fresh:
                return vectors, None
            own = [layouts.pack(layout, shard.segments[number], state.slots[slot]) for slot, number in shard.slots]
            own += [state.scalars[name] for name in shard.scalars]
        except KeyError as error:
            raise StateMismatchError(
                f"the saved state has no {error.args[0]}: it was saved by another model or optimizer"
            ) from None
        return vectors, own

    def _on_all(self, emit: Callable[..., Any]) -> Any:
        """A traced function over a list of arguments, one tuple a server; it returns a list of results."""

        def everywhere(arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
            return [self._fetched(emit(shard, *own)) for shard, own in zip(self.store.shards, arguments, strict=True)]

        return tf.function(everywhere, autograph=False)

    def _fetched(self, result: Any) -> Any:
        with tf.device(self.client.local):
            return tf.nest.map_structure(tf.identity, result)

    def _demand(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call a function whose result is 1 on every server that agrees."""
        replies = self.client.call(function, list(arguments))
        if refused := [index for index, reply in enumerate(replies) if not int(reply)]:
            raise RefusedError(f"parameter servers {refused} are under another term")


def as_shard(row: Array) -> recovery.Shard:
    """A server's record from its vector. int64[5]."""
    return recovery.Shard(
        fence=int(row[FENCE]),
        generation=int(row[GENERATION]),
        done=bool(row[DONE]),
        step=int(row[STEP]),
        layout=int(row[LAYOUT]),
    )


def _int64(value: int) -> Any:
    return tf.constant(value, tf.int64)
