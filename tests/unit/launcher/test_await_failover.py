"""A warm member that was lost starts its server once the Service leads to the other member."""

from pathlib import Path

from pstraining.launcher import members


def test_a_container_that_replaces_another_one_waits_before_it_serves(tmp_path: Path) -> None:
    waits: list[float] = []
    for expected in ([], [members.FAILOVER_SECONDS]):
        members.await_failover(str(tmp_path / "started"), waits.append)
        assert waits == expected
