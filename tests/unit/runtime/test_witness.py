"""Requests to a witness over the loopback interface."""

import json
import socket
from collections.abc import Iterator

import pytest

from pstraining.runtime.replication import witness
from pstraining.runtime.replication.view import Ballot, Process, View
from pstraining.runtime.replication.witness import Request, Verb, Witness, WitnessServer, ask, serve_witness

ME = Process("worker-0", 7)
VIEW = View(Ballot(2, 1), ((Process("ps-0", 3), Process("ps-1", 4)),), (Process("ps-2", 5),))
READ = Request(Verb.READ)


@pytest.fixture
def address() -> Iterator[str]:
    server = WitnessServer(Witness(ME.incarnation), 0)
    yield f"127.0.0.1:{server.port}"
    server.close()


def test_a_witness_promises_accepts_and_remembers(address: str) -> None:
    assert ask(address, Request(Verb.PREPARE, ME.incarnation, Ballot(2, 1)), 5).promised == Ballot(2, 1)
    assert ask(address, Request(Verb.PREPARE, ME.incarnation, Ballot(1, 9)), 5).promised == Ballot(2, 1), "no lower one"
    assert ask(address, Request(Verb.ACCEPT, ME.incarnation, VIEW.ballot, VIEW), 5).view == VIEW
    assert not ask(address, READ, 5).is_voter
    assert ask(address, Request(Verb.ACCEPT, ME.incarnation, VIEW.ballot, VIEW, founding=True), 5).is_voter
    later = View(Ballot(3, 1), VIEW.shards)
    assert ask(address, Request(Verb.ACCEPT, ME.incarnation, later.ballot, later), 5).view == VIEW, (
        "it has not promised that"
    )


def test_a_witness_is_admitted_once(address: str) -> None:
    assert ask(address, Request(Verb.ADMIT, ME.incarnation, VIEW.ballot, VIEW), 5).is_voter
    later = View(Ballot(3, 1), VIEW.shards)
    assert ask(address, Request(Verb.ADMIT, ME.incarnation, later.ballot, later), 5).view == VIEW


def test_a_renewed_process_votes_as_before_and_the_former_one_does_not() -> None:
    voter = Witness(ME.incarnation)
    voter.do(Request(Verb.ADMIT, ME.incarnation, VIEW.ballot, VIEW))
    kept = json.loads(json.dumps(voter.hand_on()))
    with pytest.raises(ValueError, match="renewed"):
        voter.do(Request(Verb.PREPARE, ME.incarnation, Ballot(9, 9)))
    successor = Witness(8, kept)
    found = successor.do(READ)
    assert (found.incarnation, found.is_voter, found.promised, found.view) == (ME.incarnation, True, VIEW.ballot, VIEW)
    assert successor.do(Request(Verb.PREPARE, ME.incarnation, Ballot(9, 9))).promised == Ballot(9, 9)


def test_only_the_first_workers_of_a_job_serve_a_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """`worker.minReplicas` is their number; further workers train, and do not vote."""
    served: list[int] = []
    monkeypatch.setattr(witness, "WitnessServer", lambda _, port: served.append(port))
    for worker in range(3):
        assert serve_witness(["one:2239", "two:2240"], worker, 5).do(READ).incarnation == 5
    assert serve_witness([], 0, 5).do(READ).incarnation == 5
    assert served == [2239, 2240]


def test_a_request_for_a_former_process_is_ignored(address: str) -> None:
    former = Process(ME.task, 6)
    assert ask(address, Request(Verb.PREPARE, former.incarnation, Ballot(9, 9)), 5) == ask(address, READ, 5)
    assert ask(address, READ, 5).promised == Ballot(0, 0)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"do": "prepare", "incarnation": 7}', b'{"do": "dance", "incarnation": 7, "view": null}'],
)
def test_an_invalid_request_is_answered_and_changes_nothing(address: str, line: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as asked, asked.makefile("rwb") as lines:
        lines.write(line + b"\n")
        lines.flush()
        assert "error" in json.loads(lines.readline())
    assert ask(address, READ, 5).promised == Ballot(0, 0)


def test_another_server_there_is_not_a_witness() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            ask(address, READ, 0.05)
    with pytest.raises(ConnectionRefusedError):
        ask(address, READ, 5)


def test_an_answer_survives_encoding() -> None:
    status = Witness(3).do(Request(Verb.PREPARE, 3, Ballot(4, 5)))
    assert witness.from_json(json.loads(json.dumps(witness.to_json(status)))) == status
