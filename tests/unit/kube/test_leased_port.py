"""Writes of an operator that has lost its Lease in the middle of a pass."""

import asyncio
from typing import Any, cast

import pytest

from pstraining.api.conditions import Reason
from pstraining.controller.informer_cache import InformerCache
from pstraining.core.actions import Create, Kind
from pstraining.kube.errors import Transient
from pstraining.kube.executor import IN_FLIGHT, Executor
from pstraining.kube.leased_port import LeasedPort
from pstraining.kube.port import ApiPort

pytestmark = pytest.mark.asyncio

SERVICES = [
    Create(
        Kind.SERVICE,
        f"s{i}",
        {"kind": "Service", "metadata": {"name": f"s{i}", "labels": {}}, "spec": {"clusterIP": "None"}},
        Reason.DESIRED,
    )
    for i in range(10 * IN_FLIGHT)
]


class Port:
    """Records for each write whether the Lease was held."""

    def __init__(self) -> None:
        self.held = True
        self.writes: list[bool] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name}}

    async def create(self, kind: Kind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(self.held)
        self.held = len(self.writes) < 2 * IN_FLIGHT
        await asyncio.sleep(0)
        name = body["metadata"]["name"]
        return {"kind": kind, "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"}}

    async def write(self, *_: Any) -> None:
        self.writes.append(self.held)

    apply = replace = resize = delete = patch_status = patch_progress = merge_status = create_event = write


async def test_a_pass_writes_nothing_after_its_lease_is_lost() -> None:
    port = Port()
    leased: Any = LeasedPort(port, lambda: port.held)  # type: ignore[arg-type]
    with pytest.raises(Transient, match="Lease"):
        await Executor(leased, InformerCache()).execute("d", "j", "uid", SERVICES)
    assert port.writes == [True] * 2 * IN_FLIGHT


READS = ("get", "owned", "queues_are_served", "warnings")


@pytest.mark.parametrize(
    "call", sorted(name for name in vars(ApiPort) if not name.startswith("_") and name not in READS)
)
async def test_every_write_checks_the_lease(call: str) -> None:
    port = Port()
    leased: Any = LeasedPort(port, lambda: port.held)  # type: ignore[arg-type]
    counts = {"create": 3, "apply": 4, "replace": 5, "resize": 5, "delete": 4, "patch_status": 3, "patch_progress": 4}
    counts |= {"create_event": 2, "merge_status": 5}
    arguments = [{"metadata": {"name": "a"}}] * counts[call]
    await getattr(leased, call)(*arguments)
    port.held = False
    with pytest.raises(Transient, match="Lease"):
        await getattr(leased, call)(*arguments)
    assert port.writes == [True]
    assert await leased.get(Kind.POD, "d", "a"), "reads continue"


async def test_a_write_that_is_cancelled_has_no_answer() -> None:
    port, asked = Port(), asyncio.Event()

    async def hung(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    port.apply = hung  # type: ignore[method-assign]
    leased = LeasedPort(cast(ApiPort, port), lambda: True)
    await leased.replace(Kind.SERVICE, "d", "a", "uid", {})
    write = asyncio.create_task(leased.apply(Kind.SERVICE, "d", "a", {}))
    await asked.wait()
    assert not leased.is_unanswered
    write.cancel()
    await asyncio.wait({write})
    assert write.cancelled()
    assert leased.is_unanswered


async def test_each_answered_write_is_reported() -> None:
    port, answered = Port(), list[bool]()
    leased: Any = LeasedPort(port, lambda: port.held, lambda: answered.append(True))  # type: ignore[arg-type]
    await leased.get(Kind.SERVICE, "d", "s0")
    assert not answered
    await leased.create(Kind.SERVICE, "d", SERVICES[0].body)
    assert answered == [True]
    port.held = False
    with pytest.raises(Transient):
        await leased.create(Kind.SERVICE, "d", SERVICES[1].body)
    assert answered == [True]
