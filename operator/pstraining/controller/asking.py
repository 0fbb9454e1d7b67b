"""Requests that the operator repeats before it starts, until the API server answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pstraining.kube.errors import ApiError, Refused

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0
"""Seconds between two attempts."""
_T = TypeVar("_T")


async def answered(ask: Callable[[], Awaitable[_T]], trouble: str, seconds: float = RETRY_SECONDS) -> _T:
    """Repeat a request until the API server answers it, and return the answer.

    Args:
        ask: sends the request.
        trouble: the start of the warning about a failed request.
        seconds: seconds between two attempts.

    Raises:
        Refused: the API server refuses the request, and would refuse every further attempt.
    """
    while True:
        try:
            return await ask()
        except Refused:
            raise
        except ApiError as error:
            logger.warning("%s: %s", trouble, error.message)
        await asyncio.sleep(seconds)
