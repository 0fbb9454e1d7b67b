"""Plays a case in the simulated world."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.launcher.contract import program_env, read_cluster
from pstraining.resources import cluster_map, pods, workloads
from pstraining.resources.launcher import LauncherMap
from tests.support import builders
from tests.support.simulation import World
from tests.tfjob.table import Case, DeletePod, Exit, Later, Scale, Sees, Step, Suspend, differences, split


def stored(case: Case, name: str = "digits") -> dict[str, Any]:
    """Return the case's job as the API server would store it; the simulated world only has pods of one job name."""
    manifest = case.manifest()
    held = builders.job(name)
    held["metadata"] = {**manifest["metadata"], **held["metadata"]}
    return {**held, "spec": manifest["spec"]}


def play(case: Case) -> None:
    """Play the case, and fail at the first difference from its expectations."""
    world = World(stored(case))
    world.settle()
    for number, step in enumerate(case.play):
        found = _take(world, step)
        assert not found, f"step {number + 1} of {case.name}, {step}: {'; '.join(found)}"


def tasks_with_pods(world: World) -> set[str]:
    """Return the tasks that have a pod."""
    found = set()
    for pod in world.pods.values():
        labels = pod["metadata"]["labels"]
        index = labels.get(names.LABEL_INDEX) or labels.get(names.LABEL_POD_INDEX) or "0"
        found.add(f"{labels[names.LABEL_ROLE]}-{index}")
    return found


def _take(world: World, step: Step) -> list[str]:
    match step:
        case Sees():
            return differences(step, world.job, tasks_with_pods(world))
        case Exit(task, code):
            world.end(*split(task), code, f"{task} was ordered to exit with {code}")
        case DeletePod(task):
            world.delete_pod(*split(task))
        case Suspend(suspend):
            world.edit({"runPolicy": {"suspend": suspend}})
        case Scale(workers, ps):
            numbers = {"worker": workers, "ps": ps}
            world.edit({role: {"replicas": n} for role, n in numbers.items() if n is not None})
        case Later(seconds):
            world.now += timedelta(seconds=seconds)
    world.settle()
    return []


def typed(case: Case) -> PSTrainingJob:
    """Return the job under its own name."""
    return builders.typed(stored(case, case.name))


def templates(case: Case) -> dict[str, dict[str, Any]]:
    """Return one rendered pod template of each role that the job has."""
    job = typed(case)
    found = {
        "ps": workloads.build_parameter_servers(job, LauncherMap("launcher"))["spec"]["template"],
        "worker": workloads.build_worker(job, 0, LauncherMap("launcher"))["spec"]["template"],
    }
    for role, wanted in (("chief", job.spec.chief.enabled), ("evaluator", job.spec.evaluator.enabled)):
        if wanted:
            found[role] = workloads.build_attempt(job, role, 1, LauncherMap("launcher"))["spec"]["template"]
    return found


def training_container(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training container."""
    return pods.main_container(dict(template["spec"]))


def tf_config(case: Case, task: str) -> dict[str, Any]:
    """Return a task's TF_CONFIG, as the launcher computes it from the cluster map."""
    role, index = split(task)
    text = cluster_map.document(typed(case))
    found = program_env({}, read_cluster(text, "the map", role, index), role, index)["TF_CONFIG"]
    config: dict[str, Any] = json.loads(found)
    return config


def all_tasks(case: Case) -> list[str]:
    """Return every task of the job."""
    spec = typed(case).spec
    found = [f"ps-{i}" for i in range(spec.ps.replicas)] + [f"worker-{i}" for i in range(spec.worker.replicas)]
    return found + ["chief-0"] * spec.chief.enabled + ["evaluator-0"] * spec.evaluator.enabled
