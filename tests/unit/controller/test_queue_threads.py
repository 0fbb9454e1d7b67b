"""Probes and scrapes read the work queue from other threads, between any two steps of the event loop's thread."""

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

from pstraining.controller.workqueue import WorkQueue


@pytest.mark.parametrize("read", [WorkQueue.oldest_age, WorkQueue.stuck_for])
def test_a_reader_survives_changes_between_any_two_of_its_steps(read: Any) -> None:
    async def story() -> float:
        queue = WorkQueue()
        queue.open()
        queue.add(("ns", "first"))

        def change(frame: FrameType, _event: str, _argument: object) -> Any:
            frame.f_trace_opcodes = True
            sys.settrace(None)
            queue.add(("ns", str(queue.depth)))
            sys.settrace(change)
            return change

        former = sys.gettrace()
        sys.settrace(change)
        try:
            return float(read(queue))
        finally:
            sys.settrace(former)

    assert asyncio.run(story()) >= 0
