"""Which combinations the tests try."""

import pytest

from tests.support import cover


def test_every_value_is_tried_and_all_combinations_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover, "THOROUGH", False)
    assert cover.cover("ABCD", [1, 2, 3]) == [("A", 1), ("B", 2), ("C", 3), ("D", 2)]
    assert cover.cover("SA", [1, 2, 3]) == [("S", 1), ("A", 2), ("A", 3)]
    monkeypatch.setattr(cover, "THOROUGH", True)
    assert len(cover.cover("ABCD", [1, 2, 3])) == 12
