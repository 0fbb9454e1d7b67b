"""The member of a shard that has the only copy of its state is deleted: it ends once another member has the state."""

import time
from pathlib import Path

import pytest

from localcluster import faults
from tests.support.examples import Example
from tests.support.hot_standby import ONE_SHARD, HotStandbyJob
from tests.support.kube import Kube, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.trains]

PRIMARY, STANDBY = "digits-ps-0", "digits-standby-0"


@in_all("tests/processes/test_launcher_hot.py::test_the_only_copy_of_the_state_stays_until_another_member_has_it")
def test_a_deleted_server_stays_until_its_standby_has_the_state(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    """The standby's marker, which the chief could not empty, still states that the standby is in sync."""
    own_operator.start()
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, ONE_SHARD, paced=True), shards=1)
    watched.wait_prepared()
    wait_for(lambda: watched.summary() == watched.all_in_sync, "the standby is in sync", 180)
    with faults.stopped(f"{namespace}/{STANDBY}", r"launch\.py serve"):
        wait_for(lambda: watched.views()[-1:] == [[["ps-0"]]], "training continues without the standby", 90)
        struck = time.time()
        kube.delete("Pod", namespace, PRIMARY)
        wait_for(
            lambda: "no other member has this shard's state" in kube.log(namespace, PRIMARY), "the server stays", 30
        )
    wait_for(lambda: watched.switched_over(struck) == ["ps-0"], "the standby has the state", 60)
    wait_for(watched.is_whole, "both members are in sync", 180)
    watched.nothing_is_restored()
