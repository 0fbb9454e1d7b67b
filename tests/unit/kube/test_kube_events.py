"""The body of an event."""

from pstraining.core.actions import Event
from pstraining.kube.events import MAX_NOTE, build_event, shorten
from tests.support.builders import NOW, job


def test_an_event_regards_the_job() -> None:
    body = build_event(job(), Event("Warning", "PSLost", "PS 0 is gone."), instance="op-0", now=NOW, suffix="ab")
    assert body["metadata"] == {"name": "digits.ab", "namespace": "default"}
    assert body["regarding"]["kind"] == "PSTrainingJob"
    assert body["regarding"]["uid"] == job()["metadata"]["uid"]
    assert body["eventTime"] == "2030-01-01T12:00:00.000000Z"
    assert (body["type"], body["reason"], body["note"]) == ("Warning", "PSLost", "PS 0 is gone.")
    assert (body["reportingController"], body["reportingInstance"]) == ("pstraining.dev/operator", "op-0")


def test_a_long_note_is_cut_between_characters() -> None:
    note = shorten("ä" * 2000, MAX_NOTE)
    assert len(note.encode()) <= MAX_NOTE
    assert note.endswith("…")
    assert shorten("short", MAX_NOTE) == "short"
