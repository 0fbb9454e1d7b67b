"""The examples train with real TensorFlow on real kubelets, through the operator that the chart installs.

While digits trains, its pods are killed in sequence: the job resumes at its last state.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hack.docs.pages import pages
from localcluster import faults
from pstraining.api import contract
from pstraining.api.summary import SUMMARY_FILE, Summary
from tests.e2e.conftest import cluster_command
from tests.support.cli_runs import run
from tests.support.documented import shell_lines
from tests.support.examples import ROOT, Example
from tests.support.kube import Kube, Object, Target, wait_for
from tests.support.soak_marks import ALL, in_all, in_soak, some

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]


IN_STEP = {"mode": "Sync", "compression": {"push": "Int8", "pull": "Int8"}}
"""Synchronous and compressed, by the manifest alone."""


@pytest.mark.parametrize(
    ("training", "steps", "accuracy"),
    [
        pytest.param({"mode": "Hybrid"}, 1000 if ALL else 300, 0.9, id="Hybrid"),
        pytest.param(
            *({}, 2000, 0.95),
            id="Async",
            marks=in_all("tests/e2e/test_client.py::test_a_function_trains_and_reports_the_progress_that_top_shows"),
        ),
        pytest.param(
            *(IN_STEP, 1000, 0.9),
            id="Sync-Int8",
            marks=in_all(
                "tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds"
            ),  # Sync, not compressed
        ),
    ],
)
@pytest.mark.minutes
def test_digits(
    kube: Kube,
    target: Target,
    namespace: str,
    shared: Path,
    tmp_path: Path,
    training: Object,
    steps: int,
    accuracy: float,
) -> None:
    example = Example.start(kube, namespace, "digits", shared, {"training": {**training, "steps": steps}})
    example.wait_succeeded()
    result = example.wait_event("result")
    assert result["test_accuracy"] >= accuracy
    assert (example.checkpoints / "result.json").exists()
    assert example.job()["status"]["restarts"] == 0
    _reported_its_end(example, result)
    _kept_its_history(target, example, result, tmp_path / "digits")
    if training is IN_STEP:
        assert result["step"] == steps, "every update counts, and there is no additional one"


def _reported_its_end(example: Example, result: Object) -> None:
    """Demand that `kubectl get` shows the progress that the chief has reported, over TLS and with a token of its
    pod.
    """
    status = wait_for(
        lambda: (found := example.job()["status"].get("training")) and found.get("progressPercentage") == 100 and found,
        "the end of training is in the status",
    )
    metrics = {metric["name"]: float(metric["value"]) for metric in status["metrics"]}
    assert status["step"] == result["step"]
    assert metrics["test_accuracy"] == pytest.approx(result["test_accuracy"], rel=1e-4)
    assert float(status["loss"]) >= 0


def _kept_its_history(target: Target, example: Example, result: Object, folder: Path) -> None:
    """Demand that the chief has requested the job and its pods' logs from the operator; the history is copied and read
    as the page shows.
    """
    page = pages()[ROOT / "docs" / "users" / "history.md"]
    _start_shown_pod(example, next(block.text for block in page.blocks if block.language == "yaml"))
    kubectl = [f"{cluster_command('bin')}/kubectl", "--kubeconfig", target.kubeconfig, "--context", target.context]
    folder.mkdir()
    for _, line in shell_lines(page):
        if line.strip().startswith("kubectl cp "):
            words = [*kubectl, "-n", example.namespace, *shlex.split(line)[1:]]
            subprocess.run(words, cwd=folder.parent, check=True, timeout=60)
    example.kube.delete("Pod", example.namespace, "history", grace=0)
    kept = Summary.model_validate_json((folder / SUMMARY_FILE).read_text())
    assert (kept.outcome, kept.notes, kept.uid) == ("Succeeded", [], example.job()["metadata"]["uid"])
    assert kept.result is not None
    assert kept.result["test_accuracy"] == pytest.approx(result["test_accuracy"], rel=1e-4)
    tasks = ("ps-0", "chief-0", "worker-0", "worker-1")
    assert {log.task: log.missing for log in kept.logs} == dict.fromkeys(tasks, "")
    select = ("--role", "worker", "--index", "0")
    shown = run(target, "logs", kept.name, "--from", str(folder), *select, with_context=False)
    assert '"event": "devices"' in shown.stdout, "it may train for less than a second, and report no step"
    assert "chief-0" in run(target, "status", "--from", str(folder), with_context=False).stdout


def _start_shown_pod(example: Example, text: str) -> None:
    """Start the pod of a page, with the image and the claim of an example."""
    job = example.job()["spec"]
    pod = yaml.safe_load(text)
    pod["metadata"]["namespace"] = example.namespace
    pod["spec"]["containers"][0]["image"] = job["worker"]["template"]["spec"]["containers"][0]["image"]
    pod["spec"]["volumes"][0] |= job["checkpoint"]["volume"]
    example.kube.create(pod)
    name = pod["metadata"]["name"]

    def is_ready() -> bool:
        found = example.kube.get("Pod", example.namespace, name) or {}
        return any(container["ready"] for container in found["status"].get("containerStatuses", ()))

    wait_for(is_ready, f"pod {name} runs", 120)


@in_all("tests/e2e/test_training_faults.py::test_a_loss_costs_the_other_tasks_only_seconds")  # a process, not a pod
def test_digits_trains_synchronously_through_the_loss_of_a_worker(kube: Kube, namespace: str, shared: Path) -> None:
    """digits trains synchronously through the loss of a worker, for which the other worker waits only briefly."""
    example = Example.start(kube, namespace, "digits", shared, {"training": IN_STEP}, paced=True)
    example.wait_event("worker", "worker", 0)
    example.wait_event("worker", "worker", 1)
    victim, struck = example.pod("worker", 1), time.time()
    faults.kill_process(f"{namespace}/{victim}", "examples.digits")
    example.kube.delete("Pod", namespace, victim, grace=0)
    wait_for(lambda: example.pod("worker", 1) != victim, "worker 1 is replaced")
    _steps_without_the_other(example, struck, example.wait_event("worker", "worker", 1))


@in_all("tests/training/test_runtime_hybrid.py::test_a_crashed_worker_is_excluded")  # on kubelets
def test_digits_trains_in_hybrid_mode_through_the_loss_of_a_worker(kube: Kube, namespace: str, shared: Path) -> None:
    """digits trains in Hybrid mode: pods of two workers connect by their ring ports, and training continues after the
    loss of one.
    """
    example = Example.start(kube, namespace, "digits", shared, {"training": {"mode": "Hybrid"}}, paced=True)
    example.wait_event("worker", "worker", 0)
    example.wait_event("worker", "worker", 1)
    struck = time.time()
    faults.kill_process(f"{namespace}/{example.pod('worker', 1)}", "examples.digits")

    def steps_since(index: int) -> list[dict[str, Any]]:
        return [e for e in example.events("worker", index) if e.get("event") == "worker" and e["time"] > struck + 1]

    wait_for(lambda: steps_since(1) and steps_since(0), "worker 1 is back", 90)
    _steps_without_the_other(example, struck, steps_since(1)[0])
    _assert_tasks_export_metrics(example)


def _steps_without_the_other(example: Example, struck: float, back: dict[str, Any]) -> None:
    """Demand that worker 0 made steps between the loss of worker 1 and the first report of its successor."""
    own = [e for e in example.events("worker", 0) if e.get("event") == "worker"]
    # Steps that are reported within a second may have been made before.
    away = [e["step"] for e in own if struck + 1 < e["time"] < back["time"]]
    assert away, f"no report between {struck} and {back['time']}: {own}"
    assert max(away) > max(e["step"] for e in own if e["time"] <= struck + 1)


def _assert_tasks_export_metrics(example: Example) -> None:
    """Demand that Prometheus finds every task's metrics on the port that its pod names."""
    for role, name in (("chief", "pstraining_global_step"), ("worker", "pstraining_worker_steps_total")):
        pod = example.pod(role)
        found = example.kube.get("Pod", example.namespace, pod)
        assert found is not None
        ports = [port for container in found["spec"]["containers"] for port in container.get("ports", ())]
        (named,) = (port["containerPort"] for port in ports if port["name"] == contract.METRICS_PORT_NAME)
        text = example.kube.scrape(example.namespace, pod, named)
        samples = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
        assert samples[name] > 0


@pytest.mark.parametrize(
    "name",
    some(
        ["plain_tensorflow", "between_graph"],
        lambda name: name == "between_graph",
        in_soak,
    ),
)
def test_examples_without_our_runtime(kube: Kube, namespace: str, shared: Path, name: str) -> None:
    # The workers of a session poll the chief's variables every half minute.
    spec = {} if ALL else {"worker": {"replicas": 1}}
    example = Example.start(kube, namespace, name, shared, spec, () if ALL else ("--steps", "400"))
    example.wait_succeeded()
    assert example.failures("chief") == example.failures("ps") == example.failures("worker") == 0


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], float]:
    """Return the result of the plain script of the example `convnet`, by its precision."""
    data = tmp_path_factory.mktemp("digits")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT)])}

    def printed(program: str, *arguments: str) -> str:
        command = [sys.executable, "-m", f"examples.convnet.{program}", str(data), *arguments]
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    printed("write")
    return cache(lambda policy: float(printed("plain", policy).splitlines()[-1].removeprefix("test_accuracy ")))


@pytest.mark.trains
@in_all("tests/training/test_docs_guide.py::test_the_tutorial")  # on kubelets
@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("Sync", "mixed_bfloat16"),
        ("Async", "mixed_float16"),
        pytest.param("Sync", "mixed_float16", marks=in_soak),
        pytest.param("Async", "mixed_bfloat16", marks=in_soak),
    ],
)
@pytest.mark.timeout(1200)
def test_a_whole_script_ends_where_fit_ends(
    kube: Kube, namespace: str, shared: Path, fitted: Callable[[str], float], mode: str, policy: str
) -> None:
    """A whole script as a job ends within half a percentage point of `fit`: batch normalization, a schedule, TFRecords,
    callbacks, class weights, half precision.
    """
    example = Example.start(kube, namespace, "convnet", shared, {"training": {"mode": mode}}, arguments=(policy,))
    example.wait_succeeded(900)
    assert example.wait_event("best_restored")
    result = example.wait_event("result")
    assert result["test_accuracy"] == pytest.approx(fitted(policy), abs=0.005)
    assert example.job()["status"]["restarts"] == 0
    for name in ("final.keras", "best.keras", "logs/train", "logs/validation"):
        assert (example.checkpoints / name).exists(), name


@in_soak
def test_digits_trains_through_repeated_losses(kube: Kube, namespace: str, shared: Path) -> None:
    """A worker, a PS process, a PS container and the chief die in turn; the job resumes each time and succeeds."""
    example = Example.start(kube, namespace, "digits", shared, {"training": {"steps": 45000}})
    example.wait_event("checkpoint")
    _lose_a_worker(example)
    _lose_the_ps_process(example)
    _lose_the_ps_container(example)
    _lose_the_chief(example)
    job = example.wait_succeeded(420)
    assert example.wait_event("result")["test_accuracy"] >= 0.95
    assert example.failures("chief") == 0, "nothing of this was the chief's own failure"
    assert job["status"]["term"] == 2
    started_over = [e for e in example.events("chief", term=2) if e.get("event") == "initialized"]
    assert not started_over, "the next chief resumed from the servers' state"


def _lose_a_worker(example: Example) -> None:
    example.wait_event("worker", "worker", 0)
    example.wait_event("worker", "worker", 1)
    victim, struck = example.pod("worker", 1), time.time()
    faults.kill_process(f"{example.namespace}/{victim}", "examples.digits")
    example.kube.delete("Pod", example.namespace, victim, grace=0)
    wait_for(lambda: example.pod("worker", 1) != victim, "worker 1 is replaced")
    _steps_without_the_other(example, struck, example.wait_event("worker", "worker", 1))


def _lose_the_ps_process(example: Example) -> None:
    before = example.wait_event("checkpoint")["step"]
    faults.kill_process(f"{example.namespace}/{example.pod('ps')}", r"launch\.py serve|examples\.digits")
    restored = example.wait_event("restored")
    assert restored["step"] >= before > 0
    assert example.failures("chief") == 0


def _lose_the_ps_container(example: Example) -> None:
    saved = len([e for e in example.events("chief") if e.get("event") == "checkpoint"])
    example.wait_event("checkpoint", count=saved + 1)
    faults.kill_container(f"{example.namespace}/{example.pod('ps')}")
    example.wait_event("restored", count=2)
    wait_for(lambda: example.failures("ps") == 1, "the PS's failure is counted as its own")
    assert example.failures("chief") == 0


def _lose_the_chief(example: Example) -> None:
    example.kube.delete("Pod", example.namespace, example.pod("chief"))
    # The state is still on the parameter servers, so the next chief resumes from it.
    wait_for(lambda: example.job()["status"]["term"] == 2, "the next term")


@pytest.mark.parametrize("what", ["process", pytest.param("container", marks=in_soak)])
def test_plain_tensorflow_survives_a_lost_ps(kube: Kube, namespace: str, shared: Path, what: str) -> None:
    """TensorFlow raises, the launcher runs the program again, and it resumes from its own checkpoint."""
    # At this pace it trains for 20 seconds, so that its first checkpoint precedes its end.
    arguments = ("--steps", "200", "--checkpoint-seconds", "1")
    spec = {"worker": {"replicas": 1}}
    example = Example.start(kube, namespace, "plain_tensorflow", shared, spec, arguments, paced=True)
    wait_for(lambda: any(example.checkpoints.rglob("*.index")), "its first checkpoint", 300, every=0.5)
    victim = f"{namespace}/{example.pod('ps')}"
    if what == "process":
        faults.kill_process(victim, "plain_tensorflow")
    else:
        faults.kill_container(victim)
    example.wait_succeeded()
    assert example.failures("chief") == 0
    assert example.job()["status"]["term"] == 1
