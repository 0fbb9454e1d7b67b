"""The command that turns TFJobs into PSTrainingJobs: what it refuses, and what it prints."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pstraining.cli.commands.convert import as_json, as_yaml
from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.tfjob.job import Conversion, converted
from pstraining.cli.tfjob.notes import Note, What, lines
from tests.support.tfjobs import replica, template, tfjob

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "move-from-tfjob.md"


def without(job: dict[str, Any], *path: str) -> dict[str, Any]:
    found = copy.deepcopy(job)
    below = found
    for step in path[:-1]:
        below = below[step]
    del below[path[-1]]
    return found


def with_template(given: Any) -> dict[str, Any]:
    return tfjob(Worker={"template": given})


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (tfjob() | {"kind": "PyTorchJob"}, "It is a PyTorchJob: only TFJobs of kubeflow.org/v1 can be converted."),
        (without(tfjob(), "kind"), "It is a thing without a kind"),
        (
            tfjob() | {"apiVersion": "kubeflow.org/v1beta2"},
            "It is a TFJob of kubeflow.org/v1beta2: only kubeflow.org/v1",
        ),
        (tfjob() | {"apiVersion": "kubeflow.org/v1alpha1"}, "It is a TFJob of kubeflow.org/v1alpha1"),
        (tfjob() | {"spec": 3}, "spec must be a mapping, is 3."),
        (tfjob() | {"metadata": {}}, "metadata.name: none is no name of a TFJob"),
        (tfjob() | {"metadata": {"name": "1x"}}, "metadata.name: 1x is no name of a TFJob"),
        (tfjob({"tfReplicaSpecs": {"Scheduler": replica()}}), "a TFJob has Chief or Master, PS, Worker and Evaluator"),
        (tfjob(PS=None, Worker=None), "spec.tfReplicaSpecs names no role"),
        (tfjob(Chief=replica(), Master=replica()), "spec.tfReplicaSpecs.Master: spec.tfReplicaSpecs.Chief is the same"),
        (tfjob({"runPolicy": {"backoffLimit": "3"}}), 'spec.runPolicy.backoffLimit must be a whole number, is "3".'),
        (tfjob({"runPolicy": {"backoffLimit": -3}}), "spec.runPolicy.backoffLimit must not be negative, is -3."),
        (tfjob({"runPolicy": {"cleanPodPolicy": "Some"}}), "must be one of All, Running, None, is Some."),
        (tfjob({"successPolicy": "Any"}), "spec.successPolicy must be AllWorkers"),
        (tfjob({"enableDynamicWorker": 1}), "spec.enableDynamicWorker must be true or false, is 1."),
        (tfjob(Worker=replica(True)), "spec.tfReplicaSpecs.Worker.replicas must be a whole number, is true."),
        (tfjob(Worker=replica(-1)), "spec.tfReplicaSpecs.Worker.replicas must not be negative, is -1."),
        (tfjob(Worker=replica(policy="Ever")), "must be one of Always, OnFailure, Never, ExitCode, is Ever."),
        (tfjob(Worker={}), "spec.tfReplicaSpecs.Worker.template is missing."),
        (with_template({}), "template.spec is missing"),
        (with_template({"spec": {"containers": []}}), "TFJob wants one named tensorflow"),
        (with_template({"spec": {"containers": [{"name": "a"}]}}), "TFJob wants one named tensorflow"),
        (with_template({"spec": {"containers": [3]}}), "containers[0] must be a mapping, is 3."),
        (with_template({"spec": {"containers": [{}]}}), "containers[0].name must be text, is null."),
        (with_template(template({"env": {"A": "b"}})), "containers[0].env must be a list"),
        (with_template(template({"resources": {"limits": 1}})), "containers[0].resources.limits must be a mapping"),
        (tfjob() | {"more": float("nan")}, "more must be a value of JSON, is nan."),
    ],
)
def test_what_no_cluster_would_take_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        converted(job)
    assert said in str(caught.value)


def test_a_loop_of_aliases_is_refused() -> None:
    job = tfjob()
    job["spec"]["loop"] = job
    with pytest.raises(CommandError, match="more than 64 levels"):
        converted(job)


def test_notes_that_say_the_same_are_one_line_and_the_worst_come_first() -> None:
    said = [Note("b", What.CHANGED, "it.", "Do."), Note("c", What.NONE, "gone."), Note("d", What.CHANGED, "it.", "Do.")]
    assert lines(said) == ["no counterpart: c: gone.", "changed: b, d: it. Do."]


def test_comments_stay_comments_whatever_they_name() -> None:
    strange = "x\nkind: Pod\u2028y: 1\x85z"
    job = tfjob({"tfReplicaSpecs": {"Worker": {strange: 1}}, strange: 2})
    text = as_yaml([converted(job)])
    assert yaml.safe_load(text) == converted(job).manifest
    assert len([line for line in text.splitlines() if line.startswith("kind:")]) == 1


@pytest.mark.parametrize(
    "text", ["1e-3", "0o17", "0x1F", "1_000", ".5", "y", "N", "yes", "2026-01-02", "null", "1:30", ""]
)
def test_texts_stay_texts_for_every_reader_of_yaml(text: str) -> None:
    """kubectl's library takes more plain words for numbers and truth values than PyYAML."""
    written = as_yaml([converted(tfjob(Worker=replica(env=[{"name": "A", "value": text}])))])
    assert f"value: '{text}'" in written


def test_scripts_stay_readable() -> None:
    job = tfjob(Worker=replica(command=["sh", "-c", "set -e\npython -m train\n"]))
    assert "          - |\n            set -e\n            python -m train\n" in as_yaml([converted(job)])


def two() -> list[Conversion]:
    return [converted(tfjob()), converted(tfjob(PS=None)), converted(tfjob(Chief=replica()))]


def test_several_jobs() -> None:
    jobs = [found.manifest for found in two() if found.manifest]
    assert [d for d in yaml.safe_load_all(as_yaml(two())) if d is not None] == jobs
    assert list(yaml.safe_load_all(as_yaml(two(), comments=False))) == jobs
    assert json.loads(as_json(two())) == {"apiVersion": "v1", "kind": "List", "items": jobs}
    assert json.loads(as_json(two()[:1])) == jobs[0]


def run(*arguments: str, text: str = "") -> Any:
    return CliRunner().invoke(app, ["convert", *arguments], input=text)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([tfjob(), tfjob(Chief=replica())]))
    done = run("-f", str(file), "-f", "-", text=json.dumps(tfjob()))
    assert done.exit_code == 0
    assert len(list(yaml.safe_load_all(done.stdout))) == 3
    assert f"{file}: document 1 (TFJob mnist):\n  behaves differently: spec.runPolicy.backoffLimit: " in done.stderr
    assert "standard input: document 1 (TFJob mnist):\n" in done.stderr
    assert done.stdout.startswith(
        "# TFJob mnist (kubeflow.org/v1) as a PSTrainingJob, by kubectl pstraining convert.\n"
    )
    plain = run("-f", str(file), "--no-comments")
    assert plain.stdout.startswith("apiVersion: pstraining.dev/v1alpha1\n")
    assert json.loads(run("-f", "-", "-o", "json", text=json.dumps(tfjob())).stdout) == converted(tfjob()).manifest


def test_a_list_as_kubectl_prints_it() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [tfjob(), tfjob()]}
    assert len(list(yaml.safe_load_all(run("-f", "-", text=json.dumps(listed)).stdout))) == 2


def test_exit_status_where_something_has_no_counterpart() -> None:
    gang = json.dumps(tfjob({"runPolicy": {"schedulingPolicy": {"queue": "q", "scheduleTimeoutSeconds": 9}}}))
    done = run("-f", "-", text=gang)
    assert done.exit_code == 3
    assert yaml.safe_load(done.stdout)["kind"] == "PSTrainingJob"
    strict = run("-f", "-", "--strict", text=gang)
    assert strict.exit_code == 1
    assert strict.stdout == ""
    assert "no counterpart: spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds" in strict.stderr
    assert "with --strict, no manifest is printed" in str(strict.exception)
    nothing = run("-f", "-", "--no-comments", text=json.dumps(tfjob(PS=None)))
    assert (nothing.exit_code, nothing.stdout) == (3, "")
    assert run("-f", "-", "--strict", text=json.dumps(tfjob())).exit_code == 0


def test_what_is_no_tfjob_is_named_with_its_place() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    done = run("-f", "-", text=yaml.safe_dump_all([tfjob(), claim]))
    assert done.stdout == ""
    assert isinstance(done.exception, CommandError)
    assert str(done.exception).startswith("standard input: document 2 (PersistentVolumeClaim data): It is a Persistent")
    assert str(run("-f", "-", text="---\n").exception) == "The input has no TFJob."


def test_the_page_shows_what_the_command_prints() -> None:
    """The first block of YAML is a TFJob, the next what is made of it."""
    theirs, ours, *_ = (block.split("```")[0] for block in PAGE.read_text().split("```yaml\n")[1:])
    assert run("-f", "-", text=theirs).stdout == ours
