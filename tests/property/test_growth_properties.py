"""Memory growth over random courses of a program: never beyond its maximum, never downwards, and rarely."""

from datetime import timedelta
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.resources.resource_requests import parse
from tests.support.growing_world import MAXIMUM, MIB, growing, grown, kill, later, use
from tests.support.soak_marks import examples

GROW_SHARE, LAST_SHARE = Decimal("0.85"), Decimal("0.95")
REST, SETTLE = timedelta(minutes=10), timedelta(seconds=30)
"""The numbers of the users' page, independent of the code."""
STEP = st.tuples(
    st.integers(1, 700),  # seconds since the previous step
    st.integers(0, 5000),  # Mi that the largest pod uses
    st.sampled_from((None, 0, 1, 50)),  # Mi of growth per second, if it is known
    st.booleans(),  # whether a process is killed for memory
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEP, max_size=12))
def test_growth_is_bounded_monotone_and_rare(steps: list[tuple[int, int, int | None, bool]]) -> None:
    world = growing()
    limit, changed_at, killed_since = parse("1Gi"), None, False
    for seconds, used, growth, is_killed in steps:
        later(world, seconds=seconds)
        use(world, "ps", used, growth=None if growth is None else growth * MIB)
        if is_killed:
            kill(world, "ps")
            killed_since = killed_since or changed_at is None or world.now > changed_at + SETTLE
        world.settle()
        now = parse(grown(world, "ps").get("grownMemory") or "1Gi")
        assert limit <= now <= MAXIMUM * MIB
        assert now <= 4 * limit
        if now != limit:
            is_last = used * MIB >= LAST_SHARE * limit
            assert killed_since or is_last or changed_at is None or world.now - changed_at >= REST
            assert killed_since or used * MIB >= GROW_SHARE * limit
            limit, changed_at, killed_since = now, world.now, False
        else:
            rested = growth is not None and (changed_at is None or world.now - changed_at >= REST)
            needed = LAST_SHARE * limit if not rested else GROW_SHARE * limit
            assert not (used * MIB >= needed and limit < MAXIMUM * MIB), "it must grow"
