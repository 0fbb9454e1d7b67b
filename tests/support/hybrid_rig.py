"""A model on real parameter servers in mode Hybrid."""

from typing import Any

import numpy as np

from pstraining.runtime.updates.base import Identity
from tests.support.servers import SESSION, Rig


class HybridRig(Rig):
    """A rig of hybrid updates."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, mode="Hybrid", **options)

    def replace(self, worker: int) -> None:
        """Replace a worker's process by its next incarnation."""
        self.workers[worker].close()
        self.identities[worker] = Identity(worker, self.identities[worker].incarnation + 1)
        self.workers[worker] = self.mode.make(self.new_store(), self.identities[worker])
        assert self.store.register(worker, self.identities[worker].incarnation)
        self.workers[worker].start_session(SESSION)
        self.workers[worker]._register()  # so that the other workers do not start without this one

    def assert_replicas_are_equal(self) -> None:
        first, *others = (updates._dense.read() for updates in self.workers)
        for other in others:
            for one, two in zip(first, other, strict=True):
                np.testing.assert_array_equal(one, two)
