"""What a training job's network has to carry, link by link, and how many parameter servers make it as fast as can be.

All figures are for one batch of every worker, of dense parameters: touched rows of embedding tables are whatever the
data touches. Links are full-duplex: each way counts by itself, and the fuller way of the fullest link is what an update
waits for. The formulas in sizes of the model are those of BytePS (Jiang et al., OSDI'20), the table in sections 2 to 4
and theorem 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pstraining.api.codec_sizes import MIN_SHARD_BYTES, SCALE, encoded
from pstraining.api.models import PSTrainingJob
from pstraining.api.standby import StandbyMode
from pstraining.api.training import Codec, CompressionSpec, Mode


def parameter_servers(workers: int, servers: int) -> float:
    """The busiest link with plain parameter servers, in sizes of the model: each server takes a share of every worker's
    gradient; each worker sends all of its own."""
    return max(1.0, workers / servers)


def all_reduce(workers: int) -> float:
    """The same with a ring of workers."""
    return 2 * (workers - 1) / workers


def optimum(workers: int, servers: int) -> float:
    """The least that is possible with the load split over both kinds of machines, for at most a server a worker."""
    n, k = workers, min(workers, servers)
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k) if n > 1 else 0.0


@dataclass(frozen=True)
class Exchange:
    """How a job's workers and servers talk."""

    workers: int
    servers: int
    standbys: int = 0
    """Hot ones of each server, which get what every update is made of."""
    mode: Mode = Mode.ASYNC
    push: Codec = Codec.NONE
    pull: Codec = Codec.NONE
    permille: int = 10
    batches: int = 1
    """Batches of a worker between two of its updates."""
    least_shard: int = MIN_SHARD_BYTES
    """Bytes that a server is worth using for."""


@dataclass(frozen=True)
class Link:
    """The links of all tasks of a kind: each carries the same."""

    task: str
    number: int
    sent: float
    """Bytes a batch."""
    received: float

    @property
    def busier(self) -> float:
        """Bytes of the fuller way."""
        return max(self.sent, self.received)


def of_job(job: PSTrainingJob) -> Exchange:
    """How the tasks of a job talk, whose program leaves to the runtime what the job leaves out."""
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
    """What every link carries for a batch of every worker.

    Args:
        how: the job.
        values: dense parameters of the model, of four bytes each.
    """
    size = SCALE * values
    if how.mode is Mode.HYBRID:
        each = all_reduce(how.workers) * size / how.batches
        ring = Link("worker", how.workers, each, each), Link("parameter server", how.servers, 0.0, 0.0)
        return (*ring, Link("hot standby", how.servers * how.standbys, 0.0, 0.0)) if how.standbys else ring
    push = encoded(how.push, values, permille=how.permille) / how.batches
    pull = encoded(how.pull, values, permille=how.permille) / how.batches
    share = how.workers / how.servers
    # In step a standby gets the mean gradient as it is; else every gradient as the primary got it.
    handed = size / how.batches / how.servers if how.mode is Mode.SYNC else share * push
    found = (
        Link("worker", how.workers, push, pull),
        Link("parameter server", how.servers, share * pull + how.standbys * handed, share * push),
        Link("hot standby", how.servers * how.standbys, 0.0, handed),
    )
    return tuple(link for link in found if link.number)


def busiest(found: Iterable[Link]) -> Link:
    """The link that an update waits for."""
    return max(found, key=lambda link: link.busier)


def seconds(found: Iterable[Link], megabits: float) -> float:
    """The seconds that the busiest link takes, at this number of megabits per second each way."""
    return busiest(found).busier * 8 / (megabits * 1e6)


def with_servers(how: Exchange, number: int) -> Exchange:
    """The same job with another number of parameter servers."""
    return replace(how, servers=number)


def recommended(how: Exchange, values: int) -> int:
    """The smallest number of parameter servers with which no link is fuller than with any other number.

    From there on a worker's own link is the fullest, which no further server relieves. A server that would hold less
    than `least_shard` is not used.
    """
    if how.mode is Mode.HYBRID:
        return 1
    worker, server, *standbys = links(with_servers(how, 1), values)
    most = max(link.busier for link in (server, *standbys))  # falls with the number of servers
    worth = max(1, SCALE * values // how.least_shard) if how.least_shard else math.inf
    return int(min(max(1, math.ceil(most / worker.busier - 1e-9)), worth))


def ways(how: Exchange) -> dict[str, Exchange]:
    """Other ways for the same job to exchange its updates, by what a user would set; codecs keep accuracy by error
    feedback, more batches an update change what is trained."""
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
