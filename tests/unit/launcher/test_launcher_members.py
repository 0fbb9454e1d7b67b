"""Which task a member of a shard is, whom a program waits for, and when a member is as good as the others."""

from pathlib import Path
from typing import Any

import pytest

from pstraining.launcher.members import ENV_NODE, NODE_FILE, Members, is_in_sync, may_be_first, note_node
from pstraining.launcher.sights import Sight

SIX = ["a0", "b0", "a1", "b1", "a2", "b2"]
"""Two shards of three members."""


def members(number: Any = 3, servers: list[str] | None = None) -> Members:
    return Members({"cluster": {"ps": SIX if servers is None else servers}, "members": number})


def test_tasks() -> None:
    found = members()
    assert found.hot
    assert [SIX[found.task(shard, str(member))] for shard in (0, 1) for member in (0, 1, 2)] == [
        *("a0", "a1", "a2", "b0", "b1", "b2"),
    ]
    assert found.others(3) == ["b0", "b2"]


def test_other_standbys_are_no_tasks() -> None:
    found = Members({"cluster": {"ps": ["a", "b"]}})
    assert not found.hot
    assert [found.task(shard, member) for shard in (0, 1) for member in ("", "0", "1")] == [0, 0, 0, 1, 1, 1]
    assert found.others(1) == []


@pytest.mark.parametrize("number", [0, -1, 4, "2", None, 1.5])
def test_a_wrong_number(number: Any) -> None:
    with pytest.raises(ValueError, match="'members' is"):
        members(number)


@pytest.mark.parametrize(
    ("away", "awaited"),
    [([], []), (["a0"], []), (["a0", "a1", "b2"], []), (["a0", "a1", "a2", "b0"], ["a0", "a1", "a2"]), (SIX, SIX)],
)
def test_a_program_waits_for_one_member_of_each_shard(away: list[str], awaited: list[str]) -> None:
    assert sorted(members().awaited(away)) == sorted(awaited)


def test_without_standbys_it_waits_for_everybody() -> None:
    assert members(1, ["a", "b"]).awaited(["b"]) == ["b"]
    assert members(1, []).awaited([]) == []


def test_the_nodes_name_is_left_where_it_is_known(tmp_path: Path) -> None:
    note_node(str(tmp_path), {})
    assert not list(tmp_path.iterdir())
    note_node(str(tmp_path), {ENV_NODE: "node-7"})
    assert (tmp_path / NODE_FILE).read_text() == "node-7"


def test_the_chiefs_word(tmp_path: Path) -> None:
    marker = tmp_path / "in-sync"
    assert not is_in_sync(str(marker))
    marker.write_text("1.2")
    assert is_in_sync(str(marker))
    marker.write_text("")
    assert not is_in_sync(str(marker)), "it is taken back"


@pytest.mark.parametrize(
    ("others", "may"),
    [
        ([Sight(boot_id="a")], True),
        ([Sight(boot_id="a"), Sight(boot_id="b")], True),
        ([Sight(boot_id="a", in_sync=True)], False),
        ([Sight()], False),
        ([Sight(boot_id="a"), Sight()], False),
    ],
)
def test_nobody_in_sync_and_nobody_silent(others: list[Sight], may: bool) -> None:
    assert may_be_first(others) is may
