"""The interval of saves, by Young's rule (First Order Approximation to the Optimum Checkpoint Interval, CACM 1974).

A save takes C seconds, and state is lost every M seconds on average. An interval of sqrt(2 M C) seconds minimizes the
time for saves and repeated training. C is measured. M starts from published measurements, and is shorter if this job
has lost state more often.

Pure: no clock.
"""

import math
from typing import Final

PRIOR_HOURS: Final = 6800.0
"""A server's mean time between failures, until this job's losses are more frequent. In Li et al. (OSDI 2014, table 1)
13.7 % of 1,366 jobs of about 1,000 machine-hours failed: one failure in 1000 / -ln(1 - 0.137) machine-hours."""
FIRST_SECONDS: Final = 10.0
"""Seconds until the first save, which measures the duration of a save."""
SHORTEST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 600.0
"""Longest interval, however rare losses are; slow saves raise it, see LARGEST_SHARE."""
LARGEST_SHARE: Final = 0.01
"""Share of the time that saves may take at the longest interval."""
WORTH_REPORTING: Final = 0.1
"""Relative change of the interval above which it is reported again."""


def mean_time_between_losses(*, servers: int, watched: float, losses: int) -> float:
    """Return the mean seconds from one loss of state to the next.

    Args:
        servers: number of parameter servers; the loss of one is a loss of state.
        watched: seconds since this chief started.
        losses: number of times that this chief has found state lost.
    """
    prior = PRIOR_HOURS * 3600 / servers
    return min(prior, watched / losses) if losses else prior


def young(*, save_seconds: float | None, mean_time: float) -> float:
    """Return the seconds between two saves.

    Args:
        save_seconds: duration of the last save; None before the first one.
        mean_time: mean seconds between two losses of state.
    """
    if save_seconds is None:
        return FIRST_SECONDS
    shortest = max(SHORTEST_SECONDS, 2 * save_seconds)
    longest = max(LONGEST_SECONDS, save_seconds / LARGEST_SHARE)
    return min(max(math.sqrt(2 * mean_time * save_seconds), shortest), longest)


def is_worth_reporting(reported: float | None, interval: float) -> bool:
    """Return whether an interval differs by more than WORTH_REPORTING from the last reported one."""
    return reported is None or abs(interval - reported) > WORTH_REPORTING * reported
