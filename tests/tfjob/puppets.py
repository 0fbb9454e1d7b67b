"""Plays a case on a real cluster: the case's own manifest, with a scripted program for every role."""

import json
import time
from pathlib import Path
from typing import Any

from tests.support.kube import Kube, wait_for
from tests.support.scripted_program import Puppet, share, template
from tests.tfjob.simulated import all_tasks
from tests.tfjob.table import Case, DeletePod, Exit, Later, Scale, Sees, Step, Suspend, differences, split

STARTED_S, SEEN_S = 300, 150
HOLDS_S = 3
"""Seconds for which the objects that remain at a job's end are observed, because at first all of them exist."""
CLAIM = "checkpoints"


class Played:
    """The job of one case."""

    def __init__(self, kube: Kube, namespace: str, folder: Path, case: Case) -> None:
        self.kube, self.namespace, self.case = kube, namespace, case
        orders = _folder(folder / f"{namespace}-{case.name}")
        share(kube, namespace, f"{case.name}-orders", orders)
        kube.create(_with_puppets(case, namespace))
        self.puppet = Puppet(kube, namespace, case.name, orders)

    def play(self) -> None:
        """Play the case, and fail at the first difference from its expectations."""
        suspended = self.case.manifest()["spec"].get("runPolicy", {}).get("suspend", False)
        if not suspended and not isinstance(self.case.play[0], Later):
            wait_for(lambda: all(map(self.puppet.runs, all_tasks(self.case))), "every program runs", STARTED_S)
            self._tf_config()
        for number, step in enumerate(self.case.play):
            self._take(step, f"step {number + 1} of {self.case.name}, {step}")

    def _tf_config(self) -> None:
        for task in all_tasks(self.case) if self.case.cluster is not None else ():
            line = (self.puppet.orders / f"{task}.runs").read_text().splitlines()[0]
            role, index = split(task)
            cluster = {r: list(addresses) for r, addresses in (self.case.cluster or {}).items()}
            wanted = {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
            assert json.loads(line.partition(" ")[2]) == wanted, task

    def _take(self, step: Step, what: str) -> None:
        match step:
            case Sees():
                self._sees(step, what)
            case Exit(task, code):
                self.puppet.exit(task, code)
                wait_for(lambda: not (self.puppet.orders / f"{task}.exit").exists(), f"{what}: it ends", SEEN_S)
            case DeletePod(task):
                (pod,) = (p for p in self.puppet.pods() if _task(p) == task)
                self.kube.delete("Pod", self.namespace, pod["metadata"]["name"])
            case Suspend(suspend):
                self._edit({"runPolicy": {"suspend": suspend}})
            case Scale(workers, ps):
                if workers is not None:
                    scaled = {"spec": {"replicas": workers}}
                    self.kube.merge("PSTrainingJob", self.namespace, self.case.name, scaled, "scale")
                if ps is not None:
                    self._edit({"ps": {"replicas": ps}})
            case Later():
                """Wait until the expected state is observed."""

    def _edit(self, spec: dict[str, Any]) -> None:
        self.kube.merge("PSTrainingJob", self.namespace, self.case.name, {"spec": spec})

    def _sees(self, sees: Sees, what: str) -> None:
        def wrong() -> list[str]:
            pods = {_task(p) for p in self.puppet.pods()}
            runs = {task: self.puppet.runs(task) for task in sees.runs}
            other = [f"{task} ran {n} times, not {sees.runs[task]}" for task, n in runs.items() if n != sees.runs[task]]
            return differences(sees, self.puppet.job(), pods) + other

        try:
            wait_for(lambda: not wrong(), what, SEEN_S)
        except AssertionError:
            raise AssertionError(f"{what}: {'; '.join(wrong())}; {self._as_it_is()}") from None
        until = time.monotonic() + (HOLDS_S if sees.pods and sees is self.case.play[-1] else 0)
        while time.monotonic() < until:
            assert not (found := wrong()), f"{what}, but then: {'; '.join(found)}"
            time.sleep(0.2)

    def _as_it_is(self) -> str:
        """Return the status of the job and of its pods, for the message of a failure."""
        pods = {
            pod["metadata"]["name"]: (
                pod["metadata"].get("deletionTimestamp", ""),
                pod["status"].get("phase"),
                pod["status"].get("containerStatuses"),
            )
            for pod in self.kube.list("Pod", self.namespace, f"pstraining.dev/job-name={self.case.name}")
        }
        return json.dumps({"status": self.puppet.status(), "pods": pods})


def _task(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    index = labels.get("pstraining.dev/index") or labels.get("apps.kubernetes.io/pod-index") or "0"
    return f"{labels['pstraining.dev/role']}-{index}"


def _with_puppets(case: Case, namespace: str) -> dict[str, Any]:
    found = case.manifest()
    found["metadata"]["namespace"] = namespace
    for role in ("ps", "worker", "chief", "evaluator"):
        if "template" in found["spec"].get(role, {}):
            found["spec"][role]["template"] = template(case.name)
    return found


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    path.chmod(0o777)
    return path


def claim(kube: Kube, namespace: str, folder: Path) -> None:
    """Return the claim in manifests with checkpoints."""
    share(kube, namespace, CLAIM, _folder(folder / f"{namespace}-{CLAIM}"))
