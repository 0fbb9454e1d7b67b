"""The chief's account of the active view: losses, switchovers, and the markers that launchers read."""

import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import tensorflow as tf

from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication.member_calls import MemberCalls
from pstraining.runtime.replication.view import Process, View
from pstraining.runtime.replication.view_decisions import failed_over, switched_over
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError

QUIET_SECONDS: Final = 1.0
"""Seconds without a view change after which all workers have connected to returned members, and train.

Workers prepare for the next failure afterwards, and report when they have.
"""


class ActiveView:
    """The view that a chief has found active last.

    Args:
        store: the store of all members.
        calls: the calls to processes.
        counters: counts failovers, and the time without a member.
    """

    def __init__(self, store: ParameterStore, calls: MemberCalls, counters: ChiefCounters) -> None:
        self._cluster, self._calls, self._counters = store.servers.cluster, calls, counters
        self._view: View | None = None
        self._changed = time.monotonic()  # when another view became active
        self._markers_written = False
        self.draining: set[Process] = set()
        """Processes that reported draining since the view before became active; some may have ended."""

    @property
    def is_quiet(self) -> bool:
        """Return whether all members were in sync for QUIET_SECONDS, and none drains."""
        whole = self._view is not None and self._is_whole(self._view)
        return whole and not self.draining and time.monotonic() - self._changed > QUIET_SECONDS

    def note(self, view: View, statuses: Collection[Process]) -> None:
        """Account for an active view, and write the markers that launchers read.

        The markers of a member in sync state that it is in sync, and that the runtime owns the state. The markers of a
        drained member are cleared once the view no longer needs it.
        """
        former, self._view = self._view, view
        if view != former:
            self._changed = time.monotonic()
            left = switched_over(former, view, self.draining)
            self.draining &= view.in_sync
            self._counters.on_new_view(lost=failed_over(former, view, left), whole=self._is_whole(view))
            self._markers_written = False
            for process in left:
                event("switchover", server=process.task)
                if process in statuses:
                    with suppress(ShardLostError):  # it ends when its launcher has read that, maybe unanswered
                        self.write_sync_marker(process, "")
        if not self._markers_written:
            for process in sorted(view.in_sync):
                self.write_sync_marker(process, f"{view.ballot.term}.{view.ballot.epoch}")
            self._markers_written = True

    def write_sync_marker(self, process: Process, text: str) -> None:
        """Write a text to the markers that the member's launcher reads; empty: it is not in sync."""
        if not self._cluster.in_pod:
            return
        try:
            self._calls.write_marker(process, text)
        except tf.errors.OpError as error:  # then a drain of its node does not wait for it, and a new chief restores
            event("not_marked", server=process.task, reason=str(error).partition("\n")[0])

    def _is_whole(self, view: View) -> bool:
        return all(len(own) == self._cluster.members for own in view.shards)
