"""A worker's vote: a witness promises ballots and accepts views, and serves chiefs over TCP.

Workers hold no state of the shards. They vote, so that one half of a partitioned cluster has a quorum. A connection
carries one request and one reply, a line of JSON each. `replication.acceptor` decides the effect of a request.

Knows no TensorFlow.
"""

import json
import socketserver
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pstraining.launcher.listener import Listener
from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import NO_BALLOT, Ballot, Process, ProcessStatus, View
from pstraining.runtime.transport import sockets

LONGEST_LINE: Final = 1 << 20
"""Maximum bytes of a request or a reply: enough for a view of ten thousand processes."""
CONNECTIONS: Final = 512
"""Maximum connections at a time: every worker polls every witness after a loss."""


Json = dict[str, Any]
"""A JSON object."""


class Verb(StrEnum):
    """The kinds of requests; see `replication.acceptor`."""

    READ = "read"
    PREPARE = "prepare"
    ACCEPT = "accept"
    ADMIT = "admit"


@dataclass(frozen=True)
class Request:
    """A chief's request to one process."""

    verb: Verb
    incarnation: int = 0
    """Incarnation of the target process; any other process ignores the request."""
    ballot: Ballot = NO_BALLOT
    """The chief's ballot."""
    view: View | None = None
    """The view to accept or to admit the process to; None in other requests."""
    founding: bool = False
    """See `replication.view.Accept`."""
    layout: int = 1
    """Number of the layout: a witness votes in each layout as a process of its own."""

    def pack(self) -> Json:
        """Return the request as JSON."""
        if self.verb is Verb.READ:
            return {"do": self.verb, "layout": self.layout}
        return {
            "do": self.verb,
            "layout": self.layout,
            "incarnation": self.incarnation,
            "ballot": list(self.ballot),
            "view": self.view and _encode_view(self.view),
            "founding": self.founding,
        }

    @classmethod
    def unpack(cls, encoded: Json) -> "Request":
        """Return the request that was received.

        Raises:
            ValueError: it is malformed.
        """
        try:
            verb, layout = Verb(encoded["do"]), int(encoded.get("layout", 1))
            if verb is Verb.READ:
                return cls(verb, layout=layout)
            view = _decode_view(encoded["view"]) if encoded["view"] else None
            ballot = Ballot(*encoded["ballot"])
            return cls(verb, int(encoded["incarnation"]), ballot, view, bool(encoded["founding"]), layout)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


class Witness:
    """One worker's acceptors, one for each layout.

    Args:
        incarnation: the process's, which no earlier process of the task had.
        kept: the result of `hand_on`, if this process was renewed; it keeps the incarnation that it had.
    """

    def __init__(self, incarnation: int, kept: Json | None = None) -> None:
        self._statuses = {int(layout): from_json(own) for layout, own in (kept or {}).items()}
        self._incarnation = next((own.incarnation for own in self._statuses.values()), incarnation)
        self._lock, self._is_handed_on = threading.Lock(), False

    def hand_on(self) -> Json:
        """Return the statuses for the process that replaces this one, and answer no request from then on."""
        with self._lock:
            self._is_handed_on = True
            return {str(layout): to_json(own) for layout, own in self._statuses.items()}

    def do(self, request: Request) -> ProcessStatus:
        """Apply a chief's request if it names this process; return the status after it.

        Raises:
            ValueError: the request lacks a view, or the status was handed on.
        """
        with self._lock:
            if self._is_handed_on:
                raise ValueError("this process is being renewed")
            own = self._statuses.get(request.layout) or ProcessStatus(self._incarnation)
            if request.verb is not Verb.READ and request.incarnation == own.incarnation:
                own = self._statuses[request.layout] = _apply(own, request)
            return own


class WitnessServer:
    """Serves a witness until it is closed, in threads that end with the process.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, witness: Witness, port: int) -> None:
        class WitnessHandler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    request = Request.unpack(json.loads(self.rfile.readline(LONGEST_LINE)))
                    reply = to_json(witness.do(request))
                except ValueError as error:
                    reply = {"error": str(error)}
                self.wfile.write(json.dumps(reply).encode() + b"\n")

        self._listener = Listener(port, WitnessHandler, CONNECTIONS)
        self.close = self._listener.start("pstraining-witness")

    @property
    def port(self) -> int:
        """Return the port on which the server listens."""
        return self._listener.port


def serve_witness(addresses: Sequence[str], worker: int, incarnation: int, kept: Json | None = None) -> Witness:
    """Return the worker's witness, and serve it as long as the process lives, if the worker votes.

    Args:
        addresses: host:port of every witness; only the first workers of a job vote, or none.
        worker: the worker's index.
        incarnation: see `Witness`.
        kept: see `Witness`.

    Raises:
        OSError: the port is in use.
    """
    witness = Witness(incarnation, kept)
    if worker < len(addresses):
        WitnessServer(witness, sockets.split(addresses[worker])[1])
    return witness


def ask(address: str, request: Request, patience: float) -> ProcessStatus:
    """Send a request to a witness and return its status.

    Args:
        address: host:port of the witness.
        request: a request to this witness.
        patience: seconds to wait for the reply.

    Raises:
        ConnectionRefusedError: no process listens on the port: the witness has crashed.
        OSError: the witness does not answer.
    """
    with sockets.dial(sockets.split(address), patience) as asked, asked.makefile("rwb") as lines:
        lines.write(json.dumps(request.pack()).encode() + b"\n")
        lines.flush()
        reply = lines.readline(LONGEST_LINE)
    try:
        return from_json(json.loads(reply))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{address} does not answer as a witness does: {reply[:100]!r}, {error}") from None


def to_json(status: ProcessStatus) -> Json:
    """Return a witness's status as JSON."""
    return {
        "incarnation": status.incarnation,
        "promised": list(status.promised),
        "is_voter": status.is_voter,
        "view": status.view and _encode_view(status.view),
    }


def from_json(encoded: Json) -> ProcessStatus:
    """Return the status that `to_json` encoded."""
    view = encoded["view"]
    return replace(
        ProcessStatus(int(encoded["incarnation"])),
        promised=Ballot(*encoded["promised"]),
        is_voter=bool(encoded["is_voter"]),
        view=_decode_view(view) if view else None,
    )


def _apply(status: ProcessStatus, request: Request) -> ProcessStatus:
    match request.verb, request.view:
        case Verb.PREPARE, _:
            return acceptor.on_prepare(status, request.ballot)
        case Verb.ACCEPT, View() as view:
            return acceptor.on_accept(status, view, founding=request.founding)
        case Verb.ADMIT, View() as view:
            return acceptor.on_admit(status, view)
    raise ValueError(f"a request to {request.verb} needs a view")


def _encode_view(view: View) -> list[object]:
    shards = [[list(process) for process in shard] for shard in view.shards]
    return [list(view.ballot), shards, [list(process) for process in view.learners], list(view.successor)]


def _decode_view(encoded: list[Any]) -> View:
    ballot, shards, learners, successor = encoded

    def named(processes: list[Any]) -> tuple[Process, ...]:
        return tuple(Process(*process) for process in processes)

    return View(Ballot(*ballot), tuple(map(named, shards)), named(learners), Ballot(*successor))
