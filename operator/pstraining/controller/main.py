"""The operator's process, from the environment to the exit status.

Exit 0 after SIGTERM or SIGINT: the running passes are finished, and the Lease is released. If a write has no answer by
then, the Lease expires instead, because the API server may carry the write out later. Exit 1 when the Lease is
lost or a watch fails permanently: the container restarts, which is always safe. Exit 2 when a setting is invalid.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import kopf

from pstraining import __version__
from pstraining.controller import logs, registration
from pstraining.controller.asking import answered
from pstraining.controller.health import Check, Health, Heartbeat
from pstraining.controller.informer_cache import Key
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.progress.endpoint import ProgressReceiver
from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.controller.reconciler import Decisions, Reconciler
from pstraining.controller.settings import OperatorSettingsError, Settings
from pstraining.controller.watch import Watches
from pstraining.controller.watch_state import WatchState
from pstraining.controller.workqueue import WorkQueue
from pstraining.kube.client import KubeClient
from pstraining.kube.connection import NoApiServerError, load_configuration
from pstraining.kube.errors import ApiError, Refused
from pstraining.kube.lease import Lease, LeaseLostError
from pstraining.kube.leased_port import LeasedPort
from pstraining.resources import kueue
from pstraining.resources.installation import Installation, KueueSupport
from pstraining.resources.launcher import LauncherFiles
from pstraining.resources.security import PodIds, sets_ids

logger = logging.getLogger(__name__)

STUCK_SECONDS = 120.0
"""The process is not live after this time with queued work and no progress."""
SILENT_SECONDS = 300.0
"""The process is not live after this time without an event or bookmark; the API server sends a bookmark per minute."""
FINISH_SECONDS = 6.0
"""Time for running passes to finish after SIGTERM."""
RELEASE_SECONDS = 2.0
"""Time limit for the release of the Lease; without a release, a successor waits for its expiry."""
GARBAGE_THRESHOLD = 20_000
"""Number of new objects after which the garbage collector searches for cycles; Python's default is 700."""
KUEUE_POLL_SECONDS = 10.0
"""Seconds between two checks whether Kueue has been installed."""
CRD_POLL_SECONDS = 2.0
"""Seconds between two requests to an API server that does not answer, or does not serve the CRD."""


@dataclass
class Operator:
    """The components of one process."""

    settings: Settings
    client: KubeClient
    lease: Lease
    port: LeasedPort
    watch_state: WatchState
    queue: WorkQueue
    watches: Watches
    metrics: OperatorMetrics
    reconciler: Reconciler
    board: ProgressBoard
    progress: ProgressReceiver
    stop: asyncio.Event

    async def run(self) -> int:
        """Run until stopped; return the exit status."""
        if not await self._unless_stopped(self.lease.acquire()):
            return 0
        try:
            return await self._operate() if await self._unless_stopped(self._wait_for_platform()) else 0
        finally:
            await self.progress.stop()
            await self._release()

    async def _release(self) -> None:
        """Release the Lease, unless the API server may still carry out one of our writes."""
        if self.port.is_unanswered:
            logger.warning("A write has no answer: the Lease is not released, and a successor waits for its expiry")
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self.lease.release()

    async def _operate(self) -> int:
        leasing = asyncio.create_task(self.lease.keep(), name="lease")
        work = self.queue.run(self._reconcile, self.settings.workers, self.reconciler.failed)
        working = asyncio.create_task(work, name="workers")
        resyncing = asyncio.create_task(self._resync(), name="resync")
        writing = asyncio.create_task(self.board.run(), name="progress")
        queues = asyncio.create_task(self._wait_for_queues(), name="queues")
        # When kopf ends, it cancels every task that was created after its start. All of ours are therefore created
        # first.
        stop_kopf = asyncio.Event()
        watching = asyncio.create_task(self._watch(stop_kopf), name="kopf")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        ours = {leasing, working, resyncing, writing, watching, stopping}
        done, _ = await asyncio.wait(ours, return_when=asyncio.FIRST_COMPLETED)
        self.queue.stop()
        stop_kopf.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await asyncio.wait({working, watching})
        for task in (*ours, queues):
            task.cancel()
        await asyncio.gather(*ours, queues, return_exceptions=True)
        return _status(done, stopping)

    async def _reconcile(self, key: Key) -> float | None:
        """Make a pass, unless lists on which the job depends are incomplete; `_synced` then queues the job again."""
        if not self.watches.is_ready(key[0]) or not (self.watches.knows_queues(key[0]) or self._is_queueless(key)):
            return None
        if not self.watch_state.cache.has_job(key):
            self.board.forget(key)
        return await self.reconciler.reconcile(key)

    def _is_queueless(self, key: Key) -> bool:
        job, _ = self.watch_state.cache.job_and_pod(key, "")
        return job is None or not (job["metadata"].get("labels") or {}).get(kueue.LABEL_QUEUE)

    def _synced(self, namespace: str | None) -> None:
        self.queue.open()
        for key in self.watch_state.cache.jobs():
            if namespace in (None, key[0]):
                self.queue.add(key)

    async def _watch(self, stop: asyncio.Event) -> None:
        queues = self.watch_state.installation.kueue is KueueSupport.ON
        kinds = registration.watched(nodes=self.settings.watch_nodes, queues=queues)
        registry = registration.build_registry(self.client.configuration, kinds)
        self.watches.expected, self.watches.watches_queues = len(kinds) - queues, queues
        before = asyncio.all_tasks()
        receive = registration.receiver(self.watch_state, self.queue, self.reconciler.startup_delay)
        with self.watches.taken(receive, self._synced, self.watch_state.cache.forget_versions):
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=registration.build_settings(),
                standalone=True,
                clusterwide=not self.settings.namespaces,
                namespaces=self.settings.namespaces,
                stop_flag=stop,
            )
            # kopf has just set its own signal handlers, which would end the process before the running passes.
            listen(self.stop.set)
            await kopf.run_tasks(tasks, ignored=before)

    async def _wait_for_platform(self) -> None:
        """Wait for the CRD, find out whether the platform assigns the IDs of pods, and accept progress."""
        await self._wait_for_api()
        setting = self.settings.pod_ids
        assigned = setting is PodIds.AUTO and await self._platform_assigns_ids()
        ids = sets_ids(setting, platform_assigns_ids=assigned)
        kueue, resizes = await self._kueue_support(), await self._resizes_pods()
        found = Installation(ids, await self.progress.start(), kueue, resizes)
        self.watch_state.installation = found
        if not found.sets_ids:
            logger.info("New pods get no user and group IDs: the platform assigns them")

    async def _kueue_support(self) -> KueueSupport:
        """Return whether jobs wait for Kueue; without its API, jobs with a queue do not start."""
        if not self.settings.kueue:
            return KueueSupport.OFF
        trouble = "The API server cannot be asked whether it serves Kueue's Workloads"
        if await answered(self.client.queues_are_served, trouble, CRD_POLL_SECONDS):
            return KueueSupport.ON
        logger.warning("The API server does not serve Kueue's Workloads: jobs with a queue do not start until it does")
        return KueueSupport.MISSING

    async def _wait_for_queues(self) -> None:
        """End the process once Kueue is installed, perhaps again: kopf cannot start to watch a kind later."""
        while self.watch_state.installation.kueue is not KueueSupport.OFF:
            await asyncio.sleep(KUEUE_POLL_SECONDS)
            if self.watch_state.installation.kueue is KueueSupport.ON:
                # A job whose Workload vanishes shows earlier that Kueue is being uninstalled (hidden_workloads.py).
                if not self.watches.queues_are_served:
                    self.watch_state.installation = replace(self.watch_state.installation, kueue=KueueSupport.MISSING)
                    self._synced(None)
                continue
            with contextlib.suppress(ApiError):
                if await self.client.queues_are_served():
                    logger.info("The API server serves Kueue's Workloads now: the operator restarts to watch them")
                    self.stop.set()
                    return

    async def _resizes_pods(self) -> bool:
        """Return whether running pods can be resized; an older cluster replaces them."""
        trouble = "The API server cannot be asked whether it resizes running pods"
        try:
            return await answered(self.client.pods_are_resized, trouble, CRD_POLL_SECONDS)
        except Refused as error:
            logger.warning("The API server does not report whether it resizes running pods: %s", error.message)
            return False

    async def _platform_assigns_ids(self) -> bool:
        trouble = "The API server cannot be asked whether it assigns IDs to pods"
        try:
            return await answered(self.client.assigns_ids, trouble, CRD_POLL_SECONDS)
        except Refused as error:
            logger.warning("The API server does not report whether it assigns IDs to pods: %s", error.message)
            return False

    async def _wait_for_api(self) -> None:
        """Wait for the CRD; without it, kopf would start and never watch anything."""
        is_logged = False
        while True:
            try:
                if await self.client.api_is_served():
                    return
                if not is_logged:
                    logger.warning("The API server does not serve PSTrainingJobs yet: check that the CRD is installed")
                    is_logged = True
            except ApiError as error:
                logger.warning("The API server cannot be asked for our API: %s", error.message)
            await asyncio.sleep(CRD_POLL_SECONDS)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.settings.resync_seconds or 1e9)
            for key in self.watch_state.cache.jobs():
                self.queue.add(key)

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> bool:
        """Run a coroutine; return False if the process is stopped before it has finished."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finished = task.done()
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
        if finished:
            task.result()
        return finished


async def run(settings: Settings, decisions: Decisions, launcher: LauncherFiles) -> int:
    """Run the operator and return the exit status."""
    stop = asyncio.Event()
    listen(stop.set)
    try:
        client = KubeClient(await load_configuration(), user_agent=f"{settings.lease_name}/{__version__}")
    except NoApiServerError as error:
        logger.error("%s", error)
        return 1
    operator = build(settings, decisions, launcher, client, stop)
    heartbeat = Heartbeat()
    beating = asyncio.create_task(heartbeat.beat(), name="heartbeat")
    stop_functions = _serve(operator, heartbeat)
    try:
        return await operator.run()
    except LeaseLostError as error:
        logger.error("Stopping: %s", error)
        return 1
    finally:
        beating.cancel()
        await client.close()
        for stop_serving in stop_functions:
            stop_serving()


def build(
    settings: Settings, decisions: Decisions, launcher: LauncherFiles, client: KubeClient, stop: asyncio.Event
) -> Operator:
    """Create the components of the operator."""
    lease = Lease(
        client,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=settings.pod_name,
        duration=settings.lease_duration_seconds,
    )
    watch_state = WatchState(watches_nodes=settings.watch_nodes)
    queue = WorkQueue(may_act=lambda: lease.held)
    metrics = OperatorMetrics(lambda: queue.depth, queue.oldest_age, lambda: lease.held)
    port = LeasedPort(client, lambda: lease.held, queue.moved)
    board = ProgressBoard(port, watch_state.cache, metrics, queue.add)
    usage = UsageBoard(queue.add)
    watch_state.stall, watch_state.usage = board.stall, usage.of
    progress = ProgressReceiver(settings, client, watch_state.cache, board, usage, metrics)
    reconciler = Reconciler(
        watch_state=watch_state,
        port=port,
        decisions=decisions,
        launcher=launcher,
        metrics=metrics,
        instance=settings.pod_name,
        enqueue=queue.add,
    )
    streams = len(registration.WATCHED) + settings.watch_nodes
    watches = Watches(streams, settings.namespaces, fence=lambda: lease.version)
    metrics.count_forbidden(settings.namespaces, watches.forbidden)
    return Operator(
        settings, client, lease, port, watch_state, queue, watches, metrics, reconciler, board, progress, stop
    )


def listen(stop: Callable[[], None]) -> None:
    """Call `stop` on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def main() -> None:
    """Run the console script."""
    try:
        settings = Settings.from_env(os.environ)
    except OperatorSettingsError as error:
        print(f"pstraining-operator: {error}", file=sys.stderr)  # noqa: T201 - logging is not configured yet
        sys.exit(2)
    logs.configure(settings.log_level, settings.log_format)
    # Containers often start with 1,024 descriptors; the hard limit costs nothing.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from pstraining.core import facts, planner, status
    from pstraining.core.policies.diagnosis import unexplained
    from pstraining.core.reduced_status import reduced_status
    from pstraining.launcher import launcher_files, launcher_version

    # Imported modules live as long as the process, and JSON has no cycles, so frequent collections find nothing.
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    decisions = Decisions(facts.gather, planner.plan, status.next_status, status.events, reduced_status, unexplained)
    launcher = LauncherFiles(version=launcher_version(), files=launcher_files())
    sys.exit(asyncio.run(run(settings, decisions, launcher)))


def _serve(operator: Operator, heartbeat: Heartbeat) -> list[Callable[[], None]]:
    """Start the servers for metrics and probes; return the functions that stop them."""
    settings, queue, watches, lease = operator.settings, operator.queue, operator.watches, operator.lease

    def stuck() -> str | None:
        seconds = queue.stuck_for()
        return f"no progress for {seconds:.0f} s" if seconds > STUCK_SECONDS else None

    def silent() -> str | None:
        seconds = watches.silent_for()
        return f"a watch has been silent for {seconds:.0f} s" if lease.held and seconds > SILENT_SECONDS else None

    live: dict[str, Check] = {"loop": heartbeat.check, "queue": stuck, "watch": silent}
    ready: dict[str, Check] = {
        "lease": lambda: None if lease.held else "not held",
        "caches": lambda: None if watches.synced else "not filled yet",
    }
    stop_functions = []
    if settings.metrics_port:
        stop_functions.append(operator.metrics.serve(settings.metrics_port))
    if settings.health_port:
        stop_functions.append(Health(live, ready, lambda: notes(watches)).serve(settings.health_port))
    return stop_functions


def notes(watches: Watches) -> list[str]:
    """Return the lines that the probes show beside their result: the namespaces that forbid the operator."""
    return [f"forbidden: {namespace or 'all namespaces'}: {text}" for namespace, text in watches.forbidden().items()]


def _status(done: set[asyncio.Task[Any]], stopping: asyncio.Task[Any]) -> int:
    """Return the exit status from the tasks that ended first, and log their errors."""
    if stopping in done:
        return 0
    for task in done:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LeaseLostError):
            raise error
        logger.error("Stopping: %s has ended", task.get_name(), exc_info=error)
    return 1


if __name__ == "__main__":
    main()
