"""The cache: the newest version of every object, from watches and own writes."""

import copy
import random
from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller import informer_cache
from pstraining.controller.informer_cache import TOMBSTONES_MAX, InformerCache
from pstraining.controller.transform import transform
from pstraining.core.actions import Kind
from pstraining.core.observe import observe
from tests.support import builders

KEY = ("default", "digits")
CLUSTER_MAP = names.cluster_config_map("digits")


def child(
    name: str = CLUSTER_MAP,
    version: int = 1,
    *,
    uid: str = "u1",
    kind: str = "ConfigMap",
    **data: str,
) -> dict[str, Any]:
    labels = {names.LABEL_JOB: "digits", names.LABEL_JOB_UID: builders.UID}
    metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}


def data(cache: InformerCache) -> list[Any]:
    return [c["data"] for c in cache.view(KEY).children]


def test_objects_are_found_by_their_job() -> None:
    cache = InformerCache()
    assert cache.observed(builders.job()) == KEY
    assert cache.observed(child(x="1")) == KEY
    assert cache.observed(builders.pod("ps", 0)) == KEY
    view = cache.view(KEY)
    assert view.job is not None
    assert (len(view.children), len(view.pods), cache.jobs()) == (1, 1, (KEY,))
    assert cache.view(("default", "other")).job is None


def test_only_changes_trigger_a_pass() -> None:
    cache = InformerCache()
    assert cache.observed(child(version=1, x="1")) == KEY
    assert cache.observed(child(version=1, x="1")) is None
    assert cache.observed(child(version=2, x="1")) is None, "nothing but the resourceVersion moved"
    assert cache.observed(child(version=3, x="2")) == KEY


def test_an_own_write_is_visible_at_once_and_its_event_is_ignored() -> None:
    cache = InformerCache()
    cache.wrote(*KEY, child(version=5, x="ours"))
    assert data(cache) == [{"x": "ours"}]
    assert cache.observed(child(version=5, x="ours")) is None


@pytest.mark.parametrize("event_first", [False, True])
def test_the_second_of_an_own_writes_answer_and_event_is_only_compared_by_version(
    event_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []

    def reduced(raw: dict[str, Any]) -> dict[str, Any]:
        versions.append(raw["metadata"]["resourceVersion"])
        return transform(raw)

    monkeypatch.setattr(informer_cache, "transform", reduced)
    cache = InformerCache()
    cache.observed(child(version=4, x="theirs"))
    for version in (5, 6):
        written = child(version=version, x=f"ours-{version}")
        if event_first:
            cache.observed(written)
        cache.wrote(*KEY, written)
        assert cache.observed(written) is None
        assert data(cache) == [{"x": f"ours-{version}"}]
    assert versions == ["4", "5", "6"]
    assert cache.observed(child(version=7, x="theirs")) == KEY


def test_an_older_event_does_not_undo_our_write() -> None:
    cache = InformerCache()
    cache.observed(child(version=1, x="old"))
    cache.wrote(*KEY, child(version=9, x="ours"))
    assert cache.observed(child(version=5, x="theirs")) is None
    assert data(cache) == [{"x": "ours"}]
    assert cache.observed(child(version=10, x="newer")) == KEY


def test_an_older_answer_does_not_undo_the_watch() -> None:
    cache = InformerCache()
    cache.observed(child(version=9, x="newer"))
    cache.wrote(*KEY, child(version=5, x="ours"))
    assert data(cache) == [{"x": "newer"}]


def test_an_own_deletion_is_visible_at_once_and_final() -> None:
    cache = InformerCache()
    cache.observed(child(version=1))
    cache.deleted(Kind.CONFIG_MAP, "default", names.cluster_config_map("digits"), "u1")
    assert data(cache) == []
    assert cache.observed(child(version=2)) is None
    assert cache.vanished(child(version=3)) is None
    assert data(cache) == []


def test_a_late_answer_does_not_restore_a_deleted_object() -> None:
    cache = InformerCache()
    cache.observed(child(version=1))
    assert cache.vanished(child(version=3)) == KEY
    cache.wrote(*KEY, child(version=2))
    assert data(cache) == []


def test_an_object_that_is_selected_again_is_cached_again() -> None:
    """An object that loses its label leaves the watch as a deleted one does, and comes back with a later version."""
    cache = InformerCache()
    cache.observed(child(version=1))
    cache.vanished(child(version=3))
    cache.vanished(child(version=2))
    assert cache.observed(child(version=3)) is None
    assert cache.observed(child(version=4, x="back")) == KEY
    assert data(cache) == [{"x": "back"}]


def test_a_recreated_object_is_a_different_object() -> None:
    cache = InformerCache()
    cache.observed(child(version=1, uid="u1", x="first"))
    assert cache.observed(child(version=5, uid="u2", x="second")) == KEY
    assert cache.vanished(child(version=4, uid="u1")) is None
    assert data(cache) == [{"x": "second"}]
    cache.deleted(Kind.CONFIG_MAP, "default", names.cluster_config_map("digits"), "u1")
    assert data(cache) == [{"x": "second"}]


def test_a_deleted_job_leaves_no_entries() -> None:
    cache = InformerCache()
    cache.observed(builders.job())
    cache.observed(child())
    cache.vanished(child())
    assert cache.vanished(builders.job()) == KEY
    assert (len(cache), cache._entries, cache.jobs()) == (0, {}, ())


def test_children_may_come_before_their_job() -> None:
    cache = InformerCache()
    cache.observed(child())
    assert cache.jobs() == ()
    cache.observed(builders.job())
    assert len(cache.view(KEY).children) == 1


def test_an_object_moves_with_its_label() -> None:
    cache = InformerCache()
    cache.observed(child(version=1))
    moved = child(version=2)
    moved["metadata"]["labels"][names.LABEL_JOB] = "mnist"
    assert cache.observed(moved) == ("default", "mnist")
    assert cache.view(KEY).children == ()


@pytest.mark.parametrize("labels", [None, {}, {names.LABEL_JOB_UID: "x"}, {names.LABEL_JOB: ""}])
def test_an_object_without_a_job_label_belongs_to_no_job(labels: dict[str, str] | None) -> None:
    odd = child()
    odd["metadata"]["labels"] = labels
    cache = InformerCache()
    assert cache.observed(odd) is None
    assert cache.vanished(odd) is None


def test_a_readers_changes_do_not_reach_the_cache() -> None:
    cache = InformerCache()
    cache.observed(builders.job())
    first, second = cache.view(KEY).job, cache.view(KEY).job
    assert first == second == transform(builders.job())
    assert first is not None
    assert second is not None
    first["metadata"]["labels"] = {"changed": "by a reader"}
    assert cache.view(KEY).job == second


def test_the_order_of_fields_is_not_a_change() -> None:
    cache = InformerCache()
    job = builders.job()
    cache.observed(job)
    assert cache.observed(dict(reversed(job.items()))) is None


def test_tombstones_are_bounded() -> None:
    cache = InformerCache()
    for number in range(TOMBSTONES_MAX + 10):
        cache.deleted(Kind.CONFIG_MAP, "default", "x", f"u{number}")
    assert len(cache._tombstones) == TOMBSTONES_MAX


def test_any_order_of_events_and_answers_ends_with_the_newest() -> None:
    history = [child(version=v, x=str(v)) for v in range(1, 8)]
    for seed in range(200):
        luck, cache = random.Random(seed), InformerCache()
        answers = [h for h in history if luck.random() < 0.5]
        watch, ours = list(history), list(answers)
        while watch or ours:
            # Each of the two has an order, and they interleave at random.
            if watch and (not ours or luck.random() < 0.5):
                cache.observed(watch.pop(0))
            else:
                cache.wrote(*KEY, ours.pop(0))
        assert data(cache) == [{"x": "7"}]


def test_trimming_keeps_every_observed_field() -> None:
    full = builders.pod("chief", term=1, state=builders.terminated(3))
    full["spec"] |= {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "activeDeadlineSeconds": 1}
    full["status"]["initContainerStatuses"] = [{"name": "proxy", "state": builders.terminated(143)}]
    full["status"]["containerStatuses"].append({"name": "shipper", "state": {"running": {}}})
    noise = copy.deepcopy(full)
    noise["metadata"] |= {"managedFields": [{"manager": "kubelet"}], "finalizers": ["x"]}
    noise["metadata"].setdefault("annotations", {})["cni.example.com/ip"] = "10.0.0.1"
    noise["metadata"]["labels"]["pod-template-hash"] = "abc"
    noise["spec"] |= {"volumes": [{"name": "token"}], "tolerations": []}
    noise["status"] |= {"podIP": "10.0.0.1", "qosClass": "BestEffort"}
    job = builders.job()
    assert observe(job, [], [transform(noise)]).pods == observe(job, [], [full]).pods
    assert observe(job, [], [full]).pods[0].others_run
    assert len(str(transform(noise))) < len(str(noise))
    assert "managedFields" not in transform(noise)["metadata"]


def test_volatile_fields_are_trimmed() -> None:
    deployment = child(kind="Deployment")
    deployment["status"] = {"observedGeneration": 1, "readyReplicas": 0, "conditions": [{"type": "Progressing"}]}
    ready = copy.deepcopy(deployment)
    ready["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    ready["status"] |= {
        "observedGeneration": 2,
        "readyReplicas": 1,
        "conditions": [{"type": "Available", "status": "True"}],
    }
    failed = copy.deepcopy(deployment)
    failed["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]
    assert transform(deployment) == transform(ready)
    assert transform(failed)["status"]["conditions"][0]["message"] == "exceeded quota"


def test_only_the_cluster_map_of_config_maps_is_kept() -> None:
    ours = child(names.cluster_config_map("digits"), a="x")
    assert transform(ours)["data"] == {"a": "x"}
    assert "data" not in transform(child("flood", a="x" * 1000))
    assert "data" not in transform(ours | {"immutable": True}), "it cannot differ from the created one"
    assert "binaryData" not in transform(ours | {"binaryData": {"b": "eA=="}})


def test_a_flood_of_config_maps_with_a_jobs_labels_is_kept_by_name_only() -> None:
    """A user who may write ConfigMaps can copy the labels of a job that exists, and fill any other field."""
    flood = child("flood", a="x" * 1000)
    flood["metadata"] |= {"annotations": {"a": "x" * 1000}, "finalizers": ["example.com/" + "x" * 1000]}
    flood["metadata"]["labels"] |= {f"{names.GROUP}/{n}": "x" * 60 for n in range(20)}
    assert transform(flood) == transform(child("flood"))


def test_after_a_restore_of_the_store_lower_versions_count() -> None:
    cache = InformerCache()
    job = builders.job()
    job["metadata"]["resourceVersion"] = "900000"
    cache.observed(job)
    cache.vanished(child(version=800000, uid="deleted after the backup"))
    restored = builders.job(workers=7)
    restored["metadata"]["resourceVersion"] = "500000"
    assert cache.observed(restored) is None
    cache.forget_versions("pods", None)
    cache.forget_versions("pstrainingjobs", "another")
    assert cache.observed(restored) is None, "other kinds and namespaces"
    cache.forget_versions("pstrainingjobs", "default")
    assert cache.observed(restored) == KEY
    stored = cache.view(KEY).job
    assert stored is not None
    assert stored["metadata"]["resourceVersion"] == "500000"
    assert cache.observed(child(version=400000, uid="deleted after the backup")) == KEY
    cache.observed(job)
    assert cache.observed(restored) is None, "from then on the higher one counts again"
