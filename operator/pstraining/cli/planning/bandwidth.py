"""Estimates the traffic of a training job on each link, and the best number of parameter servers.

All figures are for one batch of every worker, of dense parameters. Rows of embedding tables depend on the data and are
not included. Links are full-duplex: each direction counts by itself, and an update waits for the busiest direction of
the busiest link. The formulas in sizes of the model are those of BytePS (Jiang et al., OSDI'20), the table in
sections 2 to 4 and theorem 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pstraining.api.codec_sizes import MIN_SHARD_BYTES, SCALE, encoded, servers_used
from pstraining.api.models import MAX_SERVERS, PSTrainingJob
from pstraining.api.standby import StandbyMode
from pstraining.api.training import Codec, CompressionSpec, Mode


def parameter_servers(workers: int, servers: int) -> float:
    """Return the load of the busiest link with plain parameter servers, in sizes of the model.

    Each server receives a share of every worker's gradient, and each worker sends all of its own.
    """
    return max(1.0, workers / servers)


def all_reduce(workers: int) -> float:
    """Return the load of the busiest link with a ring of workers, in sizes of the model."""
    return 2 * (workers - 1) / workers


def optimum(workers: int, servers: int) -> float:
    """Return the minimum load with both kinds of machines, in sizes of the model, for at most one server per worker."""
    n, k = workers, min(workers, servers)
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k) if n > 1 else 0.0


@dataclass(frozen=True)
class Exchange:
    """The exchange of updates between a job's workers and servers."""

    workers: int
    servers: int
    standbys: int = 0
    """Hot standbys per server. They receive the gradients of every update."""
    mode: Mode = Mode.ASYNC
    push: Codec = Codec.NONE
    pull: Codec = Codec.NONE
    permille: int = 10
    batches: int = 1
    """Number of a worker's batches per update."""
    least_shard: int = MIN_SHARD_BYTES
    """Minimum bytes of parameters per server."""


@dataclass(frozen=True)
class Link:
    """The links of all tasks of a kind, which carry the same load."""

    task: str
    number: int
    sent: float
    """Bytes per batch."""
    received: float

    @property
    def busier(self) -> float:
        """Bytes in the busier direction."""
        return max(self.sent, self.received)


def of_job(job: PSTrainingJob) -> Exchange:
    """Return the exchange of a job, with the runtime's defaults for fields that the job does not set."""
    training, ps = job.spec.training, job.spec.ps
    compression = training.compression or CompressionSpec()
    hot = ps.standby.mode is StandbyMode.HOT
    return Exchange(
        workers=job.spec.worker.replicas,
        servers=ps.replicas,
        standbys=ps.standby.replicas_per_shard if hot else 0,
        mode=training.mode or Mode.ASYNC,
        push=compression.push or Codec.NONE,
        pull=compression.pull or Codec.NONE,
        permille=compression.top_k_permille or 10,
        batches=max(training.accumulation_steps or 1, training.local_steps or 1),
        least_shard=MIN_SHARD_BYTES if training.min_shard_bytes is None else training.min_shard_bytes,
    )


def links(how: Exchange, values: int) -> tuple[Link, ...]:
    """Return the load of every link for one batch of every worker.

    Args:
        how: the job's exchange.
        values: dense parameters of the model, of four bytes each.
    """
    size, servers = SCALE * values, used(how, values)
    if how.mode is Mode.HYBRID:
        each = all_reduce(how.workers) * size / how.batches
        ring = Link("worker", how.workers, each, each), Link("parameter server", servers, 0.0, 0.0)
        return (*ring, Link("hot standby", servers * how.standbys, 0.0, 0.0)) if how.standbys else ring
    push = encoded(how.push, values, permille=how.permille) / how.batches
    pull = encoded(how.pull, values, permille=how.permille) / how.batches
    share = how.workers / servers
    # In Sync, a standby receives the uncompressed mean gradient; otherwise every gradient as the primary received it.
    handed = size / how.batches / servers if how.mode is Mode.SYNC else share * push
    found = (
        Link("worker", how.workers, push, pull),
        Link("parameter server", servers, share * pull + how.standbys * handed, share * push),
        Link("hot standby", servers * how.standbys, 0.0, handed),
    )
    return tuple(link for link in found if link.number)


def busiest(found: Iterable[Link]) -> Link:
    """Return the link that an update waits for."""
    return max(found, key=lambda link: link.busier)


def with_servers(how: Exchange, number: int) -> Exchange:
    """Return the exchange with another number of parameter servers."""
    return replace(how, servers=number)


def used(how: Exchange, values: int) -> int:
    """Return the number of parameter servers that the runtime uses: each of them holds at least `least_shard` bytes.

    Tables are not counted, so a model that has them may use more servers.
    """
    return servers_used(how.servers, SCALE * values, how.least_shard)


def recommended(how: Exchange, values: int) -> int:
    """Return the smallest number of parameter servers with the lowest load of the busiest link.

    With more servers, a worker's own link is the busiest, and they do not reduce its load. Or the model is too small
    for them, or a job cannot have them.
    """
    if how.mode is Mode.HYBRID:
        return 1
    worker, server, *standbys = links(with_servers(how, 1), values)
    most = max(link.busier for link in (server, *standbys))  # inversely proportional to the number of servers
    return min(max(1, math.ceil(most / worker.busier - 1e-9)), used(with_servers(how, MAX_SERVERS), values))


def ways(how: Exchange) -> dict[str, Exchange]:
    """Return other exchanges for the same job, by the settings that a user would change.

    Codecs keep accuracy through error feedback. The number of batches per update stays, because it affects training.
    """
    sync = replace(how, mode=Mode.SYNC)
    return {
        "mode: Async": replace(how, mode=Mode.ASYNC, push=Codec.NONE, pull=Codec.NONE),
        "mode: Async, push: Int8, pull: Bf16": replace(how, mode=Mode.ASYNC, push=Codec.INT8, pull=Codec.BF16),
        "mode: Sync": replace(sync, push=Codec.NONE, pull=Codec.NONE),
        "mode: Sync, push: Int8, pull: Int8": replace(sync, push=Codec.INT8, pull=Codec.INT8),
        "mode: Sync, push: OneBit, pull: OneBit": replace(sync, push=Codec.ONE_BIT, pull=Codec.ONE_BIT),
        "mode: Sync, push: TopK, pull: TopK": replace(sync, push=Codec.TOP_K, pull=Codec.TOP_K),
        "mode: Hybrid": replace(how, mode=Mode.HYBRID),
    }
