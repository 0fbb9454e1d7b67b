"""Concurrent creations: the allowed ones, the requests after a failure, and the record of every write."""

import asyncio

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.informer_cache import InformerCache
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Manifest, Outcomes, Verdict
from pstraining.kube.errors import Conflict, Refused, Transient
from pstraining.kube.executor import IN_FLIGHT, Executor
from pstraining.kube.port import Object
from pstraining.kube.write_order import stages
from tests.support.fakekube import FakeKube

JOB_UID = "job-uid"


def create(name: str, kind: Kind = Kind.CONFIG_MAP, role: str = "") -> Create:
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: JOB_UID, names.LABEL_APP_COMPONENT: role}
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": JOB_UID, "controller": True}
    metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    return Create(kind, name, {"apiVersion": "v1", "kind": kind.value, "metadata": metadata}, Reason.DESIRED)


def worker(index: int) -> Create:
    return create(f"worker-{index}", Kind.DEPLOYMENT, names.WORKER)


def delete(name: str) -> Delete:
    return Delete(Kind.CONFIG_MAP, name, "uid", Reason.NOT_DESIRED)


def apply(name: str) -> Apply:
    return Apply(Kind.CONFIG_MAP, name, "uid", create(name).body, Reason.DRIFTED)


def names_of(*actions: Action) -> list[list[str]]:
    return [[actions[position].name for position in stage] for stage in stages(actions)]


def test_canaries_come_first_then_objects_that_containers_need_then_slow_ones() -> None:
    ps = create("ps", Kind.STATEFUL_SET, names.PS)
    chief = create("chief", Kind.JOB, names.CHIEF)
    service, launcher = create("service", Kind.SERVICE), create("launcher")
    assert names_of(worker(0), ps, worker(1), worker(2), launcher, chief, service) == [
        ["worker-0"],
        ["ps"],
        ["chief"],
        ["launcher", "service", "worker-1", "worker-2"],
    ]


def test_a_claim_precedes_later_actions() -> None:
    claim, ps = create("claim", Kind.CLAIM), create("ps", Kind.STATEFUL_SET, names.PS)
    assert names_of(create("a"), create("b"), claim, ps, create("c")) == [["a", "b"], ["claim"], ["ps"], ["c"]]


def test_other_actions_keep_their_place() -> None:
    planned = (create("a"), create("b"), apply("c"), delete("d"), create("e"), create("f"), delete("g"))
    assert names_of(*planned) == [["a", "b"], ["c"], ["d"], ["e", "f"], ["g"]]


def test_every_action_is_in_one_stage() -> None:
    planned = [worker(i) for i in range(5)] + [delete("x")] + [create(str(i)) for i in range(5)]
    assert sorted(position for stage in stages(planned) for position in stage) == list(range(11))


class SlowKube(FakeKube):
    """An API server that holds its responses to creations until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[str] = []
        self.gates: dict[str, asyncio.Future[Exception | None]] = {}

    async def create(self, kind: Kind, namespace: str, body: Manifest) -> Object:
        name = body["metadata"]["name"]
        self.arrived.append(name)
        self.gates[name] = asyncio.get_running_loop().create_future()
        error = await self.gates[name]
        if error is not None:
            raise error
        return await super().create(kind, namespace, body)

    def answer(self, name: str, error: Exception | None = None) -> None:
        self.gates[name].set_result(error)


class Run:
    """A running executor."""

    def __init__(self, *actions: Action) -> None:
        self.kube, self.cache = SlowKube(), InformerCache()
        work = Executor(self.kube, self.cache).execute("default", "digits", JOB_UID, actions)
        self.task: asyncio.Task[Outcomes] = asyncio.create_task(work)

    async def until_idle(self) -> None:
        """Wait until no further request is sent without a response."""
        for _ in range(50):
            await asyncio.sleep(0)

    def remembered(self) -> set[str]:
        return {c["metadata"]["name"] for c in self.cache.view(("default", "digits")).children}

    async def verdicts(self) -> dict[str, Verdict]:
        async with asyncio.timeout(5):
            return {o.action.name: o.verdict for o in (await self.task).outcomes}


@pytest.mark.asyncio
async def test_creations_are_in_flight_together_and_bounded() -> None:
    run = Run(*(create(f"m-{i:02}") for i in range(IN_FLIGHT + 3)))
    await run.until_idle()
    assert len(run.kube.arrived) == IN_FLIGHT
    run.kube.answer("m-05")
    await run.until_idle()
    assert len(run.kube.arrived) == IN_FLIGHT + 1
    for name in list(run.kube.arrived):
        if name != "m-05":
            run.kube.answer(name)
    await run.until_idle()
    for name in run.kube.arrived[IN_FLIGHT + 1 :]:
        run.kube.answer(name)
    assert set((await run.verdicts()).values()) == {Verdict.DONE}


@pytest.mark.asyncio
async def test_outcomes_are_in_the_order_of_the_plan() -> None:
    run = Run(create("a"), worker(0), create("b"), worker(1))
    await run.until_idle()
    assert run.kube.arrived == ["worker-0"]
    run.kube.answer("worker-0")
    await run.until_idle()
    for name in ("worker-1", "b", "a"):
        run.kube.answer(name)
    assert [o.action.name for o in (await run.task).outcomes] == ["a", "worker-0", "b", "worker-1"]


@pytest.mark.asyncio
async def test_nothing_follows_a_rejected_canary() -> None:
    run = Run(worker(0), worker(1), create("a"))
    await run.until_idle()
    run.kube.answer("worker-0", Refused("spec: bad", status=422))
    found = await run.verdicts()
    assert found == {"worker-0": Verdict.INVALID, "worker-1": Verdict.NOT_TRIED, "a": Verdict.NOT_TRIED}
    assert run.kube.arrived == ["worker-0"]


@pytest.mark.asyncio
async def test_a_rejection_stops_unsent_actions() -> None:
    run = Run(*(create(f"m-{i:02}") for i in range(IN_FLIGHT + 3)), delete("x"))
    await run.until_idle()
    run.kube.answer("m-03", Refused("exceeded quota", status=403))
    for name in list(run.kube.arrived):
        if name != "m-03":
            run.kube.answer(name)
    found = await run.verdicts()
    assert found.pop("m-03") is Verdict.REFUSED
    assert {n for n, v in found.items() if v is Verdict.NOT_TRIED} == {"m-16", "m-17", "m-18", "x"}
    assert len(run.kube.arrived) == IN_FLIGHT
    assert len(run.remembered()) == IN_FLIGHT - 1


@pytest.mark.asyncio
async def test_an_error_is_raised_once_everything_in_flight_is_remembered() -> None:
    run = Run(create("a"), create("b"), create("c"))
    await run.until_idle()
    run.kube.answer("b", Transient("503"))
    await run.until_idle()
    assert not run.task.done()
    run.kube.answer("a")
    run.kube.answer("c")
    with pytest.raises(Transient):
        await run.task
    assert run.remembered() == {"a", "c"}


@pytest.mark.asyncio
async def test_of_several_errors_the_first_of_the_plan_is_raised() -> None:
    run = Run(create("a"), create("b"))
    await run.until_idle()
    run.kube.answer("b", Transient("503"))
    await run.until_idle()
    run.kube.answer("a", Conflict("modified", status=409))
    with pytest.raises(Conflict):
        await run.task


@pytest.mark.asyncio
async def test_a_rejection_is_reported_even_if_another_request_hangs() -> None:
    run = Run(create("a"), create("b"))
    await run.until_idle()
    run.kube.answer("a", Transient("no answer"))
    run.kube.answer("b", Refused("exceeded quota", status=403))
    assert await run.verdicts() == {"a": Verdict.NOT_TRIED, "b": Verdict.REFUSED}


@pytest.mark.asyncio
async def test_a_cancelled_pass_cancels_its_requests() -> None:
    run = Run(create("a"), create("b"))
    await run.until_idle()
    run.task.cancel()
    await asyncio.gather(run.task, return_exceptions=True)
    assert all(gate.cancelled() for gate in run.kube.gates.values())
