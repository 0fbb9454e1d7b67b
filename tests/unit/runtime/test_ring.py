"""The ring: sums and relayed arrays as streams, real connections, and accepted peers."""

import errno
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.runtime.allreduce import transport as ring_transport
from pstraining.runtime.allreduce.ring import Ring
from pstraining.runtime.allreduce.streams import HeaderMismatchError, Relay, Stream, Sum, ring_steps
from pstraining.runtime.allreduce.topology import BrokenRingError, Peer, RingTopology
from pstraining.runtime.allreduce.transport import RingTransport
from tests.processes.pods import eventually
from tests.support.soak_marks import examples


def carry(streams: list[Any], seed: int) -> int:
    """Move bytes around the ring in portions until all is done; return the number that the first member has sent."""
    draw = random.Random(seed)
    pipes = [bytearray() for _ in streams]
    carried = 0
    for _ in range(1_000_000):
        if all(stream.done for stream in streams):
            return carried
        place = draw.randrange(len(streams))
        stream: Stream = streams[place]
        if len(out := stream.outgoing()):
            count = draw.randint(1, len(out))
            pipes[place] += bytes(out[:count])
            stream.sent(count)
            carried += count if place == 0 else 0
        into, waiting = stream.incoming(), pipes[place - 1]
        if count := min(len(into), len(waiting)):
            count = draw.randint(1, count)
            into[:count] = waiting[:count]
            del waiting[:count]
            stream.came(count)
    raise AssertionError("the ring stands still")


@settings(max_examples=examples(150))
@given(
    seed=st.integers(0, 2**32),
    members=st.integers(1, 7),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int64"]),
)
def test_all_members_hold_the_sum(seed: int, members: int, sizes: list[int], dtype: str) -> None:
    numbers = np.random.default_rng(seed)
    data = [[numbers.integers(-99, 99, size).astype(dtype) for size in sizes] for _ in range(members)]
    expected = [sum(one[k].copy() for one in data) for k in range(len(sizes))]
    carry([Sum(data[k], members=members, place=k, header=b"step 1") for k in range(members)], seed)
    for arrays in data:
        for found, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_sums_of_floats_are_the_same_bits_everywhere_and_cost_what_they_must(members: int) -> None:
    numbers = np.random.default_rng(members)
    data = [numbers.normal(size=8 * 8192).astype("float32") for _ in range(members)]
    size = data[0].nbytes
    carried = carry([Sum([data[k]], members=members, place=k) for k in range(members)], members)
    assert all(other.tobytes() == data[0].tobytes() for other in data[1:])
    assert abs(carried - 2 * (members - 1) * size / members) < 8 * members, "but for the rounding of parts"


@given(seed=st.integers(0, 2**32), members=st.integers(1, 6), data=st.data())
def test_arrays_are_passed_on_as_far_as_they_are_wanted(seed: int, members: int, data: st.DataObject) -> None:
    source, last = (data.draw(st.integers(0, members - 1)) for _ in range(2))
    held = [[np.full(5, k, "float32"), np.full([2, 3], k, "float64"), np.array(k)] for k in range(members)]
    carry([Relay(held[k], members=members, place=k, source=source, last=last) for k in range(members)], seed)
    for place, arrays in enumerate(held):
        reached = (place - source) % members <= (last - source) % members
        assert all((array == (source if reached else place)).all() for array in arrays)


def test_a_peer_in_another_operation_is_detected() -> None:
    with pytest.raises(HeaderMismatchError) as raised:
        carry([Sum([np.zeros(4)], members=2, place=k, header=b"step %d" % k) for k in range(2)], 0)
    assert raised.value.found.startswith(b"step")


def test_the_steps_of_a_ring_of_three() -> None:
    found = [(step.send, step.take, step.adds) for step in ring_steps(3, 0)]
    assert found == [(0, 2, True), (2, 1, True), (1, 0, False), (0, 2, False)]


@pytest.fixture
def crowd() -> Iterator[Callable[[int], list[RingTransport]]]:
    with ExitStack() as stack:

        def make(number: int) -> list[RingTransport]:
            found = [RingTransport("job", "127.0.0.1") for _ in range(number)]
            for links in found:
                stack.callback(links.close)
            return found

        yield make


def together(links: list[RingTransport], act: Callable[[Ring, int], Any], *, number: int = 1) -> list[Any]:
    """Form a ring, let each member act, and return the results."""
    peers = tuple(one.peer(k, 100 + k) for k, one in enumerate(links))
    found: list[Any] = [None] * len(links)

    def member(place: int) -> None:
        try:
            connected = links[place].connect(RingTopology(7, number, peers, place), still=lambda: True)
            found[place] = act(Ring(number, peers, place, connected), place)
        except (BrokenRingError, HeaderMismatchError) as error:
            found[place] = error

    threads = [threading.Thread(target=member, args=(place,)) for place in range(len(links))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_ring_of_connections_sums(crowd: Any, members: int) -> None:
    def act(ring: Ring, place: int) -> Any:
        vector = np.full(200_000, float(place))
        for step in range(3):
            ring.all_reduce([vector], header=b"%d" % step)
        return vector.sum(), ring.all_gather(place, header=b"?"), ring.carried

    total = sum(range(members)) * members**2 * 200_000.0
    for value, reported, _ in together(crowd(members), act):
        assert value == total
        assert reported == list(range(members))


def test_a_member_that_leaves_is_not_suspected_and_one_that_vanishes_is(crowd: Any) -> None:
    for vanishes in (False, True):
        links = crowd(3)

        def act(ring: Ring, place: int, links: Any = links, vanishes: bool = vanishes) -> Any:
            ring.all_reduce([np.zeros(10)], header=b"1")
            if place == 1:
                if vanishes:
                    links[1].close()  # sockets end as those of a killed process do
                    time.sleep(0.3)
                ring.leave()
                return None
            ring.all_reduce([np.zeros(10)], header=b"2")
            raise AssertionError("a sum without one of its members")

        first, _, third = together(links, act)
        suspects = {peer.worker for error in (first, third) for peer in error.suspects}
        assert suspects == ({1} if vanishes else set())


def test_a_silent_member_is_suspected_within_a_second(crowd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    links = crowd(2)
    silenced: list[float] = []

    def act(ring: Ring, place: int) -> Any:
        ring.all_reduce([np.zeros(10)], header=b"1")
        if place == 1:
            monkeypatch.setattr(links[1], "_beat", lambda: None)
            silenced.append(time.monotonic())
            while ring.broken is None:
                time.sleep(0.01)
            return None
        try:
            ring.all_reduce([np.zeros(10)], header=b"2")
        except BrokenRingError as broken:
            return broken, time.monotonic()
        return None

    (broken, noticed), _ = together(links, act)
    assert [peer.worker for peer in broken.suspects] == [1]
    assert ring_transport.SILENT_BEATS * ring_transport.BEAT_SECONDS <= 0.75
    assert noticed - silenced[0] < 3.0, "on a busy machine it may take longer than a second"


def test_a_missing_member_is_suspected(crowd: Any) -> None:
    (links,) = crowd(1)
    gone = RingTransport("job", "127.0.0.1")
    peers = (links.peer(0, 1), gone.peer(1, 1))
    gone.close()
    deadline = time.monotonic() + 10
    while _takes(peers[1]):
        assert time.monotonic() < deadline
    with pytest.raises(BrokenRingError) as raised:
        links.connect(RingTopology(7, 1, peers, 0), still=lambda: True)
    assert [peer.worker for peer in raised.value.suspects] == [1]


def _takes(peer: Peer) -> bool:
    try:
        socket.create_connection((peer.host, peer.port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("wrong", ["job", "token", "incarnation", "number"])
def test_strangers_and_older_processes_are_not_part_of_a_ring(crowd: Any, wrong: str) -> None:
    (links,) = crowd(1)
    other = RingTransport("another" if wrong == "job" else "job", "127.0.0.1")
    mine, theirs = links.peer(0, 5), other.peer(1, 5)
    known = Peer(0, 5, mine.host, mine.port, mine.token + (wrong == "token"))
    claimed = Peer(1, 4 if wrong == "incarnation" else 5, theirs.host, theirs.port, theirs.token)
    number = 2 if wrong == "number" else 3
    asked: list[int] = []

    def still() -> bool:
        asked.append(1)
        return len(asked) < 10

    def knock() -> None:
        with suppress(BrokenRingError):
            other.connect(RingTopology(7, number, (known, claimed), 1), still=still)

    stranger = threading.Thread(target=knock)
    stranger.start()
    with pytest.raises(BrokenRingError):
        links.connect(RingTopology(7, 3, (mine, theirs), 0), still=still)
    stranger.join(20)
    other.close()
    assert not stranger.is_alive()


def test_a_ring_without_descriptors_does_not_keep_a_processor_busy(crowd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (links,) = crowd(1)
    real, asked = links._listener, list[float]()

    def accept() -> None:
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(links, "_listener", SimpleNamespace(accept=accept, close=real.close))
    with socket.create_connection(real.getsockname(), 10):
        eventually(lambda: len(asked) > 2, 20)
    assert asked[2] - asked[0] >= 2 * ring_transport.BEAT_SECONDS


def test_a_card_survives_the_servers_numbers() -> None:
    for host in ("10.1.2.3", "::1", "2001:db8::7"):
        peer = Peer(3, 1_795_000_000_000_000_000, host, 2224, 2**62 - 1)
        assert Peer.of(3, peer.numbers()) == peer
