"""Simulated processes, as threads that are killed at random before or after calls of a server, and replaced."""

import random
import threading
from collections.abc import Callable
from typing import Any

AFTERLIFE = 0.5
"""The share of replaced processes that continue for a few more calls beside their successors."""
LAST_CALLS = 5


class KilledError(BaseException):
    """Ends the thread of a killed process; the program catches no such exception."""


class Kills:
    """Decides how many processes are killed, and when.

    Args:
        number: the total number of kills.
        seed: of the random numbers.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.left, self.made = number, 0
        self._draw, self._lock = random.Random(seed), threading.Lock()

    def is_hit(self, chance: float) -> bool:
        """Whether to kill the calling process now."""
        with self._lock:
            hit = self.left > 0 and self._draw.random() < chance
            self.left -= hit
            self.made += hit
            return hit

    def continues(self) -> bool:
        """Whether a killed process continues for a while, as a process does on a partitioned node."""
        with self._lock:
            return self._draw.random() < AFTERLIFE


class Fate:
    """Tracks whether one process is to be killed."""

    def __init__(self, kills: Kills, chance: float) -> None:
        self._kills, self._chance = kills, chance
        self._calls_left: int | None = None
        self.over = threading.Event()
        """Set when the process is given up and its successor may start."""

    def die_if_due(self) -> None:
        """Kill the process at this point if its time has come."""
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left <= 0:
                raise KilledError
        elif self._kills.is_hit(self._chance):
            self.over.set()
            if not self._kills.continues():
                raise KilledError
            self._calls_left = LAST_CALLS


_fates: dict[int, Fate] = {}
"""The fate of each thread."""


def killable(guarded: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `Client._guarded` for threads that may be killed before and after each call."""

    def call(*arguments: Any) -> Any:
        fate = _fates.get(threading.get_ident())
        if fate:
            fate.die_if_due()
        found = guarded(*arguments)
        if fate:
            fate.die_if_due()
        return found

    return call


class Line(threading.Thread):
    """Runs a task's processes one after another, until one of them finishes.

    Args:
        kills: the workers that crash.
        chance: of being killed at each moment.
        process: runs the process of that number, from 1.
    """

    def __init__(self, kills: Kills, chance: float, process: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._kills, self._chance, self._process = kills, chance, process
        self.error: BaseException | None = None
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        number = 0
        while not self._done.is_set() and self.error is None:
            number += 1
            fate = Fate(self._kills, self._chance)
            thread = threading.Thread(target=self._live, args=(number, fate), daemon=True)
            thread.start()
            while thread.is_alive() and not fate.over.wait(0.02):
                pass

    def _live(self, number: int, fate: Fate) -> None:
        _fates[threading.get_ident()] = fate
        try:
            self._process(number)
            if not fate.over.is_set():
                self._done.set()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - for the test
            self.error = error
        finally:
            del _fates[threading.get_ident()]
