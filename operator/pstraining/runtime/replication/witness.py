"""A worker's seat: what it has promised, and which roster it knows, served to chiefs over TCP.

Workers hold no state of the shards; they are asked so that one half of a split cluster is a majority. One request a
connection, a line of JSON each way. What a process does with a request is `replication.acceptor`'s own rule. Knows no
TensorFlow.
"""

import json
import socket
import socketserver
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pstraining.runtime.replication import acceptor
from pstraining.runtime.replication.view import Answer, Ballot, Process, Roster
from pstraining.runtime.transport import sockets

LONGEST_LINE: Final = 1 << 20
"""Bytes of a request or an answer: a roster of ten thousand processes."""


class Witness:
    """One worker's seat.

    Args:
        life: the process's name, unlike that of any process that had the index before.
        kept: what `hand_on` gave, if this process was renewed; it goes on under the name that it had.
    """

    def __init__(self, life: int, kept: Mapping[str, Any] | None = None) -> None:
        self._answer = from_json(kept) if kept else Answer(life)
        self._lock, self._is_handed_on = threading.Lock(), False

    def hand_on(self) -> dict[str, Any]:
        """What the seat holds, for who has it after this; here it promises and tells nothing any more."""
        with self._lock:
            self._is_handed_on = True
            return to_json(self._answer)

    def do(self, request: dict[str, Any]) -> Answer:
        """Do what a chief asks for, if this is the process that it means; what the seat holds then.

        Raises:
            ValueError: it is no request, or the seat is handed on.
        """
        with self._lock:
            if self._is_handed_on:
                raise ValueError("this process is being renewed")
            try:
                if request["do"] != "read" and request["life"] == self._answer.life:
                    self._answer = _done(self._answer, request)
            except (KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from None
            return self._answer


class WitnessServer:
    """Serves a seat until it is closed, in threads that end with the process.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, seat: Witness, port: int) -> None:
        class Handler(socketserver.StreamRequestHandler):
            timeout = 5.0

            def handle(self) -> None:
                try:
                    told = to_json(seat.do(json.loads(self.rfile.readline(LONGEST_LINE))))
                except ValueError as error:
                    told = {"error": str(error)}
                self.wfile.write(json.dumps(told).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True
            address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

            def server_bind(self) -> None:
                if self.address_family == socket.AF_INET6:
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                super().server_bind()

        self._server = Server(("", port), Handler)
        threading.Thread(target=self._server.serve_forever, name="pstraining-seat", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def take_seat(seats: Sequence[str], worker: int, life: int, kept: Mapping[str, Any] | None = None) -> Witness:
    """Serve a worker's seat as long as its process lives, where the job's workers have seats.

    Raises:
        OSError: its port is taken.
    """
    seat = Witness(life, kept)
    if seats:
        WitnessServer(seat, sockets.split(seats[worker])[1])
    return seat


def ask(address: str, request: dict[str, Any], patience: float) -> Answer:
    """What a worker answers.

    Args:
        address: host:port of its seat.
        request: "do", and what belongs to it; see `request`.
        patience: seconds for it to answer.

    Raises:
        ConnectionRefusedError: nobody listens there: the process is gone.
        OSError: it does not answer.
    """
    with sockets.dial(sockets.split(address), patience) as asked, asked.makefile("rwb") as lines:
        lines.write(json.dumps(request).encode() + b"\n")
        lines.flush()
        told = lines.readline(LONGEST_LINE)
    try:
        return from_json(json.loads(told))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{address} does not answer as a worker's seat does: {told[:100]!r}, {error}") from None


def request(
    what: str, process: Process, ballot: Ballot, roster: Roster | None = None, *, founding: bool = False
) -> dict[str, Any]:
    """One of "promise", "adopt" and "seat", for one process."""
    return {
        "do": what,
        "life": process.life,
        "ballot": list(ballot),
        "roster": roster and _as_lists(roster),
        "founding": founding,
    }


def to_json(answer: Answer) -> dict[str, Any]:
    """What a seat holds, as it is sent."""
    return {
        "life": answer.life,
        "promised": list(answer.promised),
        "votes": answer.votes,
        "roster": answer.roster and _as_lists(answer.roster),
    }


def from_json(told: Mapping[str, Any]) -> Answer:
    """The same the other way round."""
    roster = told["roster"]
    return replace(
        Answer(int(told["life"])),
        promised=Ballot(*told["promised"]),
        votes=bool(told["votes"]),
        roster=_roster(roster) if roster else None,
    )


def _done(answer: Answer, asked: dict[str, Any]) -> Answer:
    roster = _roster(asked["roster"]) if asked["roster"] else None
    match asked["do"]:
        case "promise":
            return acceptor.promise(answer, Ballot(*asked["ballot"]))
        case "adopt" if roster:
            return acceptor.adopt(answer, roster, founding=asked["founding"])
        case "seat" if roster:
            return acceptor.seat(answer, roster)
    raise ValueError(f"a seat cannot do {asked['do']!r}")


def _as_lists(roster: Roster) -> list[Any]:
    shards = [[list(process) for process in shard] for shard in roster.shards]
    return [list(roster.ballot), shards, [list(process) for process in roster.learners]]


def _roster(told: list[Any]) -> Roster:
    ballot, shards, learners = told

    def named(processes: list[Any]) -> tuple[Process, ...]:
        return tuple(Process(*process) for process in processes)

    return Roster(Ballot(*ballot), tuple(map(named, shards)), named(learners))
