"""Whether compression pays, decided from how long steps take with and without it: nothing here asks the network.

A worker looks: it makes a few steps in one format, a few in the other, and so on in turn, so that what drifts meanwhile
touches both alike. Then it settles on the faster one by medians, and looks again after some time, which doubles
whenever nothing came of it, or earlier when steps have become much faster or slower than they were.

Pure: no clock, no TensorFlow.
"""

from dataclasses import dataclass, replace
from statistics import median
from typing import Final

PLAIN: Final = 0
CODED: Final = 1
"""Numbers of the two formats."""

BLOCK: Final = 3
"""Steps in a row of one format while looking; the first one is not counted, because a change costs something itself."""
FEW: Final = 4
"""Counted steps of each format that are enough when the slower one's fastest is still much slower (`CLEAR`)."""
MANY: Final = 12
"""Counted steps of each format that are always enough."""
CLEAR: Final = 1.5
"""How many times as long the fastest step of one format has to take as the slowest of the other."""
MARGIN: Final = 0.95
"""Compression has to take less than this share of the time: what is as fast without it is more exact."""
FIRST_EXPLOIT_STEPS: Final = 200
"""Steps until the second look."""
MAX_EXPLOIT_STEPS: Final = 1 << 20
EARLY: Final = 8
"""A look because of another speed comes after this part of the hold at the earliest."""
CHANGED: Final = 1.5
"""Another speed: so many times the usual time of a step, or one such part of it."""
RECENT: Final = 9
"""Steps whose median is compared with the usual time."""

Times = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of the counted steps, by format."""


@dataclass(frozen=True)
class Auto:
    """A worker's measurements and its choice."""

    chosen: int | None = None
    """The format that the worker has chosen; None before the first choice."""
    exploring: bool = True
    times: Times = ((), ())
    """Of the current exploration, or of the last one."""
    fmt: int = PLAIN
    """Of the last step."""
    run: int = 0
    """Number of consecutive steps in that format."""
    since: int = 0
    """Steps since the choice."""
    exploit_steps: int = FIRST_EXPLOIT_STEPS
    """Steps from a choice to the next exploration."""
    recent: tuple[float, ...] = ()
    """The newest counted steps in the chosen format."""


def propose(auto: Auto, under_way: int | None = None) -> int:
    """Return the format that this worker proposes for the next step.

    Args:
        auto: what it knows.
        under_way: the format of a step that is not over yet, where the one after it is meant. Without it, a worker that
            is always told a step late would ask for the other format every time, and never see two of one in a row.
    """
    if not auto.exploring and auto.chosen is not None:
        return auto.chosen
    fmt, run = auto.fmt, auto.run
    if under_way is not None:
        fmt, run = under_way, run + 1 if under_way == fmt else 1
    return fmt if run < BLOCK else 1 - fmt


def update(auto: Auto, fmt: int, seconds: float) -> Auto:
    """Return the state after a step of this format and duration."""
    run = auto.run + 1 if fmt == auto.fmt else 1
    auto, counts = replace(auto, fmt=fmt, run=run), run > 1
    if auto.exploring:
        if counts:
            times = tuple((*known, seconds) if fmt == number else known for number, known in enumerate(auto.times))
            auto = replace(auto, times=(times[PLAIN], times[CODED]))
        choice = decide(auto.times)
        return auto if choice is None else _settled(auto, choice)
    if counts and fmt == auto.chosen:
        auto = replace(auto, recent=(*auto.recent, seconds)[-RECENT:])
    auto = replace(auto, since=auto.since + 1)
    if auto.since >= auto.exploit_steps or (auto.since >= auto.exploit_steps // EARLY and _is_changed(auto)):
        return replace(auto, exploring=True, times=((), ()))
    return auto


def decide(times: Times) -> int | None:
    """Return the format to use; None while there are too few measurements."""
    plain, coded = times
    counted = min(len(plain), len(coded))
    if counted < FEW:
        return None
    if min(plain) > CLEAR * max(coded):
        return CODED
    if min(coded) > CLEAR * max(plain):
        return PLAIN
    if counted < MANY:
        return None
    return CODED if median(coded) < MARGIN * median(plain) else PLAIN


def _settled(auto: Auto, choice: int) -> Auto:
    exploit_steps = min(2 * auto.exploit_steps, MAX_EXPLOIT_STEPS) if choice == auto.chosen else FIRST_EXPLOIT_STEPS
    return replace(auto, chosen=choice, exploring=False, since=0, exploit_steps=exploit_steps, recent=())


def _is_changed(auto: Auto) -> bool:
    if auto.chosen is None or len(auto.recent) < RECENT:
        return False
    usual, now = median(auto.times[auto.chosen]), median(auto.recent)
    return now > CHANGED * usual or now * CHANGED < usual
