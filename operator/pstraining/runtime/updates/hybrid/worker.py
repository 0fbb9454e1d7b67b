"""A worker's state in mode Hybrid that outlives a failover: identity, dense parameters, ring and progress.

Dense parameters are in the segments of a layout. In the next layout, the workers load them from its servers.
"""

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
from pstraining.runtime.updates.hybrid.protocol import HybridObservation, WorkerState, is_made
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
    sent: WorkerState | None = None
    """The worker's state at the end of the former layout, until the outcome of its last sum is known."""

    def is_sent_made(self, observation: HybridObservation) -> bool:
        """Return whether the last step of the former layout consists of this worker's sum; at the first call only."""
        sent, self.sent = self.sent, None
        if sent is None or not is_made(observation, sent):
            return False
        self.tried = None
        return True


class HybridWorker:
    """A worker's state in mode Hybrid, independent of the members of a layout that it trains with.

    Args:
        store: the model and the servers.
        identity: the worker.
        former: the state in the former layout.
    """

    def __init__(self, store: ParameterStore, identity: Identity, former: "HybridWorker | None" = None) -> None:
        client, cluster = store.client, store.client.cluster
        self.layout, self._former = store.layout, former
        self.dense = DenseState(store)
        self.progress: HybridProgress = former.progress if former else HybridProgress()
        ports = contract.RING_PORTS if cluster.in_pod else ()
        transport = former.member.transport if former else RingTransport(client.container, cluster.own_host, ports)
        self.member: RingMember = RingMember(identity, self.dense, transport)
        with tf.device(client.local):
            self.identity, self.no_data_progress = identity.tensor(), as_tensor(None)

    def on(self, store: ParameterStore) -> "HybridWorker":
        """Return the worker's state for other servers: this one for members of the same layout."""
        return self if store.layout == self.layout else HybridWorker(store, self.member.identity, former=self)

    def take_over(self) -> None:
        """Leave the former layout, at the first call; its servers decide no more steps."""
        if (former := self._former) is None:
            return
        self._former = None
        former.take_over()
        former.member.leave()
        self.progress.sent = former.member.worker_state()
