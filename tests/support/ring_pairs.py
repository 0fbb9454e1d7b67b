"""Hybrid rounds on pairs of servers, interrupted after any message: dense state on workers, tables on servers."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pstraining.runtime.ps.record import Assignment, Session
from tests.support.pairs import STEPS, WORKERS, Message, Pairs
from tests.training import test_runtime_embedding as embedding


def model() -> Any:
    """Return a model of a table and a dense layer, which has a tensor on each of two servers."""
    import keras

    from pstraining.runtime import Embedding

    items = keras.Input((embedding.FEATURES,), dtype="int32")
    rows = keras.layers.Flatten()(Embedding(embedding.ROWS, embedding.WIDTH, name="items")(items))
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(rows))


class RingPairs(Pairs):
    """Two shards of two members each, and two workers that hold the sum of their dense gradients."""

    mode = "Hybrid"

    def __init__(self, client: Any, optimizer: Callable[[], Any]) -> None:
        super().__init__(client, optimizer, model, loss="binary_crossentropy")
        self._controls: dict[Assignment, Any] = {}
        self.updates = [[[batch] for batch in share] for share in self.shares]
        """The batches of each worker's updates; a repeated update has the same objects."""

    def close(self) -> None:
        """Close the workers' connections."""
        for updates in self.rig.workers:
            updates.close()

    def begin(self) -> None:
        """Restore the initial state on all members, and invalidate the workers' dense state."""
        self._generation += 1
        super().begin()

    def play(self, messages: Sequence[Message]) -> None:
        """Let workers form a ring and compute their first sum; then send these messages of the first round."""
        self.begin()
        gradients = self._together(self._sum)
        self._send(messages, gradients, attempt=self.rig.workers[0]._member.ring.number)

    def _totals(self, sums: Sequence[Any]) -> Any:
        """Return the totals, including the squares of the workers' dense gradients."""
        dense = [self.rig.workers[0]._dense.squares(valid=True)] if len(sums) > 1 else []
        return super()._totals([*sums, *dense])

    def lose_sum(self, worker: int) -> None:
        """Discard a worker's sum, as if its last bytes had not arrived."""
        self.rig.workers[worker]._member.held = None

    def replace(self, worker: int, left: Assignment) -> None:
        """Replace a worker by its next process, which has no state."""
        who = self.rig.identities[worker]
        who = self.rig.identities[worker] = replace(who, incarnation=who.incarnation + 1)
        updates = self._workers_on(left)[worker]
        updates._shared.identity = who.tensor()
        member, memory = updates._member, updates._worker_progress
        member.leave()
        member.identity, memory.tried, memory.generation = who, None, 0
        assert updates._store.register(worker, who.incarnation)

    def finish(self, left: Assignment, newcomer: int | None = None) -> None:
        """Both workers train until the last step; survivors resend unacknowledged requests."""
        workers, made = self._workers_on(left), self._step(0, left[0][0])
        for updates in workers:
            updates.start_session(Session(self._ballot, self._generation))
        tried = [memory.tried is not None for memory in (updates._worker_progress for updates in workers)]

        def train(worker: int) -> None:
            for batches in self.updates[worker][0 if tried[worker] and worker != newcomer else made :]:
                while not (reply := workers[worker].step(batches)).applied:
                    assert reply.session_valid, f"worker {worker} was refused at step {reply.step}"

        self._together(train)
        self._push_dense(left, workers)

    def _push_dense(self, left: Assignment, workers: Sequence[Any]) -> None:
        from pstraining.runtime.chief.store_admin import StoreAdmin

        if left not in self._controls:
            self._controls[left] = StoreAdmin(self.rig.store.for_assignment(left))
        control = self._controls[left]

        def wait() -> None:
            for updates in workers:
                updates.on_idle(control.store.read())

        step = control.flush_dense(wait)
        control.resume_steps()
        assert step == STEPS, f"they came to step {step}"

    def _sum(self, worker: int) -> Any:
        updates, batches = self.rig.workers[worker], self.updates[worker][0]
        assert updates._run_round(None, 0.0) is None
        updates._dense.show()
        gradient = updates._compute(batches)
        updates._worker_progress.tried = batches
        assert updates._member.add_up(gradient, updates._is_ring_current, updates._ops.fetch_rates)
        return gradient

    @staticmethod
    def _together(do: Callable[[int], Any]) -> list[Any]:
        """Run the workers as threads, and return their results."""
        found: list[Any] = [None] * WORKERS
        errors: list[BaseException] = []

        def run(worker: int) -> None:
            try:
                found[worker] = do(worker)
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not errors:  # the other worker may wait for the failed one
                thread.join(0.01)
        if errors:
            for thread in threads:  # a late thread of the other worker must not disturb the next test
                thread.join(10)
            raise errors[0]
        return found

    def _share(self, worker: int) -> list[Any]:
        return [(items, labels) for (items, _), labels in embedding.batches(STEPS, seed=worker)]
