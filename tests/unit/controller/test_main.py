"""How the parts of the operator's process are put together."""

import asyncio
from typing import Any, cast

import pytest

from pstraining.controller import main
from pstraining.controller.main import build
from pstraining.controller.settings import Settings
from pstraining.core.actions import Kind
from pstraining.kube.errors import Refused, Transient
from tests.support.builders import job
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


class Platform(FakeKube):
    """An API server whose answers to the question for SecurityContextConstraints are scripted."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__()
        self.answers = list(answers)

    async def api_is_served(self) -> bool:
        return True

    async def assigns_ids(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("setting", "answers", "expected"),
    [
        ("auto", (True,), False),
        ("auto", (False,), True),
        ("auto", (Transient("away"), Transient("away"), True), False),
        ("auto", (Refused("forbidden", status=403),), True),
        ("set", (), True),
        ("platform", (), False),
    ],
)
async def test_the_ids_of_pods_are_decided_before_the_first_pass(
    setting: str, answers: tuple[bool | Exception, ...], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "CRD_POLL_SECONDS", 0.0)
    settings = Settings.from_env({"POD_NAME": "operator", "PSTRAINING_POD_IDS": setting})
    platform = Platform(*answers)
    operator = build(settings, DECISIONS, LAUNCHER, cast(Any, platform), asyncio.Event())
    await operator._wait_for_platform()
    assert operator.watch_state.installation.sets_ids is expected
    assert platform.answers == []
    platform.put(job())
    platform.deliver(operator.watch_state.cache)
    assert operator.watch_state.snapshot(("default", "digits")).installation.sets_ids is expected


@pytest.mark.parametrize("is_answered", [True, False])
async def test_the_lease_is_released_unless_a_write_has_no_answer(is_answered: bool) -> None:
    kube = FakeKube()
    settings = Settings.from_env({"POD_NAME": "operator", "POD_NAMESPACE": "system"})
    operator = build(settings, DECISIONS, LAUNCHER, cast(Any, kube), asyncio.Event())
    await operator.lease.acquire()
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> dict[str, Any]:
        asked.set()
        await answered.wait()
        return {}

    kube.apply = slow  # type: ignore[method-assign, assignment]
    write = asyncio.create_task(operator.port.apply(Kind.SERVICE, "default", "a", {}))
    await asked.wait()
    if is_answered:
        answered.set()
    else:
        write.cancel()
    await asyncio.wait({write})
    await operator._release()
    holder = (await kube.get_lease("system", "pstraining-operator"))["spec"]["holderIdentity"]
    assert holder == ("" if is_answered else "operator")
