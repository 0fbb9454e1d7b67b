"""Reads from an API server that does not answer at first, or rejects them."""

import asyncio

import pytest

from pstraining.controller.asking import answered
from pstraining.kube.errors import Refused, Transient


def test_a_read_without_an_answer_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    troubles = [Transient("gone"), Transient("busy")]

    async def ask() -> str:
        if troubles:
            raise troubles.pop(0)
        return "yes"

    assert asyncio.run(answered(ask, "No answer", seconds=0.0)) == "yes"
    assert [record.message for record in caplog.records] == ["No answer: gone", "No answer: busy"]


def test_a_rejected_read_is_not_retried() -> None:
    asked = []

    async def ask() -> str:
        asked.append(1)
        raise Refused("forbidden")

    with pytest.raises(Refused, match="forbidden"):
        asyncio.run(answered(ask, "No answer", seconds=0.0))
    assert len(asked) == 1
