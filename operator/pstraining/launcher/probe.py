"""Probes parameter servers (PSs), and decides from the results whether a program failed because a PS was lost.

The decisions, above `try_connect`, are pure. This is one of the launcher's files. In a pod it is beside launch.py, and
it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Callable, Collection, Mapping, NamedTuple, Tuple  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import STATUS_PORT, TF_PORT, host_and_port
else:
    from contract import STATUS_PORT, TF_PORT, host_and_port

OPEN, REFUSED, SILENT = "open", "refused", "silent"
ANSWER_SECONDS = 3
"""Timeout for the launcher's answer where TensorFlow's port is open."""
LATE_SECONDS = 0.1
"""Wait for further answers once enough PSs have answered: a reachable PS answers within milliseconds."""
CHECK_SECONDS = 0.5
"""Seconds between two checks whether answers are still awaited."""
AT_ONCE = 128
"""Maximum number of threads that probe: a node may permit a pod no more than some hundreds of threads."""
View = Tuple[int, ...]  # noqa: UP006 - Python 3.8
"""Term and epoch of a view; empty if it is unknown."""
LossVerdict = Enum("LossVerdict", "PS_LOST OWN_FAILURE ASK_AGAIN")


class PsProbe(NamedTuple):
    """Result of probing one PS: its TensorFlow port and its launcher's status."""

    port: str = SILENT
    """OPEN, REFUSED or SILENT."""
    why: str = "not asked yet"
    """Why the port is not open; empty if it is."""
    boot_id: str | None = None
    """The identity of the server's process; None if no launcher answered."""
    state: str = ""
    """Starting, Serving or Terminating; empty if no launcher answered."""
    term: int | None = None
    """The newest term of the chief that the launcher has read; None if it did not report one."""
    in_sync: bool = False
    """Whether the chief has marked this member as in sync."""
    view: View = ()
    """The view in which it is in sync; empty if its launcher did not report one."""
    layout: int | None = None
    """The layout for which the server runs; None if its launcher did not report one."""


Probes = Mapping[str, PsProbe]
"""Results by the PS's address."""


def status_port(port: int) -> int:
    """Return the port of a PS's launcher, by its TensorFlow port."""
    return port + STATUS_PORT - TF_PORT


def to_view(text: str) -> View:
    """Return the view with this text: the term, a period and the epoch.

    Raises:
        ValueError: the text has other characters.
    """
    return tuple(int(number) for number in text.split(".") if number)


def judge_ps(before: PsProbe, after: PsProbe) -> LossVerdict:
    """Return the verdict about one PS. ASK_AGAIN means that it may be lost or restarting."""
    if after.boot_id not in (None, before.boot_id):
        return LossVerdict.PS_LOST
    is_healthy = after.boot_id and after.port == OPEN and after.state == "Serving"
    return LossVerdict.OWN_FAILURE if is_healthy else LossVerdict.ASK_AGAIN


def judge(before: Probes, after: Probes, elapsed: float, grace: float) -> LossVerdict:
    """Return why a program failed.

    Args:
        before: the PSs before the program ran.
        after: the PSs after its end.
        elapsed: seconds since the program's end.
        grace: seconds after which a PS that is still unreachable is lost.
    """
    verdicts = {judge_ps(probe, after.get(ps, PsProbe())) for ps, probe in before.items()}
    if verdicts <= {LossVerdict.OWN_FAILURE}:
        return LossVerdict.OWN_FAILURE
    is_lost = LossVerdict.PS_LOST in verdicts or elapsed >= grace
    return LossVerdict.PS_LOST if is_lost else LossVerdict.ASK_AGAIN


def try_connect(host: str, port: int) -> PsProbe:
    """Probe whether a port accepts connections."""
    try:
        socket.create_connection((host, port), 1).close()
        return PsProbe(OPEN, "")
    except OSError as error:
        state = REFUSED if isinstance(error, ConnectionRefusedError) else SILENT
        return PsProbe(state, error.strerror or str(error))


def is_open(host: str, port: int) -> bool:
    """Whether a port accepts connections."""
    return try_connect(host, port).port == OPEN


def probe(address: str) -> PsProbe:
    """Probe one PS."""
    host, port = host_and_port(address)
    result = try_connect(host, port)
    timeout = ANSWER_SECONDS if result.port == OPEN else 1
    connection = http.client.HTTPConnection(host, status_port(port), timeout=timeout)
    with suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        connection.request("GET", "/v1/status")
        status = json.loads(connection.getresponse().read(65536))
        result = result._replace(boot_id=str(status["bootId"]), state=str(status["state"]), term=status.get("term"))
        result = result._replace(in_sync=bool(status.get("inSync")), layout=status.get("layout"))
        result = result._replace(view=to_view(str(status.get("view") or "")))
    connection.close()
    return result


def probe_all(addresses: Collection[str], is_enough: Callable[[Probes], bool] = lambda _: False) -> dict[str, PsProbe]:
    """Probe many PSs, AT_ONCE at the same time, until all or enough of them have answered.

    A PS whose answer was not awaited has the default result. Its thread ends later and holds no resources.
    `is_enough` is called at each answer, and every CHECK_SECONDS: a name server may keep all threads waiting.
    """
    answers: queue.SimpleQueue[tuple[str, PsProbe]] = queue.SimpleQueue()
    left = deque(addresses)

    def probe_left() -> None:
        while True:
            try:
                ps = left.popleft()
            except IndexError:
                return
            answers.put((ps, probe(ps)))

    for _ in range(min(AT_ONCE, len(addresses))):
        threading.Thread(target=probe_left, daemon=True).start()
    results: dict[str, PsProbe] = {}
    until = None
    while len(results) < len(addresses):
        if until is None and is_enough(results):
            until = time.monotonic() + LATE_SECONDS
        try:
            ps, result = answers.get(timeout=CHECK_SECONDS if until is None else max(0.0, until - time.monotonic()))
            results[ps] = result
        except queue.Empty:
            if until is not None:
                break
    left.clear()
    return {ps: results.get(ps, PsProbe()) for ps in addresses}
