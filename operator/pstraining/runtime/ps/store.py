"""The state of training on all parameter servers together.

`ParameterStore` emits the operations of a worker's traced step. `chief.store_admin` administers the same state.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from pstraining.runtime.config.cluster import known_workers
from pstraining.runtime.model import partition
from pstraining.runtime.model.errors import ModelError
from pstraining.runtime.model.keras_model import Fetch, Model
from pstraining.runtime.model.optimizers.sparse_optimizer import routed
from pstraining.runtime.model.tensor import Operation, Tensor
from pstraining.runtime.ps import ledger_ops
from pstraining.runtime.ps.critical_section import critical
from pstraining.runtime.ps.messages import Sender, SessionToken, SplitReply
from pstraining.runtime.ps.record import Assignment, RecordField, Session, ShardRecord
from pstraining.runtime.ps.shard import ServerHooks, Shard
from pstraining.runtime.ps.tensors import field
from pstraining.runtime.transport.client import PSClient
from pstraining.runtime.transport.layout_servers import LayoutServers


class ModelMembers:
    """All members of all shards of a model, in use or not; the stores for every assignment share them.

    Args:
        client: the connection to the servers.
        model: the model whose state they hold.
        updates: the hooks of the update mode.
        min_bytes: minimum bytes of parameters per server; see `partition.servers_to_use`.
        acceptor_size: length of an acceptor's vector, see `replication.encoding`; 0: the job has no standbys.
        servers: the servers of the layout; None: of the layout that the client uses.
    """

    def __init__(
        self,
        client: PSClient,
        model: Model,
        updates: ServerHooks | None = None,
        *,
        min_bytes: int = 0,
        acceptor_size: int = 0,
        servers: LayoutServers | None = None,
    ) -> None:
        self.client, self.model, self._min_bytes = client, model, min_bytes
        self.updates, self.servers = updates or ServerHooks(), servers or client.servers_in_use
        _check_dynamic(model, is_hybrid=self.updates.pause_steps is not None)
        tensors, shards = [*model.tensors, *model.frozen_tensors, *model.tables], self.servers.cluster.shards
        used = partition.servers_to_use(tensors, shards, min_bytes)
        self.layout = partition.partition(tensors, used, agrees_on_norms=self.updates.agrees_on_norms)
        self.fingerprint = self.layout.fingerprint(model.identity(), self.updates.name)
        self.of_shards = [
            [
                Shard(
                    device=device,
                    container=self.servers.container,
                    layout=self.layout,
                    ps=index,
                    model=model,
                    updates=self.updates,
                    acceptor_size=acceptor_size,
                )
                for device in self.servers.devices[index::shards]
            ]
            for index in range(self.layout.ps)
        ]
        """The members of each shard, by their numbers."""
        self.frozen_of: int | None = None
        """The generation of the local frozen weights; None before the first."""

    @property
    def all_in_use(self) -> Assignment:
        """Return the assignment of all members."""
        return (tuple(range(self.servers.cluster.members)),) * self.layout.ps

    def on(self, servers: LayoutServers, acceptor_size: int) -> "ModelMembers":
        """Return the members of the same model in another layout."""
        return ModelMembers(
            self.client,
            self.model,
            self.updates,
            min_bytes=self._min_bytes,
            acceptor_size=acceptor_size,
            servers=servers,
        )


class ParameterStore:
    """A model's segments on the members of an assignment.

    Args:
        members: all members.
        assignment: the members in use, the primary of each shard first; None: all.
    """

    def __init__(self, members: ModelMembers, assignment: Assignment | None = None) -> None:
        self._all = members
        self.client, self.model, self.updates = members.client, members.model, members.updates
        self.servers = members.servers
        self.layout, self.fingerprint = members.layout, members.fingerprint
        used = members.all_in_use if assignment is None else assignment
        chosen = [[own[m] for m in numbers] for own, numbers in zip(members.of_shards, used, strict=True)]
        self.shards = [own[0] for own in chosen]
        """Every shard's primary."""
        self.standbys_of = [own[1:] for own in chosen]
        """Every shard's standbys."""
        self.standbys = [standby for standbys in self.standbys_of for standby in standbys]
        self._read = tf.function(self._emit_read, autograph=False)
        self._pull_frozen = tf.function(self._emit_pull_frozen, autograph=False)
        self._register = tf.function(self._emit_register, autograph=False)
        self._deregister = tf.function(self._on_each(lambda shard, *sender: shard.deregister(*sender)), autograph=False)
        self._assign_split = tf.function(self._emit_assign_split, autograph=False)
        self._heartbeat = tf.function(self._emit_heartbeat, autograph=False)
        self._registered = tf.function(self._emit_registered, autograph=False)

    def for_assignment(self, assignment: Assignment) -> "ParameterStore":
        """Return a store of the same parameters with some members of each shard, its primary first."""
        return ParameterStore(self._all, assignment)

    def on(self, servers: LayoutServers, acceptor_size: int) -> "ParameterStore":
        """Return a store of the same model in another layout, with all its members."""
        return ParameterStore(self._all.on(servers, acceptor_size))

    def member(self, shard: int, number: int) -> Shard:
        """Return one member of a shard, in use or not."""
        return self._all.of_shards[shard][number]

    @property
    def members_of(self) -> list[list[Shard]]:
        """Return the members in use of each shard, the primary first."""
        return [[primary, *own] for primary, own in zip(self.shards, self.standbys_of, strict=True)]

    @property
    def every(self) -> list[Shard]:
        """Return all members in use, primaries first."""
        return [*self.shards, *self.standbys]

    def read(self) -> list[ShardRecord]:
        """Return every server's record, the primaries' first."""
        return [ShardRecord.from_vector(row) for row in self.client.call(self._read)]

    def register(self, worker: int, incarnation: int) -> bool:
        """Register this worker; return False if a newer process has the index."""
        sender = worker, incarnation, known_workers()
        return bool(self.client.call(self._register, *map(int64, sender)).all())

    def registered(self) -> partition.Array:
        """Return the incarnation of each worker that is registered on the first server, by index; 0: none."""
        found: partition.Array = self.client.call(self._registered)
        return found

    def heartbeat(self, worker: int, incarnation: int, report: str = "") -> None:
        """Send a heartbeat with a report."""
        self.client.call(self._heartbeat, int64(worker), int64(incarnation), tf.constant(report))

    def assign_split(self, session: Session, sender: tuple[int, int], limit: int) -> SplitReply[int]:
        """Request a split of the data for a worker and its incarnation; see `ps.ledger_ops.assign_split`."""
        token = SessionToken.pack(session)
        return SplitReply.unpack(self.client.call(self._assign_split, token, Sender.pack(*sender), int64(limit)))

    def hold_frozen(self, session: Session) -> bool:
        """Fetch the frozen weights, once for each set of parameters; return False if the servers hold another set."""
        if self.model.frozen and self._all.frozen_of != session.generation:
            self._all.frozen_of = None
            generations = self.client.call(self._pull_frozen)
            if any(generation != session.generation for generation in generations):
                return False
            self._all.frozen_of = session.generation
        return True

    def deregister(self, worker: int, incarnation: int) -> None:
        """Deregister this worker."""
        self.client.call(self._deregister, int64(worker), int64(incarnation))

    def emit_fetch(self, fetched_as: str | None = None, after: Sequence[Tensor] | None = None) -> list[list[Tensor]]:
        """Emit reading the current parameters; return one vector per segment of every server.

        Args:
            fetched_as: the dtype in which trained float32 parameters are sent; None: as they are.
            after: one tensor per server; a server is read once its tensor is available. None: at once.
        """
        vectors = []
        for shard, ready in zip(self.shards, after or [tf.constant(0)] * len(self.shards), strict=True):
            with tf.control_dependencies([ready]):
                vectors.append(shard.pull(fetched_as))
        return vectors

    def emit_hold(self, vectors: Sequence[Sequence[Tensor]]) -> Operation:
        """Emit writing vectors into the model's local variables; return the operation to wait for.

        Args:
            vectors: for every server, one vector per segment.
        """
        with tf.device(self.client.compute):
            assigned = [
                variable.value.assign(value, read_value=False)
                for variable, value in zip(self.model.variables, self.unpack(vectors), strict=True)
            ]
            with tf.control_dependencies(assigned):
                return tf.constant(0)

    def unpack(self, vectors: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return one tensor per variable, on the device that computes, from one vector per segment of all servers."""
        return self._joined([shard.segments for shard in self.shards], vectors)

    def _joined(
        self, segments: Sequence[Sequence[partition.Segment]], vectors: Sequence[Sequence[Tensor]]
    ) -> list[Tensor]:
        """Return the tensors of these segments, in the order of the layout."""
        parts: dict[int, list[tuple[int, Tensor]]] = {}
        with tf.device(self.client.compute):
            for own, row in zip(segments, vectors, strict=True):
                for segment, vector in zip(own, row, strict=True):
                    values = tf.cast(vector, segment.dtype)
                    sizes = [slice_.size for slice_ in segment.slices]
                    parts_of_vector = tf.split(values, sizes) if len(sizes) > 1 else [values]
                    for slice_, value in zip(segment.slices, parts_of_vector, strict=True):
                        parts.setdefault(slice_.tensor, []).append((slice_.begin, value))
            whole = []
            for index in sorted(parts):
                found = [value for _, value in sorted(parts[index], key=lambda part: part[0])]
                joined = tf.concat(found, 0) if len(found) > 1 else found[0]
                whole.append(tf.reshape(joined, self.layout.tensors[index].shape))
        return whole

    def pack(self, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return one vector per segment of every server, from one tensor per variable of the model, in their order."""
        with tf.device(self.client.compute):
            flat = [tf.reshape(value, [-1]) for value in values]
            return [[self._packed(segment, flat) for segment in shard.segments] for shard in self.shards]

    def fetch_rows_on(self, device: str) -> Fetch:
        """Return the function that emits fetching rows of a table to a device of this task; see `fetch_rows`."""
        return lambda table, indices: self.fetch_rows(table, indices, device)

    def fetch_rows(self, table: int, indices: Tensor, device: str | None = None) -> Tensor:
        """Return rows of a table on a device of this task, from indices without repetition. int64[n] to [n, width]."""
        servers, device = len(self.shards), device or self.client.compute
        with tf.device(device):
            owner, own_index = routed(indices, servers, dynamic=self.model.tables[table].dynamic)
            wanted = tf.dynamic_partition(own_index, owner, servers)
            places = tf.dynamic_partition(tf.range(tf.size(indices)), owner, servers)
        rows = [
            self.client.to_device(shard.fetch_rows(table, local), device)
            for shard, local in zip(self.shards, wanted, strict=True)
        ]
        with tf.device(device):
            return tf.ensure_shape(tf.dynamic_stitch(places, rows), [None, self.model.tables[table].shape[1]])

    def _packed(self, segment: partition.Segment, flat: Sequence[Tensor]) -> Tensor:
        parts = [
            flat[slice_.tensor]
            if slice_.size == self.layout.tensors[slice_.tensor].size
            else flat[slice_.tensor][slice_.begin : slice_.end]
            for slice_ in segment.slices
        ]
        return tf.concat(parts, 0) if len(parts) > 1 else parts[0]

    def _emit_read(self) -> Tensor:
        return self._on_each(lambda shard: shard.read())()

    def _emit_pull_frozen(self) -> list[Tensor]:
        """Emit assigning the frozen weights; return every server's generation. int64[] each."""
        found = [self.client.to_local(_frozen(shard)) for shard in self.shards]
        values = self._joined([shard.frozen_segments for shard in self.shards], [vectors for _, vectors in found])
        with tf.device(self.client.compute):
            assigned = [
                variable.value.assign(value, read_value=False)
                for variable, value in zip(self.model.frozen, values, strict=True)
            ]
        with tf.device(self.client.local), tf.control_dependencies(assigned):
            return [tf.identity(generation) for generation, _ in found]

    def _emit_register(self, *sender: Tensor) -> Tensor:
        def register(shard: Shard, *sender: Tensor) -> Tensor:
            return shard.register(lambda *news: self.updates.on_newcomer(shard, *news), *sender)

        return self._on_each(register)(*sender)

    def _emit_assign_split(self, session: Tensor, sender: Tensor, limit: Tensor) -> Tensor:
        """Emit the first server's reply; a refusal if one of its standbys does not keep the assignment."""
        found, news = ledger_ops.assign_split(self.shards[0], session, sender, limit)
        kept = [self.client.to_local(ledger_ops.keep(standby, session, news)) for standby in self.standbys_of[0]]
        found = self.client.to_local(found)
        with tf.device(self.client.local):
            is_kept = tf.reduce_all(tf.equal(tf.stack([tf.constant(1, tf.int64), *kept]), 1))
            return tf.where(is_kept, found, SplitReply.refusal())

    def _emit_heartbeat(self, *sender: Tensor) -> list[Tensor]:
        firsts = [self.shards[0], *self.standbys_of[0]]
        return [self.client.to_local(shard.heartbeat(*sender)) for shard in firsts]

    def _emit_registered(self) -> Tensor:
        first = self.shards[0]
        with tf.device(first.device):
            found = first.registry.incarnations.read_value()
        return self.client.to_local(found)

    def _on_each(self, emit: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function that stacks, on this task, the result of `emit` on every member in use."""

        def everywhere(*arguments: Tensor) -> Tensor:
            replies = [emit(shard, *arguments) for shard in self.every]
            with tf.device(self.client.local):
                return tf.stack([tf.identity(reply) for reply in replies])

        return everywhere


def _check_dynamic(model: Model, *, is_hybrid: bool) -> None:
    """Refuse tables with rows by key where the servers cannot hold them yet.

    Raises:
        ModelError: names the layer and the way out.
    """
    dynamic = [layer.name for layer in model.embeddings if layer.is_dynamic]
    if dynamic and is_hybrid:
        raise ModelError(
            f"layer {dynamic[0]}: input_dim=None cannot be used with spec.training.mode: Hybrid; use Sync or Async, or "
            "give input_dim a number"
        )


def _frozen(shard: Shard) -> tuple[Tensor, list[Tensor]]:
    """Emit reading a server's generation, int64[], and its frozen vectors, at one moment."""

    def body() -> tuple[Tensor, list[Tensor]]:
        generation = field(shard.record_or_zeros(), RecordField.GENERATION)
        return generation, [vector.read_value() for vector in shard.frozen]

    found: tuple[Tensor, list[Tensor]] = critical(shard.device, shard.container, [], body)
    return found


def int64(value: int) -> Tensor:
    """Return a number as a tensor. int64[]."""
    return tf.constant(value, tf.int64)
