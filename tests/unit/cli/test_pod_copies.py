"""Commands show the tasks of a job, and no copies of their pods, such as those of `kubectl debug --copy-to`."""

from collections.abc import Iterator, Mapping

from pstraining.cli import overview
from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.logs.reading import read
from pstraining.cli.tasks import tasks_of
from tests.support.cli_cluster import Object, WithJobs
from tests.support.copying import copied
from tests.support.simulation import World, running
from tests.unit.cli.test_plan_live import LiveCluster, plan


def with_copy(world: World, pod: str) -> Object:
    """Add a copy of a pod to a world: it has the labels of its original (--keep-labels), but no controller."""
    copy = copied(world.pods[pod])
    copy["metadata"] |= {"name": f"{pod}-debug", "uid": "uid of the copy", "ownerReferences": []}
    copy["metadata"].pop("generateName", None)
    world.pods[f"{pod}-debug"] = copy
    return copy


def a_worker(world: World) -> str:
    return next(name for name in world.pods if "worker-0" in name)


def test_status_counts_no_copy_of_a_pod() -> None:
    world = running()
    assert world.job is not None
    before = overview.look(WithJobs(world.job, pods=list(world.pods.values())), "default", "digits")
    with_copy(world, a_worker(world))
    assert overview.look(WithJobs(world.job, pods=list(world.pods.values())), "default", "digits") == before


def test_logs_read_no_copy_of_a_pod() -> None:
    world = running()
    copy = with_copy(world, a_worker(world))
    assert world.job is not None
    asked: list[str] = []

    class WithLogs(WithJobs):
        def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
            asked.append(pod)
            return iter(())

    cluster = WithLogs(world.job, pods=list(world.pods.values()))
    read(cluster, "default", "digits", LogSelection(), lambda *_: None, lambda _: None)
    assert copy["metadata"]["name"] not in asked
    assert len(asked) == len(tasks_of(world.job, world.pods.values())) == len(world.pods) - 1


def test_plan_live_resizes_and_replaces_no_copy_of_a_pod() -> None:
    world = running()
    copy = with_copy(world, a_worker(world))
    planned = plan(LiveCluster(world), world)
    assert planned.sizes.keys() == world.pods.keys() - {copy["metadata"]["name"]}
