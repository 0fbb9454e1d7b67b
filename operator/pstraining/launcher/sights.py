"""What a look at parameter servers (PSs) shows, and what it says about a program that has failed.

launch.py, beside it in the pod, imports this file; it stands on Python 3.8's standard library alone. What stands above
`knock` decides from values.
"""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
import time
from contextlib import suppress
from enum import Enum
from typing import Callable, Collection, Mapping, NamedTuple  # noqa: UP035 - Python 3.8

TF_PORT, STATUS_PORT = 2222, 2223
OPEN, REFUSED, SILENT = "open", "refused", "silent"
ANSWER_SECONDS = 3
"""For so long a launcher's answer is waited for where TensorFlow's port is open."""
LATE_SECONDS = 0.1
"""For so long others are waited for when enough have answered: who is there answers in a few milliseconds."""
Verdict = Enum("Verdict", "PS_LOST OWN_FAILURE ASK_AGAIN")


class Sight(NamedTuple):
    """What one look at a PS showed: TensorFlow's port, and what the PS's launcher says, if there is one."""

    port: str = SILENT
    why: str = "not asked yet"
    boot_id: str | None = None
    state: str = ""
    term: int | None = None
    in_sync: bool = False


Sights = Mapping[str, Sight]


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def status_port(port: int) -> int:
    """Where the launcher of a PS whose TensorFlow listens on `port` tells its status."""
    return port + STATUS_PORT - TF_PORT


def judge_ps(before: Sight, after: Sight) -> Verdict:
    """What one PS says about a failure; ASK_AGAIN: it may be gone, it may be on its way back."""
    if before.boot_id is None:  # no launcher there: only its port can tell, and only while it is away
        return {OPEN: Verdict.OWN_FAILURE, REFUSED: Verdict.PS_LOST}.get(after.port, Verdict.ASK_AGAIN)
    if after.boot_id not in (None, before.boot_id):
        return Verdict.PS_LOST
    healthy = after.boot_id and after.port == OPEN and after.state == "Serving"
    return Verdict.OWN_FAILURE if healthy else Verdict.ASK_AGAIN


def judge(before: Sights, after: Sights, elapsed: float, grace: float) -> Verdict:
    """Why a program failed: the PSs before it ran, and as they are `elapsed` seconds after its end."""
    verdicts = {judge_ps(sight, after.get(ps, Sight())) for ps, sight in before.items()}
    if verdicts <= {Verdict.OWN_FAILURE}:
        return Verdict.OWN_FAILURE
    return Verdict.PS_LOST if Verdict.PS_LOST in verdicts or elapsed >= grace else Verdict.ASK_AGAIN


def knock(host: str, port: int) -> Sight:
    """Whether a port accepts connections."""
    try:
        socket.create_connection((host, port), 1).close()
        return Sight(OPEN, "")
    except OSError as error:
        return Sight(REFUSED if isinstance(error, ConnectionRefusedError) else SILENT, error.strerror or str(error))


def is_open(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    return knock(host, port).port == OPEN


def look(address: str) -> Sight:
    """Look at a PS once."""
    host, port = host_and_port(address)
    sight, port = knock(host, port), status_port(port)
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS if sight.port == OPEN else 1)
    with suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        connection.request("GET", "/v1/status")
        status = json.loads(connection.getresponse().read(65536))
        sight = sight._replace(boot_id=str(status["bootId"]), state=str(status["state"]), term=status.get("term"))
        sight = sight._replace(in_sync=bool(status.get("inSync")))
    connection.close()
    return sight


def look_at(addresses: Collection[str], is_enough: Callable[[Sights], bool] = lambda _: False) -> dict[str, Sight]:
    """Look at many PSs at once, a thread each: at all, or until those that were seen are enough.

    Whom nobody waited for is as one that was not asked, and its thread ends later: it holds nothing.
    """
    told: queue.SimpleQueue[tuple[str, Sight]] = queue.SimpleQueue()
    for ps in addresses:
        threading.Thread(target=lambda ps: told.put((ps, look(ps))), args=(ps,), daemon=True).start()
    seen: dict[str, Sight] = {}
    until = None
    while len(seen) < len(addresses):
        if until is None and is_enough(seen):
            until = time.monotonic() + LATE_SECONDS
        try:
            ps, sight = told.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        seen[ps] = sight
    return {ps: seen.get(ps, Sight()) for ps in addresses}
