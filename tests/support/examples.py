"""Runs the examples' own job.yaml as jobs on a cluster, with a claim for checkpoints."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.kube import DeadlineError, Kube, Object, wait_for
from tests.support.scripted_program import share

ROOT = Path(__file__).parents[2]
PACED = {
    "digits": (ROOT / "tests" / "support" / "paced.py").read_text(),
    "plain_tensorflow": (ROOT / "tests" / "support" / "paced_plain.py").read_text(),
}
"""Programs that train slowly, instead of their examples' programs."""


@dataclass
class Example:
    """One running example."""

    kube: Kube
    namespace: str
    name: str
    checkpoints: Path

    @classmethod
    def start(
        cls,
        kube: Kube,
        namespace: str,
        example: str,
        folder: Path,
        spec: Object | None = None,
        arguments: tuple[str, ...] = (),
        *,
        paced: bool = False,
        source: str = "",
    ) -> "Example":
        """Apply the example's job with a durable checkpoint volume and the fields of `spec`, merged one level deep.

        Its program gets further arguments. With `paced` it is one of PACED, which leaves the processor to others;
        digits then train until the test ends. `source` is the text of another program, which all tasks run instead.
        """
        source = source or (PACED[example] if paced else "")
        job = yaml.safe_load((ROOT / "examples" / example / "job.yaml").read_text())
        name = job["metadata"]["name"]
        job["metadata"]["namespace"] = namespace
        checkpoints = folder / f"{namespace}-{name}"
        checkpoints.mkdir(parents=True)
        checkpoints.chmod(0o777)
        share(kube, namespace, "checkpoints", checkpoints)
        checkpoint = {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}, "intervalSeconds": 2}
        job["spec"]["checkpoint"] = checkpoint
        job["spec"]["worker"]["template"]["spec"]["containers"][0]["command"].extend(arguments)
        for field, value in (spec or {}).items():
            job["spec"][field] = {**job["spec"].get(field, {}), **value}
        if source:
            for role in ("ps", "worker", "chief"):
                if template := job["spec"].get(role, {}).get("template"):
                    template["spec"]["containers"][0]["command"] = ["python", "-c", source, *arguments]
        kube.create(job)
        return cls(kube, namespace, name, checkpoints)

    def job(self) -> Object:
        """Return the job as stored."""
        found = self.kube.get("PSTrainingJob", self.namespace, self.name)
        assert found is not None
        return found

    def pod(self, role: str, index: int = 0, *, term: int = 0) -> str:
        """Return the name of a task's pod that is not terminating, once there is one."""

        def find() -> str:
            selector = f"pstraining.dev/job-name={self.name},pstraining.dev/role={role}"
            if term:
                selector += f",pstraining.dev/term={term}"
            for pod in self.kube.list("Pod", self.namespace, selector):
                labels = pod["metadata"]["labels"]
                own = labels.get("pstraining.dev/index") or labels.get("apps.kubernetes.io/pod-index") or "0"
                if int(own) == index and not pod["metadata"].get("deletionTimestamp"):
                    return str(pod["metadata"]["name"])
            return ""

        return wait_for(find, f"a pod for {role} {index}")

    def log(self, role: str, index: int = 0, *, term: int = 0) -> str:
        """Return a task's log so far."""
        return self.kube.log(self.namespace, self.pod(role, index, term=term))

    def events(self, role: str, index: int = 0, *, term: int = 0) -> list[dict[str, Any]]:
        """Return a task's events, which its log has as JSON lines."""
        found = []
        for line in self.log(role, index, term=term).splitlines():
            if line.startswith('{"event"'):  # Where no container runs yet, the kubelet's answer is another document.
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # The last line is still being written.
        return found

    def wait_event(
        self, name: str, role: str = "chief", index: int = 0, *, term: int = 0, count: int = 1, seconds: float = 300
    ) -> dict[str, Any]:
        """Wait for the `count`-th event of that name in a task's log."""

        def find() -> dict[str, Any] | None:
            hits = [e for e in self.events(role, index, term=term) if e.get("event") == name]
            return hits[count - 1] if len(hits) >= count else None

        try:
            return wait_for(find, f"{role} {index} reports {name!r}", seconds, every=0.5)
        except DeadlineError as error:
            raise DeadlineError(f"{error}; {self.last_reports(role, index)}") from None

    def last_reports(self, role: str, index: int = 0) -> str:
        """Return a task's last events, the last lines of its log besides them, and the job's status."""
        lines = self.log(role, index).splitlines()
        events = [line for line in lines if line.startswith('{"event"')]
        others = [line for line in lines if not line.startswith('{"event"')]
        return "\n".join([*events[-25:], *others[-10:], json.dumps(self.job().get("status"))])

    def wait_trained(self, index: int = 0, *, seconds: float = 300) -> int:
        """Wait until a worker reports a step, and return the newest; its first report may precede the first step."""

        def newest() -> int:
            return max((int(e["step"]) for e in self.events("worker", index) if e.get("event") == "worker"), default=0)

        return wait_for(newest, f"worker {index} trains", seconds, every=0.5)

    def wait_succeeded(self, seconds: float = 300) -> Object:
        """Wait for the job's success; raises at once if the job fails."""

        def ended() -> str:
            phase = str((self.job().get("status") or {}).get("phase"))
            return phase if phase in ("Succeeded", "Failed") else ""

        phase = wait_for(ended, f"the end of {self.name}: {self.job()}", seconds, every=0.5)
        assert phase == "Succeeded", self.job()["status"]
        return self.job()

    def failures(self, role: str) -> int:
        """Return the number of counted failures of a role's replicas."""
        records = (self.job().get("status") or {}).get("replicaRecords") or ()
        return sum(r["failures"] for r in records if r["role"] == role)
