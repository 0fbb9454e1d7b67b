"""The workloads: scripts that wait for the job's status before they continue, so that every run has the same writes."""

from collections.abc import Awaitable, Callable

from pstraining.api import names
from tests.campaign.stage import Stage

Workload = Callable[[Stage], Awaitable[None]]


async def create(stage: Stage) -> None:
    """A job is created and starts."""
    stage.begun()
    await stage.submit()
    await stage.bring_up()


async def succeed(stage: Stage) -> None:
    """The chief ends with exit code 0: the job succeeds and frees its resources."""
    await stage.submit()
    await stage.bring_up()
    stage.begun()
    await stage.end(names.CHIEF)
    await stage.until(lambda: stage.condition("Succeeded") == "True", "Succeeded")
    await stage.until(lambda: not stage.pods(names.PS) and not stage.pods(names.WORKER), "freed")


async def fail(stage: Stage) -> None:
    """The chief fails, is replaced and fails again, which exhausts its budget."""
    await stage.submit(runPolicy={"backoffLimit": 1})
    await stage.bring_up()
    stage.begun()
    await stage.end(names.CHIEF, code=1)
    await stage.run(names.CHIEF, term=2)
    await stage.until(lambda: stage.phase == "Running" and stage.status.get("restarts") == 1, "it runs again")
    await stage.end(names.CHIEF, code=1)
    await stage.until(lambda: stage.condition("Failed") == "True", "Failed")


async def suspend(stage: Stage) -> None:
    """A running job is suspended, and resumed after its last pod has ended."""
    await stage.submit()
    await stage.bring_up()
    stage.begun()
    await stage.change({"runPolicy": {"suspend": True}})
    await stage.until(lambda: stage.condition("Suspended") == "True" and not stage.pods(), "suspended, and freed")
    await stage.until(lambda: all(stage.role(r).get("ready") == 0 for r in ("ps", "worker", "chief")), "0 ready")
    await stage.change({"runPolicy": {"suspend": False}})
    await stage.until(lambda: stage.condition("Suspended") == "False", "resumed")
    await stage.bring_up()


async def scale(stage: Stage) -> None:
    """One worker becomes two, and then one again."""
    await stage.submit()
    await stage.bring_up()
    stage.begun()
    await stage.scale(2)
    await stage.run(names.WORKER, 1)
    await stage.until(lambda: stage.role("worker").get("ready") == 2, "both workers run")
    await stage.scale(1)
    await stage.until(lambda: stage.role("worker").get("desired") == 1, "one worker is wanted")
    await stage.until(lambda: len(stage.pods(names.WORKER)) == 1, "one worker is left")


async def take_over(stage: Stage) -> None:
    """The container of a parameter server dies: its warm standby becomes primary, and the former primary returns as the
    standby.
    """
    await stage.submit(ps={"replicas": 1, "standby": {"mode": "Warm"}})
    await stage.bring_up(standbys=1)
    stage.begun()
    await stage.crash(names.PS)
    await stage.until(lambda: stage.shard.get("takeovers") == 1, "the standby has taken over")
    await stage.until(lambda: stage.shard.get("readyStandbys") == 0, "there is no standby")
    await stage.run(names.PS, restarts=1)
    await stage.until(lambda: stage.shard.get("readyStandbys") == 1, "there is a standby again")
    await stage.until(lambda: stage.phase == "Running", "the job runs")


async def queue(stage: Stage) -> None:
    """A job waits in a queue, is admitted, starts and succeeds; its quota is returned."""
    await stage.stop_queue("Hold")
    stage.begun()
    await stage.submit(queue=True)
    await stage.until(lambda: stage.phase == "Queued", "it waits")
    await stage.stop_queue("None")
    await stage.bring_up()
    await stage.end(names.CHIEF)
    await stage.until(lambda: stage.condition("Succeeded") == "True", "Succeeded")
    await stage.until(lambda: not stage.quota, "the quota is back")


async def evict(stage: Stage) -> None:
    """A running job is evicted, and admitted again once its quota is returned."""
    await stage.submit(queue=True)
    await stage.bring_up()
    stage.begun()
    await stage.stop_queue("HoldAndDrain")
    await stage.until(lambda: stage.phase == "Queued" and not stage.pods(), "queued, and freed")
    await stage.until(lambda: not stage.quota, "the quota is back")
    await stage.until(lambda: all(stage.role(r).get("ready") == 0 for r in ("ps", "worker", "chief")), "0 ready")
    await stage.stop_queue("None")
    await stage.bring_up()


async def slice_(stage: Stage) -> None:
    """One worker becomes two by a workload slice, and then one again, whose quota is returned."""
    await stage.submit(queue=True)
    await stage.bring_up()
    stage.begun()
    await stage.scale(2)
    await stage.run(names.WORKER, 1)
    await stage.until(lambda: stage.role("worker").get("ready") == 2, "both workers run")
    await stage.until(lambda: len(stage.watched.workloads(stage.namespace)) == 1, "the slice has replaced the first")
    await stage.scale(1)
    await stage.until(lambda: len(stage.pods(names.WORKER)) == 1, "one worker is left")
    await stage.until(lambda: stage.quota[names.WORKER] == 1, "the quota of the other is back")


WORKLOADS: dict[str, Workload] = {
    "create": create,
    "succeed": succeed,
    "fail": fail,
    "suspend": suspend,
    "scale": scale,
    "take-over": take_over,
    "queue": queue,
    "evict": evict,
    "slice": slice_,
}
