"""A simulated job whose pods are measured and may grow; a test sets their usage and the kernel's OOM kills."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from pstraining.api import names
from pstraining.core.usage import RoleUsage
from pstraining.resources.installation import Installation, ProgressEndpoint
from tests.support.builders import deep_merge, stamp
from tests.support.copying import made_once
from tests.support.simulation import World, running

MEASURES = Installation(progress=ProgressEndpoint("https://operator", "authority"), resizes_pods=True)
MIB = 2**20
MAXIMUM = 4096


def sized(mebibytes: int = 1024, **requests: str) -> dict[str, Any]:
    return {"limits": {"memory": f"{mebibytes}Mi"}, "requests": requests or {"memory": f"{mebibytes}Mi"}}


@made_once
def growing(mode: str = "Grow", **spec: Any) -> World:
    """Return a running job whose parameter servers and workers may grow to 4 Gi."""
    policies = [{"role": role, "maxAllowed": {"memory": f"{MAXIMUM}Mi"}} for role in ("ps", "worker", "chief")]
    sizes: dict[str, Any] = {role: {"resources": sized()} for role in ("ps", "worker", "chief")}
    sizes["ps"]["replicas"] = 2
    world = running(**deep_merge({**sizes, "autoscaling": {"mode": mode, "rolePolicies": policies}}, spec))
    world.installation = MEASURES
    world.settle()
    return world


def use(world: World, role: str, mebibytes: float, **more: Any) -> None:
    """Set the memory usage of a role's pods, which neither grows nor shrinks."""
    used = RoleUsage(pod=f"digits-{role}-0", memory=int(mebibytes * MIB), peak=int(mebibytes * MIB), growth=0)
    world.usage = {**world.usage, role: replace(used, **more)}


def grown(world: World, role: str) -> dict[str, Any]:
    assert world.job is not None
    return next((s for s in world.job["status"].get("autoscaling") or () if s["role"] == role), {})


def reasons(world: World) -> list[str]:
    words = ("MemoryGrown", "MemoryDoubled", "MaximumReached", "GrowthRefused")
    return [e.reason for e in world.reported if e.reason in words]


def report(world: World) -> tuple[str, str]:
    found = world.condition("Autoscaling")
    return found["status"], found["reason"]


def kill(world: World, role: str, index: int = 0) -> None:
    """Let the kernel kill a task that is out of memory, so that its container restarts."""
    of_task = {names.LABEL_ROLE: role, names.LABEL_INDEX: str(index)}
    pod = next(
        p for p in world.pods.values() if of_task.items() <= {names.LABEL_INDEX: "0", **p["metadata"]["labels"]}.items()
    )
    end = {"exitCode": 137, "reason": "OOMKilled", "message": "", "finishedAt": stamp(world.now)}
    state = pod["status"]["containerStatuses"][0]
    state |= {"restartCount": state["restartCount"] + 1, "lastState": {"terminated": end}}


def later(world: World, **time: float) -> None:
    world.now += timedelta(**time)
