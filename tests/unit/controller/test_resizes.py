"""Resizes of running pods on the fake API server: the requests, the records, and the kubelet's reports."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.watch_state import WatchState
from pstraining.core.usage import RoleUsage
from pstraining.kube.errors import Refused
from pstraining.kube.port import Object
from pstraining.resources.installation import Installation
from tests.support.builders import job, pod
from tests.support.fakekube import FakeKube
from tests.support.reconcilers import reconciler_at_now

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")
SERVER = ("Pod", "default", "digits-ps-0")


def of_size(memory: str) -> Object:
    return {"ps": {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": memory}}}}


class Bench:
    """A running job, of which only the server's pod is tested."""

    def __init__(self) -> None:
        self.kube, self.state = FakeKube(), WatchState(installation=Installation(resizes_pods=True))
        self.reconciler = reconciler_at_now(self.kube, self.state)

    async def run(self) -> list[tuple[str, str, str]]:
        """Deliver changes and run passes until none follows; return the writes."""
        self.kube.deliver(self.state.cache)
        for _ in range(20):
            if await self.reconciler.reconcile(KEY) != 0.0:
                return self.kube.writes()
        raise AssertionError("does not settle")

    @classmethod
    async def started(cls) -> "Bench":
        """Create the job, and the server's pod as its StatefulSet creates it."""
        self = cls()
        self.kube.put(job(spec=of_size("2Gi")))
        await self.run()
        stored = self.kube.objects["PSTrainingJob", *KEY]
        template = self.kube.objects["StatefulSet", "default", "digits-ps"]["spec"]["template"]
        server = pod(names.PS, job_uid=stored["metadata"]["uid"])
        server["metadata"]["annotations"] = dict(template["metadata"]["annotations"])
        container = template["spec"]["containers"][0]
        server["spec"]["containers"] = [{"name": "tensorflow", "resources": container["resources"]}]
        self.kube.put(server, **server["status"])
        await self.run()
        return self

    def edit(self, memory: str) -> None:
        stored = self.kube.objects["PSTrainingJob", *KEY]
        self.kube.put({**stored, "spec": {**stored["spec"], "ps": {**stored["spec"]["ps"], **of_size(memory)["ps"]}}})

    def kubelet(self, generation: int, **condition: Any) -> None:
        """Report on a generation of the pod, as the kubelet does."""
        server = self.kube.objects[SERVER]
        ready = [c for c in server["status"]["conditions"] if c["type"] == "Ready"]
        pending = {"type": "PodResizePending", "status": "True", "observedGeneration": generation, **condition}
        reported = {"conditions": [*ready, *([pending] if condition else [])], "observedGeneration": generation}
        self.kube.put(server, **server["status"] | reported)

    def condition(self) -> tuple[str, str]:
        conditions = self.kube.objects["PSTrainingJob", *KEY]["status"]["conditions"]
        found: Object = next((c for c in conditions if c["type"] == "Resizing"), {})
        return found.get("status", ""), found.get("reason", "")


async def test_a_pod_is_resized_and_the_pass_waits_for_the_kubelet() -> None:
    bench = await Bench.started()
    bench.kubelet(1)
    await bench.run()
    bench.edit("4Gi")
    writes = [w for w in await bench.run() if w[1] in ("Pod", "StatefulSet")]
    assert writes == [
        ("replace", "StatefulSet", "digits-ps"),
        ("resize", "Pod", "digits-ps-0"),
        ("replace", "Pod", "digits-ps-0"),
    ]
    server = bench.kube.objects[SERVER]
    assert server["spec"]["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}
    assert '"4Gi"' in server["metadata"]["annotations"][names.ANNOTATION_SIZE]
    bench.kube.deliver(bench.state.cache)
    await bench.run()
    assert bench.condition() == ("True", "ResizeInProgress"), "the kubelet has not seen this generation"
    bench.kubelet(2)
    await bench.run()
    assert bench.condition() == ("False", "Resized")
    assert await bench.run() == []


async def test_a_report_on_an_earlier_size_is_not_acted_upon() -> None:
    bench = await Bench.started()
    bench.kubelet(1)
    bench.edit("4Gi")
    await bench.run()
    bench.kubelet(1, reason="Infeasible", message="of the size before")
    await bench.run()
    assert bench.condition() == ("True", "ResizeInProgress")
    bench.kubelet(2, reason="Infeasible", message="Node didn't have enough capacity: memory")
    await bench.run()
    assert bench.condition() == ("False", "ResizeInfeasible")
    assert SERVER in bench.kube.objects


async def test_a_rejected_resize_is_sent_once() -> None:
    bench = await Bench.started()
    refused = Refused("exceeded quota", status=403, reason="Forbidden")
    bench.kube.failures = lambda verb, kind, namespace, name: refused if verb == "resize" else None
    bench.edit("4Gi")
    writes = await bench.run()
    assert [w for w in writes if w[0] == "resize"] == [("resize", "Pod", "digits-ps-0")]
    assert bench.condition() == ("False", "ResizeRefused")
    assert not [w for w in await bench.run() if w[1] == "Pod"]
    assert "ResizeRefused" in [e["reason"] for e in bench.kube.events]


async def test_memory_that_grows_takes_the_same_way_and_then_nothing_is_written() -> None:
    bench = await Bench.started()
    bench.kubelet(1)
    stored = bench.kube.objects["PSTrainingJob", *KEY]
    policy = {"role": "ps", "maxAllowed": {"memory": "8Gi"}}
    spec = {**stored["spec"], "autoscaling": {"mode": "Grow", "rolePolicies": [policy]}}
    bench.kube.put({**stored, "spec": spec})
    await bench.run()
    bench.state.usage = lambda key, uid: {"ps": RoleUsage("digits-ps-0", memory=1900 << 20, peak=1900 << 20, growth=0)}
    writes = [w for w in await bench.run() if w[1] in ("Pod", "StatefulSet")]
    assert writes == [
        ("replace", "StatefulSet", "digits-ps"),
        ("resize", "Pod", "digits-ps-0"),
        ("replace", "Pod", "digits-ps-0"),
    ]
    container = bench.kube.objects[SERVER]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"memory": "3Gi"}, "requests": {"memory": "1536Mi"}}
    assert bench.kube.objects["PSTrainingJob", *KEY]["spec"] == spec, "the spec stays the user's"
    assert [e["reason"] for e in bench.kube.events if "Memory" in e["reason"]] == ["MemoryGrown"]
    bench.kubelet(2)
    await bench.run()
    assert await bench.run() == []
    assert await bench.run() == []
