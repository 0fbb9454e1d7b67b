"""The watchdog over calls to parameter servers: calls to servers that do not answer fail.

TensorFlow has no time limit for a call, and a long step may legitimately take minutes. So a thread probes the servers
(`transport.http2_probe`) while a call takes long, and shuts down connections to servers that do not answer, which fails
the call. Calls to servers that answer continue.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pstraining.api import contract
from pstraining.launcher import keepalive
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import http2_probe, sockets

TICK: Final = 0.25
"""Seconds between two checks of the operations under way."""
CALL_TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which a call's connections are cut although all servers answer. The limit doubles each time, so that a
legitimately long step is applied in the end."""
CONNECT_TIMEOUT_SECONDS: Final = 20.0
"""Seconds after which connections are cut while the client connects; the limit doubles each time."""
FIRST_CALL_TIMEOUT_SECONDS: Final = 3.0
"""Seconds after which connections are cut during the first, trivial operation on a server."""
MAX_CUTS: Final = 3
"""Number of cuts without success after which the process exits."""


class Watchdog:
    """Enables keepalive on connections to the servers, and cuts connections to servers that do not answer.

    Args:
        addresses: host:port of every parameter server; the caller may append some.
        patience: seconds for a server's reply. Servers are probed once an operation has been under way for half of
            that time, and repeatedly from then on. A failure is noticed after 1 to 1.5 times the patience, plus TICK.
    """

    def __init__(self, addresses: Sequence[str], patience: float = http2_probe.PROBE_TIMEOUT_SECONDS) -> None:
        self._addresses, self._answer_patience, self._ask_after = addresses, patience, patience / 2
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._number = 0
        self._stopped = threading.Event()
        self._asked = self._kept_alive = 0.0
        self._patience = CALL_TIMEOUT_SECONDS

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name="pstraining-watchdog", daemon=True).start()
        # Otherwise an exiting process waits for servers that do not answer: 15 s measured.
        atexit.register(self.cut_unresponsive)

    @contextmanager
    def watching(self, what: str, *, vital: float | None = None, cuts: int = 0) -> Iterator["Watched"]:
        """Watch the operation that the block runs.

        Args:
            what: name of the operation, for events.
            vital: seconds that the operation may take; the process exits if cutting the connections does not help.
                None: the operation may fail, and has the time limit of calls.
            cuts: number of earlier cuts for it without success.
        """
        patience = self._patience if vital is None else vital * 2**cuts
        watched = Watched(what, patience, fatal=vital is not None, cuts=cuts)
        with self._lock:
            self._number += 1
            number = self._number
            self._watched[number] = watched
        try:
            yield watched
        finally:
            with self._lock:
                del self._watched[number]

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(TICK):
            now = time.monotonic()
            if now - self._kept_alive >= keepalive.SEARCH_SECONDS:
                self._kept_alive = now
                sockets.keep_alive(self._addresses)
            with self._lock:
                watched = list(self._watched.values())
            if now - self._asked >= self._ask_after and any(now - item.since >= self._ask_after for item in watched):
                self.cut_unresponsive()
                self._asked = time.monotonic()
            for item in watched:
                if item.look(self._addresses) and not item.fatal:
                    self._patience = max(self._patience, item.patience)

    def cut_unresponsive(self) -> None:
        """Probe every connected server, and cut the connections to those that do not answer."""
        if unresponsive := http2_probe.unresponsive_peers(sockets.peers(self._addresses), self._answer_patience):
            event(
                "silent", servers=[sockets.joined(peer) for peer in unresponsive], cut=sockets.cut_peers(unresponsive)
            )


class Watched:
    """An operation under way that waits for servers."""

    def __init__(self, what: str, patience: float, *, fatal: bool, cuts: int) -> None:
        self.what, self.patience, self.fatal = what, patience, fatal
        self.since = time.monotonic()
        self.cuts = cuts
        """Number of times that its connections were cut."""

    def look(self, addresses: Sequence[str]) -> bool:
        """Cut the connections if the operation has lasted too long; return whether it has."""
        waited = time.monotonic() - self.since
        if waited < self.patience:
            return False
        if self.fatal and self.cuts + 1 >= MAX_CUTS:
            event("stuck", what=self.what, seconds=round(waited, 1))
            sys.stdout.flush()
            os._exit(contract.EXIT_START_TIMEOUT)
        self.cuts += 1
        self.patience *= 2
        number = sockets.cut_peers(sockets.peers(addresses))
        event("cut", what=self.what, seconds=round(waited, 1), connections=number)
        return True
