"""The operator's process against a real API server: its requests, its passes, its start, its end and its failures.

Simple decisions replace the real ones (tests/support/fakekube_decisions.py): one ConfigMap and one Deployment per job.
"""

import asyncio
import signal

import pytest

from pstraining.api import names
from pstraining.controller.registration import CHILDREN
from pstraining.core.actions import Kind
from pstraining.kube.client import KubeClient
from pstraining.kube.errors import Conflict, NotFound
from tests.contract.test_port_fake import config_map, job
from tests.controlplane.conftest import REAL, OperatorProcess, Operators, eventually
from tests.support.api_proxy import ApiProxy
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.asyncio

KINDS = (Kind.PS_TRAINING_JOB, Kind.DEPLOYMENT, Kind.CONFIG_MAP)


async def submit(client: KubeClient, namespace: str, *jobs: str) -> None:
    for name in jobs:
        await client.create(Kind.PS_TRAINING_JOB, namespace, job(name))


async def phase(client: KubeClient, namespace: str, name: str) -> str:
    found = await client.get(Kind.PS_TRAINING_JOB, namespace, name)
    return str(found.get("status", {}).get("phase"))


async def running(client: KubeClient, namespace: str, operator: OperatorProcess, *jobs: str) -> None:
    async def all_run() -> bool:
        return all([await phase(client, namespace, name) == "Running" for name in jobs])

    await eventually(all_run, operator)


async def quiet(operator: OperatorProcess, seconds: float = 1.0) -> float:
    """Wait for a time without a pass; return the number of passes so far."""
    while True:
        before = await operator.passes()
        await asyncio.sleep(seconds)
        if await operator.passes() == before:
            return before


async def versions(client: KubeClient, namespace: str, *jobs: str) -> dict[str, str]:
    found = {}
    for name in jobs:
        for kind, child in zip(KINDS, (name, f"{name}-worker-0", name), strict=True):
            got = await client.get(kind, namespace, child)
            found[f"{kind} {child}"] = got["metadata"]["resourceVersion"]
    return found


async def test_a_job_gets_its_children_a_status_and_events(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await operator.ready()
    await submit(client, namespace, "one")
    await running(client, namespace, operator, "one")
    await quiet(operator)
    wrote = [(s.method, s.path.split(f"/{namespace}/")[-1]) for s in proxy.writes()]
    assert wrote[:3] == [
        ("POST", "deployments"),
        ("POST", "configmaps"),
        ("PATCH", f"{names.PLURAL}/one/status"),
    ]
    # A second status once the children are seen, an event for each phase, and no other write, also by kopf.
    assert sorted(wrote[3:]) == [("PATCH", f"{names.PLURAL}/one/status"), ("POST", "events"), ("POST", "events")]
    stored = await client.get(Kind.PS_TRAINING_JOB, namespace, "one")
    assert "finalizers" not in stored["metadata"]
    assert "annotations" not in stored["metadata"]
    found = await client._request("GET", f"/api/v1/namespaces/{namespace}/events")
    reported = [e for e in found["items"] if e["involvedObject"]["kind"] == names.KIND]
    assert {(e["reason"], e["message"]) for e in reported} == {
        ("Pending", "The job is Pending."),
        ("Running", "The job is Running."),
    }
    assert {e["involvedObject"]["uid"] for e in reported} == {stored["metadata"]["uid"]}


async def test_a_restart_makes_one_pass_per_job_and_no_write(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    jobs = [f"job-{i}" for i in range(10)]
    first = operators.start()
    await submit(client, namespace, *jobs)
    await running(client, namespace, first, *jobs)
    await quiet(first)
    assert await first.stop() == 0
    before = await versions(client, namespace, *jobs)
    proxy.seen.clear()
    # The last kind is listed long after the first; no pass may use an incomplete cache.
    proxy.delay = lambda path, query: 2.0 if path.endswith("/deployments") and "watch" not in query else 0.0
    second = operators.start()
    await eventually(lambda: _made(second, len(jobs)), second)
    await quiet(second)
    assert sorted(m for m in second.messages() if m.startswith("saw")) == [f"saw {j} with 2 children" for j in jobs]
    assert await second.passes() == len(jobs)
    assert proxy.writes() == []
    assert await versions(client, namespace, *jobs) == before


async def test_it_only_lists_what_belongs_to_jobs(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await operator.ready()
    lists = {s.path.rsplit("/", 1)[-1]: s.query for s in proxy.seen if s.method == "GET" and f"/{namespace}/" in s.path}
    lists.pop("pstraining-operator")
    assert lists.pop(names.PLURAL).get("labelSelector") is None
    assert lists.pop("events").get("fieldSelector") == "reason=FailedCreate"
    assert set(lists) == {plural for _, _, plural in CHILDREN}
    assert {q.get("labelSelector") for q in lists.values()} == {names.LABEL_JOB_UID}


@in_all("tests/controlplane/test_operator_process.py::test_a_deletion_during_an_outage_is_noticed")  # by its watch
async def test_a_deleted_child_is_recreated(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await submit(client, namespace, "one")
    await running(client, namespace, operator, "one")
    await quiet(operator)
    old = await client.get(Kind.CONFIG_MAP, namespace, "one")
    await client.delete(Kind.CONFIG_MAP, namespace, "one", old["metadata"]["uid"])

    async def back() -> bool:
        try:
            found = await client.get(Kind.CONFIG_MAP, namespace, "one")
        except NotFound:
            return False
        return bool(found["metadata"]["uid"] != old["metadata"]["uid"])

    await eventually(back, operator)


async def test_an_existing_foreign_object_is_kept_and_its_name_retried(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    theirs = config_map({"theirs": "1"})
    theirs["metadata"]["name"] = "one"
    await client.create(Kind.CONFIG_MAP, namespace, theirs)
    operator = operators.start()
    await submit(client, namespace, "one")
    await eventually(lambda: _said(operator, "NameTaken: create ConfigMap one"), operator)
    await quiet(operator)
    assert (await client.get(Kind.CONFIG_MAP, namespace, "one"))["data"] == {"theirs": "1"}
    assert await phase(client, namespace, "one") == "Pending"
    # A status and three attempts in the first second would be a loop; one or two passes see the conflict.
    assert len([s for s in proxy.writes() if s.path.endswith("/configmaps")]) <= 3


async def test_a_deletion_during_an_outage_is_noticed(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await submit(client, namespace, "kept", "gone")
    await running(client, namespace, operator, "kept", "gone")
    await quiet(operator)
    proxy.cut_watches()
    gone = await client.get(Kind.PS_TRAINING_JOB, namespace, "gone")
    await client.delete(Kind.PS_TRAINING_JOB, namespace, "gone", gone["metadata"]["uid"])
    child = await client.get(Kind.CONFIG_MAP, namespace, "kept")
    await client.delete(Kind.CONFIG_MAP, namespace, "kept", child["metadata"]["uid"])
    await eventually(lambda: _absent(client, namespace, Kind.DEPLOYMENT, "gone-worker-0"))
    proxy.seen.clear()
    held, proxy.held = proxy.held, None
    assert held is not None
    held.set()
    await eventually(lambda: _there(client, namespace, Kind.CONFIG_MAP, "kept"), operator)
    await quiet(operator)
    # A child's watch may resume before the job's; then a child is created in vain and collected, but never twice.
    assert len([s for s in proxy.writes() if s.path.endswith("/deployments")]) <= 1
    assert await operator.metric("pstraining_jobs") == 1
    await eventually(lambda: _absent(client, namespace, Kind.DEPLOYMENT, "gone-worker-0"), operator)
    await eventually(lambda: _absent(client, namespace, Kind.CONFIG_MAP, "gone"), operator)


async def test_sigterm_ends_the_operator_cleanly_and_a_successor_starts_at_once(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    first = operators.start("operator-a", PSTRAINING_LEASE_DURATION_SECONDS="600")
    await first.ready()
    second = operators.start("operator-b", PSTRAINING_LEASE_DURATION_SECONDS="600")
    await eventually(lambda: _said(second, "Waiting for Lease"), second)
    assert await second.answers("livez")
    assert not await second.answers("readyz")
    assert await first.stop() == 0
    lease = await client.get_lease(namespace, "pstraining-operator")
    assert lease["spec"]["holderIdentity"] in ("", "operator-b")
    await second.ready()
    await submit(client, namespace, "one")
    await running(client, namespace, second, "one")


async def test_a_killed_operator_resumes_at_once_in_its_pod(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    first = operators.start("operator-a", PSTRAINING_LEASE_DURATION_SECONDS="600")
    await first.ready()
    await submit(client, namespace, "one")
    await running(client, namespace, first, "one")
    first.process.send_signal(signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    await submit(client, namespace, "two")
    second = operators.start("operator-a", PSTRAINING_LEASE_DURATION_SECONDS="600")
    await second.ready()
    await running(client, namespace, second, "two")


async def test_a_lost_lease_ends_the_operator(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await operator.ready()

    async def taken() -> bool:
        lease = await client.get_lease(namespace, "pstraining-operator")
        lease["spec"]["holderIdentity"] = "somebody-else"
        try:
            await client.replace_lease(namespace, "pstraining-operator", lease)
        except Conflict:  # the operator has renewed it meanwhile
            return False
        return True

    await eventually(taken, operator)
    assert await operator.ended() == 1
    assert any("is held by somebody-else" in m for m in operator.messages())
    assert (await client.get_lease(namespace, "pstraining-operator"))["spec"]["holderIdentity"] == "somebody-else"


async def test_the_operator_survives_an_outage_of_the_api_server(
    client: KubeClient, namespace: str, operators: Operators, proxy: ApiProxy
) -> None:
    operator = operators.start()
    await submit(client, namespace, "one")
    await running(client, namespace, operator, "one")
    proxy.down = True
    for stream in list(proxy._streams):
        stream.cancel()
    await submit(client, namespace, "two")
    await eventually(lambda: _not(operator, "readyz"), operator)
    assert await operator.answers("livez")
    proxy.down = False
    await running(client, namespace, operator, "two")
    await operator.ready()


@in_all("tests/e2e/test_bad_input.py::test_an_invalid_setting_of_the_operator_is_named")  # by a process of its own
async def test_an_invalid_setting_ends_the_operator_with_one_line(operators: Operators) -> None:
    operator = operators.start(module=REAL, PSTRAINING_WORKERS="many")
    assert await operator.ended() == 2
    assert operator.log.read_text() == "pstraining-operator: PSTRAINING_WORKERS is not a whole number: 'many'\n"


async def _made(operator: OperatorProcess, passes: int) -> bool:
    return await operator.passes() >= passes


async def _said(operator: OperatorProcess, words: str) -> bool:
    return any(words in message for message in operator.messages())


async def _not(operator: OperatorProcess, path: str) -> bool:
    return not await operator.answers(path)


async def _there(client: KubeClient, namespace: str, kind: Kind, name: str) -> bool:
    try:
        await client.get(kind, namespace, name)
    except NotFound:
        return False
    return True


async def _absent(client: KubeClient, namespace: str, kind: Kind, name: str) -> bool:
    return not await _there(client, namespace, kind, name)
