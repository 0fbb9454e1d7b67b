"""Every command that uses a cluster, and every obstacle: the command prints one line that includes the remedy."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from pstraining.api import names
from pstraining.cli.exit_codes import ExitCode
from tests.support.cli_runs import CLI, NO_SUCH_VERSION, ROOT, Ran, failed, kubeconfig, nobody_here, run
from tests.support.kube import ApiError, Kube, Target
from tests.support.refused import simple
from tests.support.soak_marks import ALL, in_all

pytestmark = pytest.mark.cluster

OF_A_JOB: tuple[tuple[str, ...], ...] = (
    ("status", "none"),
    ("logs", "none"),
    ("top", "none"),
    ("wait", "none"),
    ("doctor", "none"),
    ("report", "none"),
    ("scale", "none", "--workers", "2"),
    ("suspend", "none"),
    ("resume", "none"),
    ("takeover", "none", "--shard", "0"),
)
OF_MANIFESTS = (("submit", "-f", "-"), ("plan", "--live", "-f", "-"))
SOME: Sequence[tuple[str, ...]] = (*OF_A_JOB, *OF_MANIFESTS) if ALL else (OF_A_JOB[0], OF_MANIFESTS[0])
"""`make test` tries all commands for a missing job, else one command that reads and one that writes."""
AT_A_TIME = 4


def ran_all(
    target: Target,
    namespace: str,
    *,
    commands: Sequence[tuple[str, ...]] = (*OF_A_JOB, *OF_MANIFESTS),
    program: tuple[str, ...] = CLI,
    version: str = "",
    code: ExitCode = ExitCode.ERROR,
) -> dict[str, str]:
    """Return the error message of each command, all of which fail."""
    text = yaml.safe_dump(simple(namespace)).replace(names.API_VERSION, version or names.API_VERSION)

    def one(command: Sequence[str]) -> Ran:
        if command in OF_MANIFESTS:
            return run(target, *command, program=program, given=text)
        return run(target, *command, "-n", namespace, program=program)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return {command[0]: failed(ran, code) for command, ran in zip(commands, pool.map(one, commands), strict=True)}


Obstacle = tuple[Target, str, ExitCode]


def no_cluster(kube: Kube, folder: Path) -> Obstacle:
    target = kubeconfig(kube, folder, "nowhere", server="https://127.0.0.1:9")
    return target, "The API server https://127.0.0.1:9 (context here) did not respond: ", ExitCode.UNREACHABLE


def no_credentials(kube: Kube, folder: Path) -> Obstacle:
    return kubeconfig(kube, folder, "stranger"), "The API server did not authenticate you: ", ExitCode.ERROR


def no_kubeconfig(kube: Kube, folder: Path) -> Obstacle:
    return Target(str(folder / "none"), "here"), "There is no kubeconfig at ", ExitCode.ERROR


@pytest.mark.parametrize("make", [no_cluster, no_credentials, no_kubeconfig])
def test_no_cluster(kube: Kube, tmp_path: Path, make: Callable[[Kube, Path], Obstacle]) -> None:
    target, words, code = make(kube, tmp_path)
    for command, said in ran_all(target, "default", commands=SOME, code=code).items():
        assert said.startswith(f"Error: {words}"), (command, said)


def test_a_missing_right_is_named(kube: Kube, tmp_path: Path, crd: None, namespace: str) -> None:
    words = f"may not get pstrainingjobs.pstraining.dev in namespace {namespace}: request a role"
    for command, said in ran_all(nobody_here(kube, namespace, tmp_path), namespace, commands=SOME).items():
        assert words in said, (command, said)


def test_impersonation_of_a_user_without_rights(target: Target, crd: None, namespace: str, tmp_path: Path) -> None:
    config = yaml.safe_load(Path(target.kubeconfig).read_text())
    for entry in config["users"]:
        entry["user"] |= {"as": "nobody@example.com", "as-groups": ["system:authenticated"]}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    of_kubeconfig, of_option = Target(str(path), target.context), ("--as", "nobody@example.com")
    for ran in (run(of_kubeconfig, "status", "-n", namespace), run(target, "status", "-n", namespace, *of_option)):
        assert "You (nobody@example.com) may not list pstrainingjobs.pstraining.dev" in failed(ran)


def test_no_such_job(target: Target, crd: None, namespace: str) -> None:
    words = f"Error: There is no PSTrainingJob none in namespace {namespace}. The namespace has no jobs."
    for command, said in ran_all(target, namespace, commands=OF_A_JOB).items():
        assert said == words, (command, said)


@in_all("tests/e2e/test_cli_read.py::test_missing_rights_and_missing_installations_are_reported")  # every command
def test_no_crd(target: Target, crd: None, namespace: str) -> None:
    """Without the CRD, commands name it.

    Deleting the CRD would delete all jobs, so the test uses an API version that the cluster does not serve.
    """
    version = f"{names.GROUP}/v9"
    unknown = ran_all(target, namespace, commands=SOME, program=("-c", NO_SUCH_VERSION), version=version)
    for command, said in unknown.items():
        assert said.startswith("Error: The cluster does not serve PSTrainingJobs: "), (command, said)


@in_all("tests/controlplane/test_tfjob_manifests.py::test_converted_jobs_and_their_children_are_accepted")
def test_converted_jobs_are_valid_and_accepted(kube: Kube, target: Target, crd: None, namespace: str) -> None:
    """A TFJob is converted, validated and accepted by the API server; other objects are rejected."""
    tfjob = (ROOT / "tests" / "tfjob" / "convert" / "tfjobs" / "dist-mnist.yaml").read_text()
    made = run(target, "convert", "-f", "-", given=tfjob, with_context=False)
    assert made.returncode == 0, made
    assert run(target, "validate", "-f", "-", given=made.stdout, with_context=False).returncode == 0
    job = yaml.safe_load(made.stdout)
    job["metadata"]["namespace"] = namespace
    stored = kube.request("POST", kube.path("PSTrainingJob", namespace) + "?fieldValidation=Strict&dryRun=All", job)
    assert stored["metadata"]["name"] == "dist-mnist"

    wrong = made.stdout.replace("replicas: 2", "replicas: none")
    assert wrong != made.stdout
    refused = run(target, "validate", "-f", "-", given=wrong, with_context=False)
    assert refused.returncode == 1
    assert "spec.ps.replicas" in refused.stdout + refused.stderr
    with pytest.raises(ApiError, match=r"spec\.ps\.replicas"):
        kube.create({**yaml.safe_load(wrong), "metadata": job["metadata"]})
    said = failed(run(target, "convert", "-f", "-", given=made.stdout, with_context=False))
    assert "PSTrainingJob" in said
