"""The assembly of the operator's process from its parts."""

import asyncio
import contextlib
import dataclasses
from typing import Any, cast

import pytest

from pstraining.controller import main, registration
from pstraining.controller.health import Health, Heartbeat
from pstraining.controller.main import build
from pstraining.controller.settings import Settings
from pstraining.core.actions import Kind
from pstraining.kube.errors import Refused, Transient
from pstraining.resources.installation import KueueSupport
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


async def test_the_probe_names_the_namespaces_that_forbid_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Health] = []
    monkeypatch.setattr(Health, "serve", lambda self, port: served.append(self))
    settings = Settings.from_env({"PSTRAINING_NAMESPACES": "a,b", "PSTRAINING_METRICS_PORT": "0"})
    operator = build(settings, DECISIONS, LAUNCHER, cast(Any, FakeKube()), asyncio.Event())
    main._serve(operator, Heartbeat())
    operator.watches._forbid(("pods", "b"), "pods is forbidden")
    assert "forbidden: b: pods is forbidden" in served[0].answer("/readyz")[1]


class Platform(FakeKube):
    """An API server with scripted answers to requests for SecurityContextConstraints."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__()
        self.answers = list(answers)

    async def api_is_served(self) -> bool:
        return True

    async def pods_are_resized(self) -> bool:
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
    assert operator.watch_state.installation.resizes_pods
    assert platform.answers == []
    platform.put(job())
    platform.deliver(operator.watch_state.cache)
    assert operator.watch_state.snapshot(("default", "digits")).installation.sets_ids is expected


class Queues(Platform):
    """An API server that may serve Kueue's Workloads."""

    def __init__(self, *served: bool) -> None:
        super().__init__(False)
        self.served = list(served)

    async def queues_are_served(self) -> bool:
        return self.served.pop(0)


async def examined(queues: Queues, setting: str = "true") -> main.Operator:
    """Return an operator with this setting for queues that has examined the API server."""
    settings = Settings.from_env({"POD_NAME": "operator", "PSTRAINING_KUEUE": setting})
    operator = build(settings, DECISIONS, LAUNCHER, cast(Any, queues), asyncio.Event())
    await operator._wait_for_platform()
    return operator


@pytest.mark.parametrize(
    ("setting", "served", "expected"),
    [("false", (), KueueSupport.OFF), ("true", (True,), KueueSupport.ON), ("true", (False,), KueueSupport.MISSING)],
)
async def test_jobs_queue_where_the_setting_and_the_api_server_allow_it(
    setting: str, served: tuple[bool, ...], expected: KueueSupport
) -> None:
    operator = await examined(Queues(*served), setting)
    assert operator.watch_state.installation.kueue is expected


async def test_the_operator_restarts_once_kueue_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "KUEUE_POLL_SECONDS", 0.0)
    queues = Queues(False, False, True)
    operator = await examined(queues)
    await operator._wait_for_queues()
    assert operator.stop.is_set()
    assert queues.served == []


async def test_the_operator_restarts_once_kueue_is_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "KUEUE_POLL_SECONDS", 0.0)
    queues = Queues(True, False, True)
    operator = await examined(queues)
    waiting = asyncio.create_task(operator._wait_for_queues())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    found = operator.watch_state.installation
    operator.watch_state.installation = dataclasses.replace(found, kueue=KueueSupport.MISSING)
    await waiting
    assert operator.stop.is_set()
    assert queues.served == []


async def test_the_jobs_are_told_that_kueue_is_uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "KUEUE_POLL_SECONDS", 0.0)
    operator = await examined(Queues(True, False, True))
    operator.watches.queues_are_served = False
    operator.watch_state.receive(job(), None)
    await operator._wait_for_queues()
    assert operator.stop.is_set(), "it restarts once Kueue is installed again"
    assert operator.watch_state.installation.kueue is KueueSupport.MISSING
    assert operator.queue.depth == 1


async def test_workloads_are_watched_only_where_jobs_queue() -> None:
    assert registration.WORKLOADS in registration.watched(nodes=True, queues=True)
    assert registration.WORKLOADS not in registration.watched(nodes=True, queues=False)
    assert registration.build_settings().watching.label_selectors[registration.WORKLOADS]


async def test_the_cache_hears_of_a_store_that_was_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = build(Settings.from_env({}), DECISIONS, LAUNCHER, cast(Any, FakeKube()), asyncio.Event())
    given: list[Any] = []

    def taken(*arguments: Any) -> contextlib.AbstractContextManager[None]:
        given.extend(arguments)
        raise asyncio.CancelledError

    monkeypatch.setattr(operator.client, "configuration", None, raising=False)
    monkeypatch.setattr(registration, "build_registry", lambda *_: None)
    monkeypatch.setattr(operator.watches, "taken", taken)
    with pytest.raises(asyncio.CancelledError):
        await operator._watch(asyncio.Event())
    assert given[-1] == operator.watch_state.cache.forget_versions


async def test_a_pass_writes_nothing_without_the_lease() -> None:
    """A pass may still run when another operator has taken the Lease."""
    kube = FakeKube()
    operator = build(Settings.from_env({}), DECISIONS, LAUNCHER, cast(Any, kube), asyncio.Event())
    kube.put(job())
    kube.deliver(operator.watch_state.cache)
    kube.writes()
    with pytest.raises(Transient, match="does not hold the Lease"):
        await operator.reconciler.reconcile(("default", "digits"))
    assert kube.writes() == []
    await operator.lease.acquire()
    await operator.reconciler.reconcile(("default", "digits"))
    assert kube.writes()


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
