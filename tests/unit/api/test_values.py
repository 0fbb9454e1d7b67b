"""Copies and merges of values of JSON."""

from pstraining.api.values import copied, merged


def test_a_copy_shares_no_mutable_value() -> None:
    value = {"a": [{"b": 1}, None, "c"], "d": {"e": True}}
    found = copied(value)
    assert found == value
    found["a"][0]["b"] = 2  # type: ignore[index]
    found["d"]["f"] = 3  # type: ignore[index]
    assert value == {"a": [{"b": 1}, None, "c"], "d": {"e": True}}


def test_the_second_value_wins_and_lists_are_replaced() -> None:
    under, over = {"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3], "e": {}}, "d": {"f": None}}
    assert merged(under, over) == {"a": {"b": 1, "c": [3], "e": {}}, "d": {"f": None}}
    assert under == {"a": {"b": 1, "c": [1, 2]}, "d": 1}
