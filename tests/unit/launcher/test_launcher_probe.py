"""Many parameter servers are probed at once, until enough have answered."""

import threading
from collections.abc import Iterator

import pytest

from pstraining.launcher import probe
from pstraining.launcher.probe import OPEN, PsProbe


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Only "there" answers until this is set."""
    event = threading.Event()

    def fake_probe(ps: str) -> PsProbe:
        assert ps == "there" or event.wait(60)
        return PsProbe(OPEN, boot_id=ps)

    monkeypatch.setattr(probe, "probe", fake_probe)
    yield event
    event.set()


def test_no_member_is_waited_for_when_enough_have_answered(answered: threading.Event) -> None:
    seen = probe.probe_all(["mute", "there"], lambda seen: "there" in seen)
    assert seen == {"mute": PsProbe(), "there": PsProbe(OPEN, boot_id="there")}


def test_a_slightly_late_answer_is_seen(answered: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LATE_SECONDS", 60)

    def is_enough(seen: probe.Probes) -> bool:
        answered.set()
        return True

    assert [result.boot_id for result in probe.probe_all(["late", "there"], is_enough).values()] == ["late", "there"]


@pytest.mark.parametrize("servers", [[], ["there"], ["there", "a", "b"]])
def test_otherwise_all_members_are_waited_for(answered: threading.Event, servers: list[str]) -> None:
    answered.set()
    assert [result.boot_id for result in probe.probe_all(servers).values()] == servers


def test_many_members_are_probed_by_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    barrier = threading.Barrier(4)

    def fake_probe(ps: str) -> PsProbe:
        threads.add(threading.get_ident())
        barrier.wait(60)
        return PsProbe(OPEN, boot_id=ps)

    monkeypatch.setattr(probe, "probe", fake_probe)
    monkeypatch.setattr(probe, "AT_ONCE", 4)
    servers = [f"ps-{index}" for index in range(12)]
    assert [result.boot_id for result in probe.probe_all(servers).values()] == servers
    assert len(threads) == 4


def test_members_that_are_not_awaited_are_not_probed(
    answered: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "AT_ONCE", 2)
    servers = ["there", "mute", *(f"later-{index}" for index in range(9))]
    before = threading.active_count()
    assert probe.probe_all(servers, lambda seen: "there" in seen)["later-8"] == PsProbe()
    assert threading.active_count() <= before + 2
