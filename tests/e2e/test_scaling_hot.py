"""A change of the number of shards with standbys, on real kubelets, keeps the pods and every step that hot standbys
have.
"""

from functools import partial
from pathlib import Path

import pytest

from tests.support.examples import Example
from tests.support.hot_standby import SPEC
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.trains]


def containers(example: Example) -> dict[str, tuple[str, int]]:
    """Return the uids of the servers' and workers' pods, and the restarts of their containers, by name."""
    pods = example.kube.list("Pod", example.namespace, f"pstraining.dev/job-name={example.name}")
    found = [p for p in pods if p["metadata"]["labels"]["pstraining.dev/role"] in ("ps", "worker")]
    return {
        p["metadata"]["name"]: (
            p["metadata"]["uid"],
            sum(c["restartCount"] for c in p["status"].get("containerStatuses", ())),
        )
        for p in found
    }


def resumed_at(example: Example, term: int) -> tuple[int, int]:
    """Return the step at which the former chief stopped, and the step from which this term's chief continues."""
    restored = int(example.wait_event("restored", term=term, seconds=180)["step"])
    return max(checkpoints(example)), restored


def checkpoints(example: Example) -> list[int]:
    """Return the steps of the checkpoints."""
    return sorted(int(folder.name.split("-")[1]) for folder in example.checkpoints.glob("ckpt-*-term-*"))


def has(example: Example, field: str, value: object) -> bool:
    """Whether a field of the status has a value."""
    return bool(example.job()["status"].get(field) == value)


def is_whole(example: Example, term: int, shards: int) -> bool:
    """Whether the newest view of this term has both members of every shard."""
    views = [e["members"] for e in example.events("chief", term=term) if e["event"] == "view"]
    return bool(views) and [len(members) for members in views[-1]] == [2] * shards


def is_rescaled(example: Example, term: int) -> bool:
    """Whether training continues under the chief of this term."""
    job: Object = example.job()
    return bool(job["status"]["term"] == term and job_condition(job, "Rescaling")["reason"] == "Rescaled")


@in_all("tests/unit/core/test_rescaling_hot.py::test_servers_keep_what_they_serve_until_the_chief_has_saved_it")
def test_hot_standbys_keep_their_pods_and_every_step_when_the_number_of_shards_changes(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    spec = {**SPEC, "ps": {**SPEC["ps"], "replicas": 1}, "checkpoint": {"intervalSeconds": 3600, "keep": 100}}
    example = Example.start(kube, namespace, "digits", shared, spec, paced=True)
    example.wait_trained()
    wait_for(lambda: example.job()["status"].get("standbySummary") == "1/1", "the standby is in sync", 180)
    before = containers(example)
    for term, shards in ((2, 2), (3, 1)):
        kube.merge("PSTrainingJob", namespace, example.name, {"spec": {"ps": {"replicas": shards}}})
        wait_for(partial(has, example, "term", term), f"term {term}", 240)
        stopped, restored = resumed_at(example, term)
        assert stopped == restored > 0, "training resumes at the step at which it stopped"
        wait_for(partial(is_rescaled, example, term), "the end of the change", 240)
        assert containers(example).items() >= before.items(), "pods and containers stay"
        wait_for(partial(is_whole, example, term, shards), "all members are in sync", 240)
        assert has(example, "standbySummary", f"{shards}/{shards}")
    assert example.job()["status"]["restarts"] == 0
    assert containers(example) == before
