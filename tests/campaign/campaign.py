"""Runs several plans at a time, each with its own operator, proxy and namespace."""

import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from pstraining.api import names
from pstraining.kube.connection import load_configuration
from pstraining.runtime.local import hold_port
from tests.campaign import oracle, queues
from tests.campaign.api import Api, Object, Watched
from tests.campaign.faults import OnWatch, OnWrite, Plan, Point
from tests.campaign.forks import Forked, Forks
from tests.campaign.oracle import Run
from tests.campaign.proxy import FaultProxy, serving
from tests.campaign.stage import JOB, Stage
from tests.campaign.workloads import WORKLOADS

UNDISTURBED = 3
"""Number of undisturbed runs of each workload."""
QUIET_SECONDS = 1.0
LONG_QUIET_SECONDS = 4.0
"""Seconds without a write after faults that delay requests: a timeout, or the end of a 429."""
PATIENCE = 60.0
"""Seconds until the expected end state."""
READY_SECONDS = 120.0
"""Seconds until an operator is ready. All limits suit a busy machine, as only a diverging run reaches them."""
MOST_OPERATORS = 5
MOST_TRIES = 4
"""Maximum number of runs of a plan whose status write has not occurred."""
DOWN_SECONDS = 1.0
"""Seconds that Python needs to import an operator that is not forked; meanwhile the cluster continues."""
SLOW = (OnWrite.HANGS, OnWrite.LATE, OnWrite.TOO_MANY)


@dataclass
class Campaign:
    """The state that all plans share."""

    api: Api
    watched: Watched
    forks: Forks
    folder: Path
    references: dict[str, list[Run]] = field(default_factory=dict)
    _free: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    _made: list[str] = field(default_factory=list)
    _name: str = field(default_factory=lambda: f"campaign-{uuid.uuid4().hex[:6]}")

    async def reference(self, workload: str) -> tuple[list[Point], list[Point]]:
        """Run a workload undisturbed; return the writes that bring the job up, and the writes that follow.

        Raises:
            AssertionError: undisturbed runs differ.
        """
        runs = list(await asyncio.gather(*(self.run(Plan(workload)) for _ in range(UNDISTURBED))))
        for run in runs:
            problems = oracle.compare(run, runs)
            assert not problems, f"{workload}, undisturbed: {problems}; log: {run.log}"
        for run in runs:
            if run.log is not None:
                run.log.unlink(missing_ok=True)
        self.references[workload] = runs
        # A write that is missing in some runs cannot be a point of a plan, because no run could be required to reach
        # it.
        sure = set.intersection(*({a.point for a in run.attempts} for run in runs))
        points = [(n, a.point) for n, a in enumerate(runs[0].attempts) if a.point in sure]
        first = runs[0].own_from
        return [p for n, p in points if n < first], [p for n, p in points if n >= first]

    async def judge(self, plan: Plan) -> tuple[Run, list[str]]:
        """Run a plan and compare it; repeat it a few times while its status write does not occur."""
        for _ in range(MOST_TRIES):
            run = await self.run(plan)
            if run.fired or plan.at is None or plan.at.verb != "status":
                break  # two status writes may have been merged, so the last one did not occur: repeat the plan
        problems = oracle.compare(run, self.references[plan.workload])
        if problems and run.log is not None:
            problems.append(f"log: {run.log}")
        elif run.log is not None:
            run.log.unlink(missing_ok=True)
        return run, problems

    async def run(self, plan: Plan) -> Run:
        """Run a plan."""
        started = time.monotonic()
        namespace = await self._namespace()
        attempt = _Attempt(self, plan, namespace)
        try:
            run = await attempt.play()
        except Exception as error:  # noqa: BLE001 - one plan's trouble is a result, not the end of the campaign
            run = Run(plan, problems=[f"{type(error).__name__}: {error}"], log=attempt.log)
        if not run.problems:
            self._free.put_nowait(namespace)
        run.seconds = time.monotonic() - started
        return run

    async def install(self, crd: Object) -> None:
        """Install the CRD, and wait until it is served."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        query = "fieldManager=pstraining-tests&force=true"
        await self.api.ask("PATCH", f"{path}?{query}", crd, "application/apply-patch+yaml")
        await self._there(f"{self.api.bases[names.PLURAL]}/{names.PLURAL}")

    async def clean_up(self) -> None:
        """Delete all namespaces and queues."""
        if self.has_queues:
            await queues.remove(self.api, self._made)
        for name in self._made:
            await self.api.ask("DELETE", f"/api/v1/namespaces/{name}")

    @property
    def has_queues(self) -> bool:
        """Whether each namespace has a queue of Kueue."""
        return "workloads" in self.api.bases

    async def _namespace(self) -> str:
        if not self._free.empty():
            return self._free.get_nowait()
        name = f"{self._name}-{len(self._made):03}"
        self._made.append(name)
        await self.api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await self._there(f"/api/v1/namespaces/{name}/serviceaccounts/default")
        if self.has_queues:
            await queues.add(self.api, name)
        return name

    async def _there(self, path: str) -> None:
        async def served() -> bool:
            return (await self.api.send("GET", path, {}, None)).status == 200

        await poll(served, 30)


class _Attempt:
    """One run of one plan."""

    def __init__(self, campaign: Campaign, plan: Plan, namespace: str) -> None:
        self.campaign, self.plan, self.namespace = campaign, plan, namespace
        self.name = f"{len(campaign._made)}-{uuid.uuid4().hex[:8]}"
        self.log = campaign.folder / f"{self.name}.log"
        self.result = Run(plan, log=self.log)
        self.proxy = FaultProxy(campaign.api, plan, self._crash)
        self.stage = Stage(campaign.api, campaign.watched, namespace, self._begun)
        self.operator: Forked | None = None

    async def play(self) -> Run:
        with ExitStack() as held:
            self.health = hold_port(held)
            return await self._played()

    async def _played(self) -> Run:
        async with serving(self.proxy):
            self.campaign.watched.born.pop(self.namespace, None)
            self.campaign.watched.history.pop(self.namespace, None)
            keeping = asyncio.create_task(self._keep_running())
            try:
                await self._ready()
                await WORKLOADS[self.plan.workload](self.stage)
                await self._settle()
                await self._delete()
            except TimeoutError as error:
                self.result.problems.append(str(error) or "time-out")
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                if self.operator is not None:
                    self.operator.kill()
                    await self.operator.ended
        return self.result

    def _begun(self) -> None:
        self.result.own_from = len(self.proxy.attempts)

    def _crash(self) -> None:
        assert self.operator is not None
        self.operator.kill()

    async def _keep_running(self) -> None:
        """Start the operator whenever it ends, and kill it when its liveness probe fails, as the kubelet does."""
        config = self.campaign.folder / f"{self.name}.kubeconfig"
        config.write_text(json.dumps(_kubeconfig(self.proxy.url)))
        environment = {
            "KUBECONFIG": str(config),
            "PSTRAINING_CONTEXT": "proxy",
            "POD_NAME": "operator",
            "POD_NAMESPACE": self.namespace,
            "PSTRAINING_NAMESPACES": self.namespace,
            "PSTRAINING_HEALTH_PORT": str(self.health),
            "PSTRAINING_METRICS_PORT": "0",
            **({"PSTRAINING_KUEUE": "true"} if self.plan.is_queued else {}),
        }
        while self.proxy.generation < MOST_OPERATORS:
            self.proxy.generation += 1
            self.operator = await self.campaign.forks.start(environment, self.log, self.plan.without)
            watching = asyncio.create_task(self._watch_health())
            status = await asyncio.shield(self.operator.ended)
            watching.cancel()
            if status != -9:
                self.result.problems.append(f"an operator ended with {status}")
            await asyncio.sleep(DOWN_SECONDS)

    async def _watch_health(self) -> None:
        if self.plan.on_watch is not OnWatch.SILENT:
            return
        await self._ready()

        async def dead() -> bool:
            return not await self._answers("livez")

        await poll(dead, 600, every=0.5)
        self._crash()

    async def _ready(self) -> None:
        async def ready() -> bool:
            return self.proxy.generation > 0 and await self._answers("readyz")

        await poll(ready, READY_SECONDS)

    async def _answers(self, probe: str) -> bool:
        url = f"http://127.0.0.1:{self.health}/{probe}"
        try:
            async with self.campaign.api.session.get(url, ssl=False) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _settle(self) -> None:
        """Wait until the end state is right and the operator is quiet, or until the deadline."""
        reference = self.campaign.references.get(self.plan.workload)
        end = time.monotonic() + PATIENCE
        await self._quiet(end)
        if self.proxy.late:
            await self.proxy.deliver_late()
            await self._quiet(end)
        while True:
            state = await oracle.end_state(self.campaign.api, self.namespace)
            good = reference is None or not oracle.differences(reference[0].state, state)
            if good or time.monotonic() > end:
                break
            await asyncio.sleep(0.3)
        await self._quiet(time.monotonic() + PATIENCE)
        self.result.state = await oracle.end_state(self.campaign.api, self.namespace)
        self.result.attempts = list(self.proxy.attempts)
        self.result.operators = self.proxy.generation
        self.result.fired = self.proxy.fired or self.plan.on_write is None
        if self.plan.is_queued:
            self.result.problems += queues.without_quota(self.campaign.watched.history.get(self.namespace, ()))
        self.result.born = oracle.tasks_of(list(self.campaign.watched.born.get(self.namespace, {}).values()))

    async def _quiet(self, end: float) -> None:
        """Wait for a time without a write.

        Raises:
            TimeoutError: the operator does not become quiet.
        """
        slow = self.plan.on_write in SLOW or self.plan.on_watch is OnWatch.SILENT
        wanted = LONG_QUIET_SECONDS if slow else QUIET_SECONDS
        since, count = time.monotonic(), len(self.proxy.attempts)
        while time.monotonic() < since + wanted:
            await asyncio.sleep(0.1)
            if len(self.proxy.attempts) != count:
                since, count = time.monotonic(), len(self.proxy.attempts)
                if since > end:
                    raise TimeoutError(f"still writes: {self.proxy.attempts[-1].point}")

    async def _delete(self) -> None:
        """Delete the job with all of its objects, so that the next plan finds the namespace empty."""
        api = self.campaign.api
        await api.ask("DELETE", self.stage.path(names.PLURAL, JOB), {"propagationPolicy": "Background"})
        left: dict[str, object] = {}
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            left = await oracle.end_state(api, self.namespace)
            if self.plan.is_queued and (quota := await queues.used(api, self.namespace)) != "0":
                left["quota"] = quota
            if not left:
                break
            await asyncio.sleep(0.2)
        else:
            self.result.leaked = len(left)
            self.result.problems.append(f"left behind when the job was deleted: {sorted(left)}")
        await api.ask("DELETE", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
    }


@asynccontextmanager
async def opened(
    folder: Path, environment: dict[str, str], crd: Object, *, with_queues: bool = False
) -> AsyncIterator[Campaign]:
    """Run a campaign on the cluster that the environment names, with this CRD, and with queues if Kueue is there."""
    api = Api(await load_configuration(environment))
    watched = Watched(api)
    forks = await Forks.open()
    campaign = Campaign(api, watched, forks, folder)
    try:
        await campaign.install(crd)
        if with_queues:
            await queues.install(api)
        await watched.open()
        yield campaign
    finally:
        await forks.close()
        await watched.close()
        with contextlib.suppress(AssertionError):
            await campaign.clean_up()
        await api.close()


async def run_all(
    campaign: Campaign, found: Sequence[Plan], at_once: int, report: Callable[[Run, list[str]], None]
) -> None:
    """Run a number of plans at a time."""
    waiting = iter(found)

    async def work() -> None:
        for plan in waiting:
            report(*await campaign.judge(plan))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


async def poll(check: Callable[[], Awaitable[bool]], limit: float, *, every: float = 0.05) -> None:
    """Poll until the condition holds.

    Raises:
        TimeoutError: it does not become true.
    """
    async with asyncio.timeout(limit):
        while not await check():  # noqa: ASYNC110 - what is asked is another process
            await asyncio.sleep(every)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
