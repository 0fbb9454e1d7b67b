"""Nothing waits for ever on a parameter server that is silent: a thread that looks after what is under way.

TensorFlow puts no limit on a call, and rightly so: a step may honestly take minutes. So a call that takes long makes
this process ask the servers whether they are there (`transport.http2_probe`), and connections to those that are not are
cut, which fails the call. Calls to servers that answer are let alone.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import http2_probe, sockets

EXIT_STUCK: Final = 75
"""The process's exit code when TensorFlow itself no longer comes back from connecting (EX_TEMPFAIL)."""
TICK: Final = 0.25
"""Seconds between looks at what is under way."""
CALL_TIMEOUT_SECONDS: Final = 60.0
"""Seconds after which a call's connections are cut although all servers answer; doubled for the calls that follow, so
that an honestly long step is made in the end."""
CONNECT_TIMEOUT_SECONDS: Final = 20.0
"""The same while connecting; doubled each time that it was in vain."""
FIRST_CALL_TIMEOUT_SECONDS: Final = 3.0
"""The same for the first operation on a server, which is next to none."""
MAX_CUTS: Final = 3
"""Number of vain cuts after which the process exits."""
KEEP_ALIVE_SECONDS: Final = 1.0
"""Seconds between looks for new connections that are not kept alive yet."""


class Watchdog:
    """Keeps sockets to the servers alive-checked, and cuts those that a call waits on in vain.

    Args:
        addresses: of the parameter servers, host:port.
        patience: seconds for a server to answer. They are asked when something has been under way for half as long, and
            again after that: one is noticed 1 to 1.5 times as many seconds after it fell silent, and TICK.
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
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="pstraining-watchdog", daemon=True).start()
        # Without, a process that ends waits for a silent server to take its leave: 15 s measured.
        atexit.register(self.cut_silent)

    @contextmanager
    def watching(self, what: str, *, vital: float | None = None, cuts: int = 0) -> Iterator["Watched"]:
        """Watch what runs inside.

        Args:
            what: it is, for people.
            vital: seconds that it may take; the process ends if cutting the connections does not help. None: it can be
                given up, and takes as long as calls may.
            cuts: how often connections were cut for it in vain before.
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
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(TICK):
            now = time.monotonic()
            if now - self._kept_alive >= KEEP_ALIVE_SECONDS:
                self._kept_alive = now
                sockets.keep_alive(self._addresses)
            with self._lock:
                watched = list(self._watched.values())
            if now - self._asked >= self._ask_after and any(now - item.since >= self._ask_after for item in watched):
                self.cut_silent()
                self._asked = time.monotonic()
            for item in watched:
                if item.look(self._addresses) and not item.fatal:
                    self._patience = max(self._patience, item.patience)

    def cut_silent(self) -> None:
        """Ask every server that this process is connected to, and cut the connections to those that do not answer."""
        if silent := http2_probe.unresponsive_peers(sockets.peers(self._addresses), self._answer_patience):
            event("silent", servers=[sockets.joined(peer) for peer in silent], cut=sockets.cut_peers(silent))


class Watched:
    """Something under way that talks to the servers."""

    def __init__(self, what: str, patience: float, *, fatal: bool, cuts: int) -> None:
        self.what, self.patience, self.fatal = what, patience, fatal
        self.since = time.monotonic()
        self.cuts = cuts
        """How often its connections were cut."""

    def look(self, addresses: Sequence[str]) -> bool:
        """Cut what has lasted too long; whether it has."""
        waited = time.monotonic() - self.since
        if waited < self.patience:
            return False
        if self.fatal and self.cuts + 1 >= MAX_CUTS:
            event("stuck", what=self.what, seconds=round(waited, 1))
            sys.stdout.flush()
            os._exit(EXIT_STUCK)
        self.cuts += 1
        self.patience *= 2
        number = sockets.cut_peers(sockets.peers(addresses))
        event("cut", what=self.what, seconds=round(waited, 1), connections=number)
        return True
