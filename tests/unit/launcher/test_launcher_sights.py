"""Many parameter servers are looked at at once, for as long as it takes to see enough."""

import threading
from collections.abc import Iterator

import pytest

from pstraining.launcher import sights
from pstraining.launcher.sights import OPEN, Sight


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until this is set nobody but "there" answers."""
    event = threading.Event()

    def look(ps: str) -> Sight:
        assert ps == "there" or event.wait(60)
        return Sight(OPEN, boot_id=ps)

    monkeypatch.setattr(sights, "look", look)
    yield event
    event.set()


def test_nobody_is_waited_for_when_enough_have_answered(answered: threading.Event) -> None:
    seen = sights.look_at(["mute", "there"], lambda seen: "there" in seen)
    assert seen == {"mute": Sight(), "there": Sight(OPEN, boot_id="there")}


def test_who_answers_a_little_later_is_seen_too(answered: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sights, "LATE_SECONDS", 60)

    def is_enough(seen: sights.Sights) -> bool:
        answered.set()
        return True

    assert [sight.boot_id for sight in sights.look_at(["late", "there"], is_enough).values()] == ["late", "there"]


@pytest.mark.parametrize("servers", [[], ["there"], ["there", "a", "b"]])
def test_otherwise_all_are_waited_for(answered: threading.Event, servers: list[str]) -> None:
    answered.set()
    assert [sight.boot_id for sight in sights.look_at(servers).values()] == servers
