"""A worker's state in mode Hybrid that outlives a failover: identity, dense parameters, ring and progress."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.allreduce.transport import RingTransport
from pstraining.runtime.model.tensor import Batch
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.updates.base import Identity, as_tensor
from pstraining.runtime.updates.hybrid.dense_state import DenseState
from pstraining.runtime.updates.hybrid.ring_member import RingMember


@dataclass
class HybridProgress:
    """The progress of a worker in mode Hybrid; it outlives a failover."""

    generation: int = 0
    """The set of parameters that the progress belongs to."""
    tried: Sequence[Batch] | None = None
    """The last batches whose gradient was summed in a ring, until the outcome of their step is known."""
    loss: float = math.nan
    """Mean loss of the last batches."""


class HybridWorker:
    """A worker's state in mode Hybrid, independent of the members that it trains with.

    Args:
        store: the model and the servers.
        identity: the worker.
    """

    def __init__(self, store: ParameterStore, identity: Identity) -> None:
        client, cluster = store.client, store.client.cluster
        transport = RingTransport(client.container, cluster.own_host, contract.RING_PORTS if cluster.in_pod else ())
        self.dense, self.progress = DenseState(store), HybridProgress()
        self.member = RingMember(identity, self.dense, transport)
        with tf.device(client.local):
            self.identity, self.no_data_progress = identity.tensor(), as_tensor(None)
