"""The steps of `make demo`. Imports only the standard library, and needs no virtual environment.

Exit status: 0 when the job has succeeded and its accuracy on the test set is at least 0.95.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from hack.demo.job import ChiefLog, Job, JobFailedError, read_accuracy
from hack.test_cluster import ROOT, ClusterSession, Target
from localcluster.errors import ClusterError
from localcluster.images import image_repository
from localcluster.progress import Progress

EXAMPLE = "examples/digits/job.yaml"
CHART = "charts/pstraining"
RELEASE_NAMESPACE = "pstraining-system"
JOB_NAMESPACE = "default"
TRAINING_USER = 1000
DEADLINE_S = 600
WANTED_ACCURACY = 0.95


def install(session: ClusterSession, target: Target) -> None:
    """Install or upgrade the operator with the chart, and wait until it is ready."""
    progress = session.progress
    image = session.load("operator")
    command = ["upgrade", "--install", "pstraining", CHART, "-n", RELEASE_NAMESPACE, "--create-namespace", "--wait"]
    command += ["--set", f"image.repository={image_repository('operator')}"]
    progress.say("$ helm " + " ".join(command))
    if image is not None:
        # The same tag may have newer content, so the operator is restarted.
        command += ["--set-string", f"podAnnotations.image-digest={image.digest}"]
    with progress.step("installing the operator", announce=False):
        try:
            target.helm(*command, "--timeout", "2m")
        except ClusterError:
            print(operator_diagnosis(target), file=sys.stderr)
            raise


def checkpoint_folder(session: ClusterSession) -> Path:
    """Return an empty folder of this machine for checkpoints; the local cluster's nodes share its file system."""
    folder = session.layout.disk / "demo-checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chown(folder, TRAINING_USER, TRAINING_USER)
    return folder


def read_example(session: ClusterSession, target: Target) -> dict[str, Any]:
    """Return the example's job; on the local cluster its checkpoints are in a folder of this machine."""
    text = target.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", str(ROOT / EXAMPLE))
    job: dict[str, Any] = json.loads(text)
    if session.context is None:
        folder = {"path": str(checkpoint_folder(session)), "type": "Directory"}
        job["spec"].setdefault("checkpoint", {}).pop("volumeClaimTemplate", None)
        job["spec"]["checkpoint"]["volume"] = {"hostPath": folder}
    else:
        # A new demo must train, so the model of an earlier one is removed.
        job["spec"]["checkpoint"]["retainPolicy"] = "Delete"
    return job


def run_job(session: ClusterSession, target: Target) -> tuple[Job, str]:
    """Apply the example, wait for its end, and return the job and its chief's log."""
    progress = session.progress
    # The API server knows jobs only with the operator's CRD.
    example = read_example(session, target)
    job = Job(target, JOB_NAMESPACE, example["metadata"]["name"])
    with progress.step("removing the job of an earlier demo", announce=False):
        job.kubectl("delete", "pstj", job.name, "--ignore-not-found", "--cascade=foreground", "--timeout=120s")
    where = "" if session.context else "   (with its checkpoints on this machine's disk)"
    progress.say(f"$ kubectl apply -f {EXAMPLE}{where}")
    target.kubectl("-n", JOB_NAMESPACE, "apply", "-f", "-", stdin=json.dumps(example))
    with progress.step("training", announce=False):
        log = ChiefLog(job, progress)
        try:
            job.wait(progress, DEADLINE_S)
            log.close()
        except JobFailedError:
            print(job.diagnosis(), file=sys.stderr)
            print(operator_diagnosis(target), file=sys.stderr)
            raise
    return job, log.text


def operator_diagnosis(target: Target) -> str:
    """Return the information on an operator that does not run or does not act."""
    where = ["-n", RELEASE_NAMESPACE]
    return "\n".join(
        [
            target.kubectl(*where, "describe", "pods", check=False),
            "--- log of the operator",
            target.kubectl(*where, "logs", "deployment/pstraining-operator", "--tail=40", check=False),
        ]
    )


def report(session: ClusterSession, target: Target, job: Job, log: str) -> int:
    """Show the job and its accuracy, and return the exit status."""
    accuracy = read_accuracy(log)
    print("\n$ kubectl get pstj")
    print(job.kubectl("get", "pstj"))
    if accuracy is None:
        print("The chief's log holds no result:\n" + log[-3000:], file=sys.stderr)
        return 1
    source = "" if session.context else ", computed from the restored checkpoint"
    print(f"test accuracy {accuracy:.4f}{source}")
    print(f"\nWhere the time went:\n{session.progress.table()}")
    if session.context is None:
        print(f"""
The cluster is still up. Look around:
  export KUBECONFIG={target.kubeconfig}
  export PATH={Path(target.kubectl_binary).parent}:$PATH
  kubectl describe pstj {job.name}
  kubectl get all
Take it down:
  make cluster-down""")
    if accuracy < WANTED_ACCURACY:
        print(f"\nerror: the accuracy is below {WANTED_ACCURACY}", file=sys.stderr)
        return 1
    return 0


def demo(session: ClusterSession) -> int:
    """Run all steps, and return the exit status."""
    target = session.up()
    runtime = session.aside(lambda: session.load("runtime"))
    install(session, target)
    runtime.result()
    job, log = run_job(session, target)
    return report(session, target, job, log)


def interrupted(_signal: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C: the demo ends."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo, and return the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupted)
    session = None
    try:
        session = ClusterSession(Progress())
        return demo(session)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what is up stays up: make cluster-down", file=sys.stderr)
        return 130
    finally:
        if session is not None:
            session.close()


if __name__ == "__main__":
    sys.exit(main())
