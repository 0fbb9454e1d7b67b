"""Questions that the operator asks before it starts, until the API server answers."""

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
    """Ask the API server until it answers.

    Args:
        ask: the request.
        trouble: begins the warning about a request that failed.
        seconds: between two attempts.

    Raises:
        Refused: the API server refuses the request: another attempt changes nothing.
    """
    while True:
        try:
            return await ask()
        except Refused:
            raise
        except ApiError as error:
            logger.warning("%s: %s", trouble, error.message)
        await asyncio.sleep(seconds)
