"""How often to save: Young's rule (A First Order Approximation to the Optimum Checkpoint Interval, CACM 1974).

With a save that costs C seconds and a loss every M seconds on average, the least time is spent on saving and on
training again when sqrt(2 M C) seconds lie between two saves. C is measured. M begins with what others have measured,
and is shorter if this job has lost more.

Pure: no clock.
"""

import math
from typing import Final

PRIOR_HOURS: Final = 6800.0
"""A server's mean time between failures before this job's own losses give a better one. Li et al. (OSDI 2014, table 1)
saw 13.7 % of 1,366 jobs of about 1,000 machine-hours fail: one failure in 1000 / -ln(1 - 0.137) machine-hours."""
FIRST_SECONDS: Final = 10.0
"""Until the first save, which measures what one costs."""
SHORTEST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 600.0
"""More training than this is not worth losing, however rarely it happens..."""
LARGEST_SHARE: Final = 0.01
"""... unless saves at this rate took more than this part of the time."""
WORTH_REPORTING: Final = 0.1
"""By which part an interval must change to be reported."""


def mean_time_between_losses(*, servers: int, watched: float, losses: int) -> float:
    """Seconds from one loss of state to the next.

    Args:
        servers: parameter servers, each of which takes the state with it.
        watched: seconds that this chief has watched them.
        losses: how often it has found state lost meanwhile.
    """
    prior = PRIOR_HOURS * 3600 / servers
    return min(prior, watched / losses) if losses else prior


def young(*, save_seconds: float | None, mean_time: float) -> float:
    """Seconds between two saves.

    Args:
        save_seconds: what the last save took; None before the first one.
        mean_time: seconds between two losses.
    """
    if save_seconds is None:
        return FIRST_SECONDS
    shortest = max(SHORTEST_SECONDS, 2 * save_seconds)
    longest = max(LONGEST_SECONDS, save_seconds / LARGEST_SHARE)
    return min(max(math.sqrt(2 * mean_time * save_seconds), shortest), longest)


def is_worth_reporting(reported: float | None, interval: float) -> bool:
    """Whether an interval differs much from the one that was reported last."""
    return reported is None or abs(interval - reported) > WORTH_REPORTING * reported
