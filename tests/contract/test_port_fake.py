"""The behavior that the operator needs of an API server, as one suite: here against the fake, in tests/controlplane for
real.
"""

import uuid
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Event, Kind
from pstraining.kube.errors import ApiError, Conflict, NotFound, Refused
from pstraining.kube.events import build_event
from tests.support.builders import NOW
from tests.support.fakekube import UNKNOWN_FIELD, FakeKube

TEMPLATE = {
    "spec": {"containers": [{"name": "tensorflow", "image": "img:1", "command": ["python", "-m", "train"]}]},
}


def config_map(data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits", **metadata}, "data": data}


def service(selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "digits-ps-0"},
        "spec": {"selector": selector, "ports": [{"name": "tf", "port": 2222}]},
    }


def deployment(*env: str) -> dict[str, Any]:
    labels = {"app": "digits"}
    container = {"name": "tensorflow", "image": "img:1", "env": [{"name": n, "value": "1"} for n in env]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "digits-worker-0"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def job(name: str = "digits") -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"ps": {"replicas": 1}, "worker": {"replicas": 1, "template": TEMPLATE}},
    }


def claim(owner: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "digits-checkpoint", "labels": {"a": "1"}, "ownerReferences": [owner]},
        "spec": {
            "storageClassName": "",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }


def owner(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "name": found["metadata"]["name"],
        "uid": found["metadata"]["uid"],
    }


def released(found: dict[str, Any], owners: list[dict[str, Any]]) -> dict[str, Any]:
    version = found["metadata"]["resourceVersion"]
    return {"/metadata/resourceVersion": version, "/metadata/ownerReferences": owners}


def status_body(stored: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "namespace", "uid", "resourceVersion")
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {k: stored["metadata"][k] for k in kept},
        "status": status,
    }


def with_uid(body: dict[str, Any], uid: str) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "uid": uid}}


class PortContract:
    """Subclasses have the fixtures `port` and `namespace`."""

    async def let_go(self, port: Any, namespace: str) -> None:
        """Remove the finalizers of the ConfigMap `digits`, which would keep its namespace from being deleted."""

    async def test_a_created_object_can_be_read(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1"}))
        found = await port.get(Kind.CONFIG_MAP, namespace, "digits")
        assert made["kind"] == found["kind"] == "ConfigMap"
        assert made["metadata"]["uid"] == found["metadata"]["uid"]
        assert int(found["metadata"]["resourceVersion"]) > 0
        assert found["data"] == {"a": "1"}

    async def test_a_name_can_be_created_only_once(self, port: Any, namespace: str) -> None:
        await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1"}))
        with pytest.raises(Conflict) as caught:
            await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "2"}))
        assert caught.value.already_exists
        assert (await port.get(Kind.CONFIG_MAP, namespace, "digits"))["data"] == {"a": "1"}

    async def test_a_creation_is_strict_and_names_the_field(self, port: Any, namespace: str) -> None:
        body = deployment("A")
        body["spec"]["template"]["spec"][UNKNOWN_FIELD] = 1
        with pytest.raises(Refused) as caught:
            await port.create(Kind.DEPLOYMENT, namespace, body)
        assert caught.value.invalid
        assert f"spec.template.spec.{UNKNOWN_FIELD}" in caught.value.message

    async def test_an_absent_object_is_not_found(self, port: Any, namespace: str) -> None:
        with pytest.raises(NotFound):
            await port.get(Kind.STATEFUL_SET, namespace, "nothing")

    async def test_objects_are_found_by_their_controller(self, port: Any, namespace: str) -> None:
        uid = (await port.create(Kind.CONFIG_MAP, namespace, config_map({})))["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "digits", "uid": uid}
        for name, is_controller in (("owned", False), ("controlled", True)):
            body = config_map({"a": "1"})
            body["metadata"] |= {"name": name, "ownerReferences": [{**owner, "controller": is_controller}]}
            await port.create(Kind.CONFIG_MAP, namespace, body)
        found = await port.owned(Kind.CONFIG_MAP, namespace, uid)
        assert [(one["metadata"]["name"], "data" in one) for one in found] == [("controlled", False)]

    async def test_an_apply_never_creates(self, port: Any, namespace: str) -> None:
        with pytest.raises((Conflict, NotFound)):
            await port.apply(Kind.CONFIG_MAP, namespace, "digits", with_uid(config_map({"a": "1"}), str(uuid.uuid4())))
        with pytest.raises(NotFound):
            await port.get(Kind.CONFIG_MAP, namespace, "digits")

    async def test_an_apply_never_adopts(self, port: Any, namespace: str) -> None:
        await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1"}))
        with pytest.raises(Conflict):
            await port.apply(Kind.CONFIG_MAP, namespace, "digits", with_uid(config_map({"a": "2"}), str(uuid.uuid4())))
        assert (await port.get(Kind.CONFIG_MAP, namespace, "digits"))["data"] == {"a": "1"}

    async def test_an_apply_keeps_created_fields_that_it_does_not_set(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1", "b": "1"}))
        body = with_uid(config_map({"a": "2"}), made["metadata"]["uid"])
        written = await port.apply(Kind.CONFIG_MAP, namespace, "digits", body)
        assert written["data"] == {"a": "2", "b": "1"}
        assert int(written["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])

    async def test_an_apply_removes_fields_of_the_previous_apply(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.DEPLOYMENT, namespace, deployment("A"))
        uid = made["metadata"]["uid"]
        await port.apply(Kind.DEPLOYMENT, namespace, "digits-worker-0", with_uid(deployment("A", "C"), uid))
        written = await port.apply(Kind.DEPLOYMENT, namespace, "digits-worker-0", with_uid(deployment("A"), uid))
        container = written["spec"]["template"]["spec"]["containers"][0]
        assert [e["name"] for e in container["env"]] == ["A"]
        assert written["metadata"]["generation"] == 3

    async def test_an_identical_apply_changes_nothing(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.SERVICE, namespace, service({"a": "1"}))
        body = with_uid(service({"a": "2"}), made["metadata"]["uid"])
        first = await port.apply(Kind.SERVICE, namespace, "digits-ps-0", body)
        second = await port.apply(Kind.SERVICE, namespace, "digits-ps-0", body)
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]

    async def test_an_apply_replaces_a_selector(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.SERVICE, namespace, service({"pod": "ps-0", "role": "ps"}))
        body = with_uid(service({"pod": "standby-0"}), made["metadata"]["uid"])
        written = await port.apply(Kind.SERVICE, namespace, "digits-ps-0", body)
        assert written["spec"]["selector"] == {"pod": "standby-0"}

    async def test_an_apply_may_require_a_version(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.SERVICE, namespace, service({"pod": "ps-0"}))
        body = with_uid(service({"pod": "standby-0"}), made["metadata"]["uid"])
        body["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
        await port.apply(Kind.SERVICE, namespace, "digits-ps-0", body)
        late = {**body, "spec": service({"pod": "standby-2-0"})["spec"]}
        with pytest.raises(Conflict):
            await port.apply(Kind.SERVICE, namespace, "digits-ps-0", late)
        assert (await port.get(Kind.SERVICE, namespace, "digits-ps-0"))["spec"]["selector"] == {"pod": "standby-0"}

    async def test_a_part_is_replaced_whole(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.DEPLOYMENT, namespace, deployment("A", "B"))
        template = deployment("C")["spec"]["template"]
        written = await port.replace(
            Kind.DEPLOYMENT, namespace, "digits-worker-0", made["metadata"]["uid"], {"/spec/template": template}
        )
        container = written["spec"]["template"]["spec"]["containers"][0]
        assert [e["name"] for e in container["env"]] == ["C"]
        assert written["spec"]["replicas"] == 0
        assert written["metadata"]["generation"] == 2

    async def test_a_member_is_removed(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1", "b": "2"}))
        parts = {"/metadata/resourceVersion": made["metadata"]["resourceVersion"], "/data/a": None, "/data/c": "3"}
        written = await port.replace(Kind.CONFIG_MAP, namespace, "digits", made["metadata"]["uid"], parts)
        assert written["data"] == {"b": "2", "c": "3"}

    async def test_a_replacement_requires_the_uid(self, port: Any, namespace: str) -> None:
        await port.create(Kind.DEPLOYMENT, namespace, deployment("A"))
        parts = {"/spec/template": deployment("C")["spec"]["template"]}
        with pytest.raises(Conflict):
            await port.replace(Kind.DEPLOYMENT, namespace, "digits-worker-0", str(uuid.uuid4()), parts)
        found = await port.get(Kind.DEPLOYMENT, namespace, "digits-worker-0")
        assert [e["name"] for e in found["spec"]["template"]["spec"]["containers"][0]["env"]] == ["A"]
        with pytest.raises(NotFound):
            await port.replace(Kind.DEPLOYMENT, namespace, "nothing", str(uuid.uuid4()), parts)

    async def test_a_pod_is_resized_where_its_uid_is_the_same(self, port: Any, namespace: str) -> None:
        """A pod is resized if its uid is the expected one. Requests and limits that are not named stay, and an
        annotation can be set as well.
        """
        small = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "32Mi"}}
        spec = {"containers": [{"name": "tensorflow", "image": "img:1", "resources": small}]}
        metadata = {"name": "digits-ps-0", "annotations": {"a": "1"}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = await port.create(Kind.POD, namespace, body)
        uid, large = made["metadata"]["uid"], {"limits": {"memory": "64Mi"}}
        with pytest.raises(Conflict):
            await port.resize(namespace, "digits-ps-0", str(uuid.uuid4()), "tensorflow", large)
        with pytest.raises(NotFound):
            await port.resize(namespace, "nothing", uid, "tensorflow", large)
        written = await port.resize(namespace, "digits-ps-0", uid, "tensorflow", large)
        found = written["spec"]["containers"][0]["resources"]
        assert found == {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
        mark = {"/metadata/annotations/pstraining.dev~1size": "{}"}
        marked = await port.replace(Kind.POD, namespace, "digits-ps-0", uid, mark)
        assert marked["metadata"]["annotations"] == {"a": "1", "pstraining.dev/size": "{}"}

    async def test_a_claim_gets_an_owner_and_loses_it(self, port: Any, namespace: str) -> None:
        """A claim gets an owner at its creation or by an apply, and loses it; another owner stays."""
        first = await port.create(Kind.CONFIG_MAP, namespace, config_map({}))
        second = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        theirs = owner(first)
        made = await port.create(Kind.CLAIM, namespace, claim(theirs))
        uid, ours = made["metadata"]["uid"], {**owner(second), "controller": True}
        metadata = {"name": "digits-checkpoint", "namespace": namespace, "uid": uid, "ownerReferences": [ours]}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
        for _ in range(2):
            owned = await port.apply(Kind.CLAIM, namespace, "digits-checkpoint", body)
            assert {o["uid"] for o in owned["metadata"]["ownerReferences"]} == {theirs["uid"], ours["uid"]}
            assert owned["spec"]["accessModes"] == ["ReadWriteOnce"]
            free = await port.replace(Kind.CLAIM, namespace, "digits-checkpoint", uid, released(owned, [theirs]))
            assert [o["uid"] for o in free["metadata"]["ownerReferences"]] == [theirs["uid"]]
        bare = await port.replace(Kind.CLAIM, namespace, "digits-checkpoint", uid, released(free, []))
        assert not bare["metadata"].get("ownerReferences")
        owned = await port.apply(Kind.CLAIM, namespace, "digits-checkpoint", body)
        assert [o["uid"] for o in owned["metadata"]["ownerReferences"]] == [ours["uid"]]

    async def test_an_object_without_an_owner_gets_one(self, port: Any, namespace: str) -> None:
        theirs = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({}))
        assert not made["metadata"].get("ownerReferences")
        ours = {**owner(theirs), "controller": True}
        parts = released(made, [ours])
        owned = await port.replace(Kind.CONFIG_MAP, namespace, made["metadata"]["name"], made["metadata"]["uid"], parts)
        assert [o["uid"] for o in owned["metadata"]["ownerReferences"]] == [ours["uid"]]

    async def test_a_replacement_may_require_a_version(self, port: Any, namespace: str) -> None:
        theirs = owner(await port.create(Kind.CONFIG_MAP, namespace, config_map({})))
        made = await port.create(Kind.CLAIM, namespace, claim(theirs))
        uid = made["metadata"]["uid"]
        parts = {**released(made, [theirs]), "/metadata/labels": {"a": "2"}}
        await port.replace(Kind.CLAIM, namespace, "digits-checkpoint", uid, parts)
        with pytest.raises(Conflict):
            await port.replace(Kind.CLAIM, namespace, "digits-checkpoint", uid, released(made, []))
        found = await port.get(Kind.CLAIM, namespace, "digits-checkpoint")
        assert [o["uid"] for o in found["metadata"]["ownerReferences"]] == [theirs["uid"]]

    async def test_a_delete_requires_the_uid(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({"a": "1"}))
        with pytest.raises(Conflict) as caught:
            await port.delete(Kind.CONFIG_MAP, namespace, "digits", str(uuid.uuid4()))
        assert caught.value.precondition_failed
        assert await port.delete(Kind.CONFIG_MAP, namespace, "digits", made["metadata"]["uid"]) is None
        with pytest.raises(NotFound):
            await port.delete(Kind.CONFIG_MAP, namespace, "digits", made["metadata"]["uid"])

    async def test_a_deleted_object_with_a_finalizer_is_returned(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.CONFIG_MAP, namespace, config_map({}, finalizers=["example.com/hold"]))
        uid = made["metadata"]["uid"]
        rest = await port.delete(Kind.CONFIG_MAP, namespace, "digits", uid)
        assert rest is not None
        assert rest["metadata"]["deletionTimestamp"]
        await self.let_go(port, namespace)

    async def test_a_pod_on_an_unreachable_node_is_deleted_at_once(self, port: Any, namespace: str) -> None:
        spec = {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "digits", "namespace": namespace}, "spec": spec}
        uid = (await port.create(Kind.POD, namespace, body))["metadata"]["uid"]
        rest = await port.delete(Kind.POD, namespace, "digits", uid)
        assert rest is not None
        assert rest["metadata"]["deletionTimestamp"]
        assert await port.delete(Kind.POD, namespace, "digits", uid, 0) is None
        with pytest.raises(NotFound):
            await port.delete(Kind.POD, namespace, "digits", uid, 0)

    async def test_a_deleted_service_is_not_found(self, port: Any, namespace: str) -> None:
        made = await port.create(Kind.SERVICE, namespace, service({"a": "1"}))
        assert await port.delete(Kind.SERVICE, namespace, "digits-ps-0", made["metadata"]["uid"]) is None

    async def test_a_status_is_stored_whole(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        first = await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Pending", "term": 1}))
        assert first["status"]["phase"] == "Pending"
        assert first["spec"]["ps"]["replicas"] == 1
        assert first["metadata"]["generation"] == stored["metadata"]["generation"]
        second = await port.patch_status(namespace, "digits", status_body(first, {"phase": "Running"}))
        assert second["status"].get("term") in (None, 0)
        assert second["status"]["phase"] == "Running"

    async def test_a_status_requires_the_version_and_uid_of_its_job(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Pending"}))
        with pytest.raises(Conflict):
            await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Running"}))

    async def test_a_status_does_not_reach_the_next_job_of_that_name(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        await port.delete(Kind.PS_TRAINING_JOB, namespace, "digits", stored["metadata"]["uid"])
        await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        with pytest.raises(Conflict):
            await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Running"}))

    async def test_the_same_status_changes_nothing(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        first = await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Pending"}))
        second = await port.patch_status(namespace, "digits", status_body(first, {"phase": "Pending"}))
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]

    async def test_progress_and_other_status_fields_have_separate_writers(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        first = await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Running"}))
        version = first["metadata"]["resourceVersion"]
        second = await port.patch_progress(namespace, "digits", version, {"step": 3, "loss": "0.5"})
        assert (second["status"]["phase"], second["status"]["training"]) == ("Running", {"step": 3, "loss": "0.5"})
        with pytest.raises(Conflict):
            await port.patch_progress(namespace, "digits", version, {"step": 4})
        third = await port.patch_status(namespace, "digits", status_body(second, {"phase": "Restarting"}))
        assert third["status"]["training"] == {"step": 3, "loss": "0.5"}
        version = third["metadata"]["resourceVersion"]
        fourth = await port.patch_progress(namespace, "digits", version, {"step": 5, "loss": None})
        assert fourth["status"]["training"] == {"step": 5}

    async def test_the_status_of_an_absent_job(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        await port.delete(Kind.PS_TRAINING_JOB, namespace, "digits", stored["metadata"]["uid"])
        with pytest.raises(NotFound):
            await port.patch_status(namespace, "digits", status_body(stored, {"phase": "Running"}))

    async def test_an_event_is_accepted(self, port: Any, namespace: str) -> None:
        stored = await port.create(Kind.PS_TRAINING_JOB, namespace, job())
        event = Event("Warning", "PSLost", "x" * 2000)
        body = build_event(stored, event, instance="operator-0", now=NOW, suffix="1")
        await port.create_event(namespace, body)

    async def test_a_lease_is_written_by_one_at_a_time(self, port: Any, namespace: str) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "operator", "namespace": namespace},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T12:00:00.000000Z"},
        }
        with pytest.raises(NotFound):
            await port.get_lease(namespace, "operator")
        made = await port.create_lease(namespace, body)
        with pytest.raises(ApiError):
            await port.create_lease(namespace, body)
        mine = {**made, "spec": {**made["spec"], "holderIdentity": "b"}}
        assert (await port.replace_lease(namespace, "operator", mine))["spec"]["holderIdentity"] == "b"
        with pytest.raises(Conflict):
            await port.replace_lease(namespace, "operator", mine)


@pytest.mark.asyncio
class TestFakePort(PortContract):
    @pytest.fixture
    def port(self) -> FakeKube:
        return FakeKube()

    @pytest.fixture
    def namespace(self) -> str:
        return "default"
