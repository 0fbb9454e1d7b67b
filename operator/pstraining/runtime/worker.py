"""A worker: pull, compute, push, until the chief says that training is done.

It needs nothing but the parameter servers. When they are gone, or their state is being restored, it waits; when its
update is refused, it looks at the servers' records again.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from pstraining.runtime import recovery
from pstraining.runtime.client import Client, ShardLostError
from pstraining.runtime.data import Batches
from pstraining.runtime.modes.async_ import AsyncUpdates
from pstraining.runtime.progress import StepReports, event
from pstraining.runtime.store import ParameterStore

POLL: Final = 0.05
"""Seconds between looks at the servers' records while there is nothing to work on."""


class Worker:
    """One worker's loop."""

    def __init__(self, client: Client, store: ParameterStore, make_data: Callable[[], Any], *, steps: int) -> None:
        self._client, self._store, self._steps = client, store, steps
        self._index = client.cluster.task.index
        self._batches = Batches(make_data, client.local)
        self._updates = AsyncUpdates(store)
        self._reports = StepReports(self._index)

    def run(self) -> None:
        """Train until the job is done."""
        done = False
        while not done:
            try:
                session = self._wait_for_state()
                if session is None:
                    break
                done = self._train(session)
            except ShardLostError as lost:
                self._client.recover(lost)
        self._say_good_bye()
        self._reports.report("worker_done")

    def _wait_for_state(self) -> recovery.Session | None:
        """A session once the servers hold one whole set; None when the job is done."""
        told = time.monotonic()
        while True:
            shards = self._store.read()
            session = recovery.session(shards, layout=self._store.fingerprint)
            if session is not None:
                if all(shard.done for shard in shards):
                    return None
                if shards[0].step < self._steps:
                    self._store.say(self._index, present=True)
                    return session
            if time.monotonic() - told >= 10:
                told = time.monotonic()
                event("waiting", what="the chief", worker=self._index)
            time.sleep(POLL)

    def _train(self, session: recovery.Session) -> bool:
        """Step until the session is over; True when the job is done."""
        while True:
            reply = self._updates.step(self._batches.next(), session)
            if reply.done:
                return True
            if not reply.accepted:
                event("refused", worker=self._index, term=session.term, step=reply.step)
                return False
            self._reports.step(reply.step, reply.loss)
            if reply.step >= self._steps:  # the chief will say so; until then nothing is left to do
                return False

    def _say_good_bye(self) -> None:
        """Tell the chief, who waits for it a little; it does not matter if it cannot be told."""
        try:
            self._store.say(self._index, present=False)
        except ShardLostError as lost:
            event("good_bye_failed", worker=self._index, reason=str(lost))
