"""The task of a shard's member, the members that a program waits for, and the members that count as ready."""

from pathlib import Path
from typing import Any

import pytest

from pstraining.launcher.contract import ENV_NODE, NODE_FILE
from pstraining.launcher.members import ShardMembers, is_only_copy, may_start_first, view_in_sync, write_node
from pstraining.launcher.probe import PsProbe

SIX = ["a0", "b0", "a1", "b1", "a2", "b2"]
"""Two shards of three members."""


def members(number: Any = 3, servers: list[str] | None = None) -> ShardMembers:
    return ShardMembers({"cluster": {"ps": SIX if servers is None else servers}, "members": number})


def test_tasks() -> None:
    made = members()
    assert made.hot
    assert [SIX[made.task(shard, str(member))] for shard in (0, 1) for member in (0, 1, 2)] == [
        *("a0", "a1", "a2", "b0", "b1", "b2"),
    ]
    assert made.peers(3) == ["b0", "b2"]


def test_other_standbys_are_no_tasks() -> None:
    made = ShardMembers({"cluster": {"ps": ["a", "b"]}})
    assert not made.hot
    assert [made.task(shard, member) for shard in (0, 1) for member in ("", "0", "1")] == [0, 0, 0, 1, 1, 1]
    assert made.peers(1) == []


@pytest.mark.parametrize("number", [0, -1, 4, "2", None, 1.5])
def test_a_wrong_number(number: Any) -> None:
    with pytest.raises(ValueError, match="'members' is"):
        members(number)


@pytest.mark.parametrize(
    ("away", "awaited"),
    [([], []), (["a0"], []), (["a0", "a1", "b2"], []), (["a0", "a1", "a2", "b0"], ["a0", "a1", "a2"]), (SIX, SIX)],
)
def test_a_program_waits_for_one_member_of_each_shard(away: list[str], awaited: list[str]) -> None:
    assert sorted(members().required(away)) == sorted(awaited)


def test_without_standbys_a_program_waits_for_all_members() -> None:
    assert members(1, ["a", "b"]).required(["b"]) == ["b"]
    assert members(1, []).required([]) == []


def test_the_nodes_name_is_left_where_it_is_known(tmp_path: Path) -> None:
    write_node(str(tmp_path), {})
    assert not list(tmp_path.iterdir())
    write_node(str(tmp_path), {ENV_NODE: "node-7"})
    assert (tmp_path / NODE_FILE).read_text() == "node-7"


def test_the_chiefs_view_is_read(tmp_path: Path) -> None:
    marker = tmp_path / "in-sync"
    assert view_in_sync(str(marker)) == ()
    marker.write_text("1.12")
    assert view_in_sync(str(marker)) == (1, 12)
    marker.write_text("")
    assert view_in_sync(str(marker)) == (), "it is taken back"


@pytest.mark.parametrize(
    ("peers", "is_only"),
    [
        pytest.param([PsProbe(boot_id="a")], True, id="one without the state"),
        pytest.param([PsProbe(boot_id="a", in_sync=True, view=(2, 9))], True, id="one of an earlier view"),
        pytest.param([PsProbe(boot_id="a", in_sync=True, view=(2, 10))], False, id="one of the same view"),
        pytest.param([PsProbe(boot_id="a", in_sync=True, view=(3, 1))], False, id="one of a later view"),
        pytest.param([PsProbe(boot_id="a", in_sync=True)], False, id="one that reports no view"),
        pytest.param([PsProbe(boot_id="a"), PsProbe(boot_id="b", in_sync=True, view=(2, 10))], False, id="one of two"),
        pytest.param([PsProbe(boot_id="a", state="Terminating"), PsProbe()], False, id="none that could get it"),
        pytest.param([PsProbe(boot_id="a"), PsProbe(boot_id="b", state="Terminating")], True, id="one that could"),
    ],
)
def test_the_only_copy_of_a_state(peers: list[PsProbe], *, is_only: bool) -> None:
    assert is_only_copy((2, 10), peers) is is_only


@pytest.mark.parametrize(
    ("others", "may"),
    [
        ([PsProbe(boot_id="a")], True),
        ([PsProbe(boot_id="a"), PsProbe(boot_id="b")], True),
        ([PsProbe(boot_id="a", in_sync=True)], False),
        ([PsProbe()], False),
        ([PsProbe(boot_id="a"), PsProbe()], False),
    ],
)
def test_no_member_in_sync_and_none_unresponsive(others: list[PsProbe], may: bool) -> None:
    assert may_start_first(others) is may
