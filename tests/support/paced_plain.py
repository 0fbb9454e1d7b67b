"""The example plain_tensorflow at a pace: ten steps a second of each worker. See tests/support/paced.py.

In pods, whose image has no tests, `python -c` with this file's text, and the example's own arguments.
"""

from typing import Any

import examples.plain_tensorflow.__main__ as plain

PAUSE_SECONDS = 0.1
"""Seconds that each batch of each worker takes."""
unpaced = plain.dataset


def dataset(_: Any = None) -> Any:
    from tensorflow.python.data.experimental.ops.testing import sleep

    return unpaced().apply(sleep(int(PAUSE_SECONDS * 1_000_000)))


if __name__ == "__main__":
    plain.dataset = dataset
    plain.STEPS_PER_ROUND = 10
    plain.main()
