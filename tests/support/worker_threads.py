"""Workers as threads on real parameter servers."""

import faulthandler
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.support.servers import Rig

if TYPE_CHECKING:  # imported here because it imports TensorFlow
    from pstraining.runtime.ps.data_ledger import SplitPosition


class Crew:
    """Workers as threads, each with its batches; `join` raises the error of a failed worker.

    Args:
        rig: has the workers.
        shares: each worker's batches.
        accumulation: batches for one update.
        until: the global step at which the workers end, even with batches left. The first worker there ends training on
            the servers, as a chief does. A late worker would otherwise make a step alone.
        progress: for each worker, its position in assigned data after each of its updates.
    """

    def __init__(
        self,
        rig: Rig,
        shares: Sequence[Iterable[Any]],
        *,
        accumulation: int = 1,
        until: int | None = None,
        progress: "Sequence[Sequence[SplitPosition]] | None" = None,
    ) -> None:
        self.errors: list[BaseException] = []
        self.replies: list[list[Any]] = [[] for _ in shares]
        self._accumulation, self._until, self._progress = accumulation, until, progress
        self.threads = [
            threading.Thread(target=self._run, args=(rig.workers[worker], share, worker), daemon=True)
            for worker, share in enumerate(shares)
        ]
        self._rig = rig
        for thread in [*self.threads, threading.Thread(target=self._send_heartbeats, daemon=True)]:
            thread.start()

    def _send_heartbeats(self) -> None:
        """Send heartbeats of the running workers, as their processes do."""
        while any(thread.is_alive() for thread in self.threads):
            for thread, who in zip(self.threads, self._rig.identities, strict=False):
                if thread.is_alive():
                    self._rig.store.heartbeat(who.worker, who.incarnation)
            time.sleep(0.5)

    def _run(self, updates: Any, share: Iterable[Any], worker: int) -> None:
        replies, progress = self.replies[worker], iter(self._progress[worker] if self._progress else ())
        try:
            pending: list[Any] = []
            for batch in share:
                pending.append(batch)
                if len(pending) == self._accumulation:
                    brought = next(progress, None)
                    while True:
                        reply = updates.step(pending, brought)
                        replies.append(reply)
                        if self._until is not None and (reply.done or reply.step >= self._until):
                            self._rig.control.set_record(1, done=1)
                            return
                        assert reply.session_valid
                        if reply.applied:
                            break
                    pending = []
        except BaseException as error:  # noqa: BLE001 - raised again by join
            self.errors.append(error)

    def join(self, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while any(thread.is_alive() for thread in self.threads) and not self.errors:
            if time.monotonic() > deadline:
                faulthandler.dump_traceback(all_threads=True)
                reported = [[(reply.step, reply.applied) for reply in replies] for replies in self.replies]
                raise AssertionError(f"a worker did not come to an end; the workers' steps: {reported}")
            time.sleep(0.01)
        if self.errors:  # the other workers may wait for the failed one
            raise self.errors[0]
