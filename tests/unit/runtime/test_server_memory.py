"""The memory that parameter servers have left for another layout."""

from typing import Any

from pstraining.runtime.transport.server_memory import MARGIN_BYTES, shortages

MIB = 1 << 20


def figures(used: int, limit: int | None, pod: str = "digits-ps-0") -> dict[str, Any]:
    """Return a launcher's answer, from sizes in MiB."""
    return {"pod": pod, "memoryBytes": used * MIB, "limitBytes": None if limit is None else limit * MIB}


def test_a_server_whose_limit_leaves_too_little_is_named_with_the_way_out() -> None:
    needed = {"a:1": 100 * MIB, "b:1": 100 * MIB}
    answers = {"a:1": figures(500, 600), "b:1": figures(400, 600, "digits-ps-1")}
    assert shortages(needed, answers) == [
        "digits-ps-0 has 100 MiB left of its memory limit, and needs 100 MiB for the next layout: raise its limit by "
        "64 MiB or more"
    ]


def test_a_server_lacks_nothing_if_both_layouts_fit_or_its_limit_is_unknown() -> None:
    exact = MARGIN_BYTES // MIB + 100
    for own in (figures(500, 500 + exact), figures(500, None), {}):
        assert shortages({"a:1": 100 * MIB}, {"a:1": own}) == []
    assert shortages({"a:1": 100 * MIB}, {}) == []
    assert len(shortages({"a:1": 100 * MIB}, {"a:1": figures(500, 499 + exact)})) == 1


def test_a_server_above_its_limit_has_nothing_left() -> None:
    assert "has 0 MiB left" in shortages({"a:1": 1}, {"a:1": figures(700, 600)})[0]
