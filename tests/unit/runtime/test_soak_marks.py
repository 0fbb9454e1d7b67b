"""The combinations that the tests try."""

import pytest

from tests.support import soak_marks


def test_every_value_is_tried_and_all_combinations_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_marks, "THOROUGH", False)
    assert soak_marks.cover("ABCD", [1, 2, 3]) == [("A", 1), ("B", 2), ("C", 3), ("D", 2)]
    assert soak_marks.cover("SA", [1, 2, 3]) == [("S", 1), ("A", 2), ("A", 3)]
    monkeypatch.setattr(soak_marks, "THOROUGH", True)
    assert len(soak_marks.cover("ABCD", [1, 2, 3])) == 12
