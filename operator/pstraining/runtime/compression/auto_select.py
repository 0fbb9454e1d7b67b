"""Whether compression pays, decided from how long steps take with and without it: nothing here asks the network.

A worker looks: it makes a few steps in one form, a few in the other, and so on in turn, so that what drifts meanwhile
touches both alike. Then it settles on the faster one by medians, and looks again after some time, which doubles
whenever nothing came of it, or earlier when steps have become much faster or slower than they were.

Pure: no clock, no TensorFlow.
"""

from dataclasses import dataclass, replace
from statistics import median
from typing import Final

PLAIN: Final = 0
CODED: Final = 1
"""Numbers of the two forms."""

BLOCK: Final = 3
"""Steps in a row of one form while looking; the first one is not counted, because a change costs something itself."""
FEW: Final = 4
"""Counted steps of each form that are enough when the slower one's fastest is still much slower (`CLEAR`)."""
MANY: Final = 12
"""Counted steps of each form that are always enough."""
CLEAR: Final = 1.5
"""How many times as long the fastest step of one form has to take as the slowest of the other."""
MARGIN: Final = 0.95
"""Compression has to take less than this share of the time: what is as fast without it is more exact."""
FIRST_HOLD: Final = 200
"""Steps until the second look."""
LONGEST_HOLD: Final = 1 << 20
EARLY: Final = 8
"""A look because of another speed comes after this part of the hold at the earliest."""
CHANGED: Final = 1.5
"""Another speed: so many times the usual time of a step, or one such part of it."""
RECENT: Final = 9
"""Steps whose median is compared with the usual time."""

Times = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of the counted steps, by form."""


@dataclass(frozen=True)
class Auto:
    """What a worker knows."""

    chosen: int | None = None
    """The form that it settled on; None before the first time."""
    looking: bool = True
    times: Times = ((), ())
    """Of the look that goes on, or of the last one."""
    form: int = PLAIN
    """Of the last step."""
    run: int = 0
    """How many steps in a row were of that form."""
    since: int = 0
    """Steps since it settled."""
    hold: int = FIRST_HOLD
    """Steps from the last settling to the next look."""
    recent: tuple[float, ...] = ()
    """The newest counted steps of the chosen form."""


def proposal(auto: Auto, under_way: int | None = None) -> int:
    """The form of the next step, as far as this worker decides it.

    Args:
        auto: what it knows.
        under_way: the form of a step that is not over yet, where the one after it is meant. Without it, a worker that
            is always told a step late would ask for the other form every time, and never see two of one in a row.
    """
    if not auto.looking and auto.chosen is not None:
        return auto.chosen
    form, run = auto.form, auto.run
    if under_way is not None:
        form, run = under_way, run + 1 if under_way == form else 1
    return form if run < BLOCK else 1 - form


def observed(auto: Auto, form: int, seconds: float) -> Auto:
    """What is known after a step: of this form, whoever decided it, and so long."""
    run = auto.run + 1 if form == auto.form else 1
    auto, counts = replace(auto, form=form, run=run), run > 1
    if auto.looking:
        if counts:
            times = tuple((*known, seconds) if form == number else known for number, known in enumerate(auto.times))
            auto = replace(auto, times=(times[PLAIN], times[CODED]))
        choice = decide(auto.times)
        return auto if choice is None else _settled(auto, choice)
    if counts and form == auto.chosen:
        auto = replace(auto, recent=(*auto.recent, seconds)[-RECENT:])
    auto = replace(auto, since=auto.since + 1)
    if auto.since >= auto.hold or (auto.since >= auto.hold // EARLY and _is_changed(auto)):
        return replace(auto, looking=True, times=((), ()))
    return auto


def decide(times: Times) -> int | None:
    """The form to use; None while too little is known."""
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
    hold = min(2 * auto.hold, LONGEST_HOLD) if choice == auto.chosen else FIRST_HOLD
    return replace(auto, chosen=choice, looking=False, since=0, hold=hold, recent=())


def _is_changed(auto: Auto) -> bool:
    if auto.chosen is None or len(auto.recent) < RECENT:
        return False
    usual, now = median(auto.times[auto.chosen]), median(auto.recent)
    return now > CHANGED * usual or now * CHANGED < usual
