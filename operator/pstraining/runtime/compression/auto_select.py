"""Decides whether compression pays, from the durations of steps with and without it; it never measures the network.

A worker explores: it alternates short runs of steps in both formats, so that a drift affects both alike. It then
exploits the format with the smaller median duration. It explores again after a number of steps, which doubles each time
the choice stays the same, or earlier when steps have become much faster or slower.

Pure: no clock, no TensorFlow.
"""

from dataclasses import dataclass, replace
from statistics import median
from typing import Final

PLAIN: Final = 0
CODED: Final = 1
"""Number of the format with a codec; PLAIN is the other format."""

BLOCK: Final = 3
"""Consecutive steps in one format while exploring; the first is not counted, because a change itself takes time."""
FEW: Final = 4
"""Counted steps per format that suffice if the slower format's fastest step is much slower (`CLEAR`)."""
MANY: Final = 12
"""Counted steps per format that always suffice."""
CLEAR: Final = 1.5
"""Minimum ratio of one format's fastest step to the other's slowest for an early decision."""
MARGIN: Final = 0.95
"""Maximum ratio of durations with and without compression for which compression is chosen."""
FIRST_EXPLOIT_STEPS: Final = 200
"""Steps until the second exploration."""
MAX_EXPLOIT_STEPS: Final = 1 << 20
EARLY: Final = 8
"""Divisor of the exploit steps after which a changed speed may start an exploration."""
CHANGED: Final = 1.5
"""Ratio of a step's recent duration to the usual one, or its inverse, that counts as a changed speed."""
RECENT: Final = 9
"""Number of steps whose median is compared with the usual duration."""

Times = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of the counted steps, by format."""


@dataclass(frozen=True)
class Auto:
    """A worker's measurements and its choice."""

    chosen: int | None = None
    """The format that the worker has chosen; None before the first choice."""
    exploring: bool = True
    times: Times = ((), ())
    """Durations of the current exploration, or of the last one."""
    fmt: int = PLAIN
    """Format of the last step."""
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
        auto: the worker's measurements.
        under_way: the format of the current step, if the proposal is for the step after it. Without it, a worker would
            propose the other format each time, and never measure two consecutive steps of one format.
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
