"""`status` without the right to list pods or events, or of a job in another cluster: it shows the rest."""

from pstraining.cli import overview
from pstraining.cli.errors import DeniedError
from tests.support.builders import job, pod
from tests.support.cli_cluster import Object, WithJobs
from tests.support.simulation import running

DENIED = "You (jane) may not list events in namespace default."


class WithoutEvents(WithJobs):
    """A cluster in which the user may not list events."""

    asked = 0

    def events(self, namespace: str, uid: str) -> list[Object]:
        self.asked += 1
        raise DeniedError(DENIED, 403)


def test_a_job_is_shown_without_its_events() -> None:
    waiting = pod("worker", 0, phase="Pending")
    cluster = WithoutEvents(job(), pods=[waiting])
    found = overview.look(cluster, "default", "digits")
    assert found["notes"][-1] == DENIED
    assert found["notes"].count(DENIED) == 1
    assert cluster.asked == 1
    assert found["events"] == []
    (worker,) = (role for role in found["roles"] if role["role"] == "worker")
    assert [p["pod"] for p in worker["pods"]] == [waiting["metadata"]["name"]]


class WithoutPods(WithJobs):
    """A cluster in which the user may not list pods."""

    def pods(self, namespace: str, job: str) -> list[Object]:
        raise DeniedError(DENIED.replace("events", "pods"), 403)


def test_a_job_is_shown_without_its_pods() -> None:
    made = running().job or {}
    made["status"]["autoscaling"] = [{"role": "worker", "peakMemory": "1Gi", "recommendedMemory": "2Gi"}]
    cluster = WithoutPods(made)
    found = overview.look(cluster, "default", "digits")
    assert found["notes"] == ["You (jane) may not list pods in namespace default."]
    assert found["phase"] == "Running"
    (worker,) = (role for role in found["roles"] if role["role"] == "worker")
    assert (worker["ready"], worker["pods"], worker["withoutPod"]) == (2, [], [])
    assert worker["sizing"] == "memory: measured peak 1Gi, recommended limit 2Gi, now unknown"


def test_pods_in_another_cluster_are_not_called_missing() -> None:
    made = job(spec={"managedBy": "kueue.x-k8s.io/multikueue"})
    made["status"] = {"observedGeneration": 1, "phase": "Running", "worker": {"desired": 2, "ready": 2}}
    found = overview.look(WithJobs(made), "default", "digits")
    assert "Its pods are there" in found["notes"][0]
    assert [role["withoutPod"] for role in found["roles"]] == [[], [], []]
