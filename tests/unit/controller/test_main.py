"""How the parts of the operator's process are put together."""

import asyncio
from typing import Any, cast

import pytest

from pstraining.controller.main import build
from pstraining.controller.settings import Settings
from tests.support.fakekube import FakeKube
from tests.support.fakekube_decisions import DECISIONS, LAUNCHER

pytestmark = pytest.mark.asyncio


async def test_a_job_whose_status_may_be_written_now_gets_a_pass() -> None:
    settings = Settings.from_env({"POD_NAME": "operator", "POD_NAMESPACE": "system"})
    operator = build(settings, DECISIONS, LAUNCHER, cast(Any, FakeKube()), asyncio.Event())
    waiting = operator.reconciler._status_queue
    with waiting.creating():
        assert waiting.may_write(("default", "first"))
        assert not waiting.may_write(("default", "second")), "children are being created"
        assert operator.queue.depth == 0
    assert operator.queue.depth == 1, "and it is not left to its recheck"
