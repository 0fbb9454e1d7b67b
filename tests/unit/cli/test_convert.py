"""The command that converts TFJobs to PSTrainingJobs: its errors and its output."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.manifests import Document, documents, parsed
from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import Note, NoteKind, lines
from pstraining.cli.tfjob.results import Converted, as_json, as_yaml, convert_document, convert_documents
from tests.support.command_runner import CliRunner
from tests.support.tfjobs import CONTAINER, replica, template, tfjob

PAGE = Path(__file__).parents[3] / "docs" / "users" / "move-from-tfjob.md"


def without(job: dict[str, Any], *path: str) -> dict[str, Any]:
    found = copy.deepcopy(job)
    below = found
    for step in path[:-1]:
        below = below[step]
    del below[path[-1]]
    return found


def made(job: dict[str, Any]) -> Converted:
    """Return the conversion of a TFJob that is a separate document."""
    return convert_document(Document("f", "1", job))


def with_template(given: Any) -> dict[str, Any]:
    return tfjob(Worker={"template": given})


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (without(tfjob(), "kind"), "kind: it is missing. Write kind: TFJob there."),
        (tfjob() | {"kind": "TfJob"}, "kind: it is TfJob. Write kind: TFJob there."),
        (
            tfjob() | {"apiVersion": "kubeflow.org/v2"},
            "apiVersion: it is kubeflow.org/v2. Write apiVersion: kubeflow.org/v1",
        ),
        (tfjob() | {"apiVersion": "kubeflow.org/v1alpha1"}, "v1alpha1 has other fields: a list spec.replicaSpecs"),
        (tfjob() | {"spec": 3}, "spec: it must be a mapping, is 3."),
        (tfjob() | {"metadata": {}}, "metadata.name: none is not a valid name"),
        (tfjob() | {"metadata": {"name": "1x"}}, "metadata.name: 1x is not a valid name"),
        (tfjob({"tfReplicaSpecs": {"Scheduler": replica()}}), "Scheduler: a TFJob has Chief or Master, PS, Worker and"),
        (tfjob(PS=None, Worker=None), "spec.tfReplicaSpecs: it names no role that can be read"),
        (tfjob(Chief=replica(), Master=replica()), "spec.tfReplicaSpecs.Master: spec.tfReplicaSpecs.Chief is the same"),
        (
            tfjob({"runPolicy": {"backoffLimit": "3"}}),
            'spec.runPolicy.backoffLimit: it must be a whole number, is "3".',
        ),
        (tfjob({"runPolicy": {"backoffLimit": -3}}), "spec.runPolicy.backoffLimit: it must not be negative, is -3."),
        (tfjob({"runPolicy": {"cleanPodPolicy": "Some"}}), "it must be one of All, Running, None, is Some."),
        (tfjob({"successPolicy": "Any"}), "spec.successPolicy: it must be AllWorkers"),
        (tfjob({"enableDynamicWorker": 1}), "spec.enableDynamicWorker: it must be true or false, is 1."),
        (tfjob(Worker=replica(True)), "spec.tfReplicaSpecs.Worker.replicas: it must be a whole number, is true."),
        (tfjob(Worker=replica(-1)), "spec.tfReplicaSpecs.Worker.replicas: it must not be negative, is -1."),
        (tfjob(Worker=replica(policy="Ever")), "it must be one of Always, OnFailure, Never, ExitCode, is Ever."),
        (tfjob(Worker={}), "spec.tfReplicaSpecs.Worker.template: it is missing."),
        (with_template({}), "template.spec: it is missing"),
        (with_template({"spec": {"containers": []}}), "TFJob requires a container tensorflow"),
        (with_template({"spec": {"containers": [{"name": "a"}]}}), "TFJob requires a container tensorflow"),
        (with_template({"spec": {"containers": [3]}}), "containers[0]: it must be a mapping, is 3."),
        (with_template({"spec": {"containers": [{}]}}), "containers[0].name: it must be text, is null."),
        (with_template(template({"env": {"A": "b"}})), "containers[0].env: it must be a list"),
        (with_template(template({"env": ["A=b"]})), 'containers[0].env[0]: it must be a mapping, is "A=b".'),
        (with_template(template({"resources": {"limits": 1}})), "containers[0].resources.limits: it must be a mapping"),
        (tfjob() | {"more": float("nan")}, "refused: more: it must be a JSON value, is nan."),
    ],
)
def test_a_tfjob_that_no_cluster_would_accept_is_rejected(job: dict[str, Any], said: str) -> None:
    found = converted(job)
    assert found.manifest is None
    assert any(said in line for line in lines(found.notes)), lines(found.notes)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"name": 123}, "metadata.name: 123 is not a valid name: use lower-case letters, digits and '-', and start"),
        ({"generateName": 1.5}, "metadata.name: 1.5 is not a valid name"),
        ({"name": True}, "metadata.name: it must be text, is true. Put it in quotes."),
        ({}, "metadata.name: none is not a valid name"),
    ],
)
def test_a_wrong_name_has_one_note(metadata: dict[str, Any], said: str) -> None:
    (line,) = [line for line in lines(made(tfjob() | {"metadata": metadata}).notes) if "metadata" in line]
    assert line.startswith(f"refused: {said}")


def test_all_obstacles_are_reported_in_one_run() -> None:
    worker = {
        "replicas": "${N}",
        "restartPolicy": "Ever",
        "template": template({"resouces": {}, "env": [{"value": 1}]}),
    }
    job = tfjob({"runPolicy": {"backoffLimit": -1, "suspend": "yes"}}, Worker=worker, PS={}, Boss=replica())
    found = converted(job | {"metadata": {"name": "$JOB"}})
    assert [note.path for note in found.notes if note.refused] == [
        "metadata.name",
        *("spec.tfReplicaSpecs.PS.template", "spec.tfReplicaSpecs.Worker.replicas"),
        *("spec.tfReplicaSpecs.Worker.restartPolicy",),
        *("spec.tfReplicaSpecs.Worker.template.spec.containers[0].env[0].name", "spec.tfReplicaSpecs.Boss"),
        *("spec.runPolicy.suspend", "spec.runPolicy.backoffLimit"),
    ]
    hints = [note.todo for note in found.notes if "placeholder" in note.todo]
    assert [hint.partition(":")[0] for hint in hints] == [
        "$JOB is a placeholder for envsubst",
        "${N} is a placeholder for envsubst",
    ]


def test_a_loop_of_aliases_is_rejected() -> None:
    job = tfjob()
    job["spec"]["loop"] = job
    assert "more than 64 levels" in str(converted(job).notes)


def test_equal_notes_are_merged_and_the_worst_come_first() -> None:
    said = [
        Note("b", NoteKind.CHANGED, "it.", "Do."),
        Note("c", NoteKind.NONE, "gone."),
        Note("d", NoteKind.CHANGED, "it.", "Do."),
    ]
    assert lines(said) == ["no counterpart: c: gone.", "changed: b, d: it. Do."]


@pytest.mark.parametrize("character", ["\a", "\x1b", "\0", "\x7f", "\x80", "\u2028", "\ufeff", "\ufffe"])
def test_comments_have_no_characters_that_yaml_does_not_allow(character: str) -> None:
    """Such a file could not be read."""
    job, other = tfjob(), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"a{character}b"}}
    job["metadata"]["annotations"] = {f"kueue.x-k8s.io/{character}b": "x"}
    found = convert_documents(
        [Document("f", "1", job), Document("f", "2", {**other, "data": {"a": "tfjobs.kubeflow.org"}})]
    )
    assert [one.body for one in parsed("f", as_yaml(found)) if isinstance(one, Document)] == [one.body for one in found]


def test_comments_stay_comments() -> None:
    strange = "x\nkind: Pod\u2028y: 1\x85z"
    job = tfjob({"tfReplicaSpecs": {"Worker": {strange: 1}}, strange: 2})
    text = as_yaml([made(job)])
    assert yaml.safe_load(text) == converted(job).manifest
    assert len([line for line in text.splitlines() if line.startswith("kind:")]) == 1


@pytest.mark.parametrize(
    "text", ["1e-3", "0o17", "0x1F", "1_000", ".5", "y", "N", "yes", "2026-01-02", "null", "1:30", ""]
)
def test_strings_stay_strings_for_every_yaml_parser(text: str) -> None:
    """Strings stay strings for every YAML parser: kubectl's library reads more plain words as numbers and Booleans than
    PyYAML.
    """
    written = as_yaml([made(tfjob(Worker=replica(env=[{"name": "A", "value": text}])))])
    assert f"value: '{text}'" in written


@pytest.mark.parametrize("text", ["a\x85b", "x\na\x85b\n", "x\n\x85", "a\u2028b", "\ufeffa\n"])
def test_rare_line_breaks_stay_as_they_are(text: str) -> None:
    (again,) = parsed("f", as_yaml([made(tfjob(Worker=replica(args=[text])))]))
    assert isinstance(again, Document)
    assert again.body["spec"]["worker"]["template"]["spec"]["containers"][0]["args"] == [text]


def test_scripts_stay_readable() -> None:
    job = tfjob(Worker=replica(command=["sh", "-c", "set -e\npython -m train\n"]))
    assert "          - |\n            set -e\n            python -m train\n" in as_yaml([made(job)])


def two() -> list[Converted]:
    return [made(tfjob()), made(tfjob(PS=None)), made(tfjob(Chief=replica()))]


def test_several_jobs() -> None:
    jobs = [found.body for found in two() if found.body]
    assert [d for d in yaml.safe_load_all(as_yaml(two())) if d is not None] == jobs
    assert list(yaml.safe_load_all(as_yaml(two(), comments=False))) == jobs
    assert json.loads(as_json(two())) == {"apiVersion": "v1", "kind": "List", "items": jobs}
    assert json.loads(as_json(two()[:1])) == jobs[0]


def run(*arguments: str, text: str = "") -> Any:
    return CliRunner().invoke(app, ["convert", *arguments], input=text)


def test_two_jobs_of_one_name_are_named() -> None:
    elsewhere = tfjob() | {"metadata": {"name": "mnist", "namespace": "team"}}
    generated = tfjob() | {"metadata": {"generateName": "mnist-"}}
    ours = made(tfjob()).body or {}
    given = [tfjob(), elsewhere, generated, tfjob(), generated, elsewhere, ours]
    found = convert_documents([Document("f", str(number), job) for number, job in enumerate(given, 1)])
    noted = {one.document.number: note.message for one in found for note in one.notes if note.path == "metadata.name"}
    assert [(number, message.partition(" is the name")[2][:35]) for number, message in noted.items()] == [
        ("4", " of the job of f: document 1 (TFJob"),
        ("6", " of the job of f: document 2 (TFJob"),
        ("7", " of the job of f: document 1 (TFJob"),
    ]


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


OTHERS = """\
# the data
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}  # shared
"""


def test_other_objects_are_passed_through_unchanged() -> None:
    text = f"{OTHERS}---\n{yaml.safe_dump(tfjob())}---\napiVersion: v1\nkind: Service\nmetadata: {{name: board}}\n"
    done = run("-f", "-", "--no-comments", text=text)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{OTHERS}---\napiVersion: pstraining.dev/v1alpha1\n")
    assert done.stdout.endswith("---\napiVersion: v1\nkind: Service\nmetadata: {name: board}\n")
    assert "standard input: document 1 (PersistentVolumeClaim data): passed on\n" in done.stderr
    listed = json.loads(run("-f", "-", "-o", "json", text=text).stdout)
    assert [item["kind"] for item in listed["items"]] == ["PersistentVolumeClaim", "PSTrainingJob", "Service"]
    only = run("-f", "-", text=OTHERS).exception
    assert str(only) == "The input has no TFJob, only PersistentVolumeClaim."
    assert str(run("-f", "-", text="---\n").exception) == "The input has no TFJob."


def test_labels_of_kueue_have_their_effect_on_the_job() -> None:
    job = tfjob()
    known = {f"kueue.x-k8s.io/{name}": "v" for name in ("queue-name", "priority-class", "max-exec-time-seconds")}
    job["metadata"]["labels"] = known | {"kueue.x-k8s.io/other": "v"}
    found = [n for n in converted(job).notes if "kueue" in n.path]
    assert [(n.path, n.kind) for n in found] == [
        ('metadata.labels["kueue.x-k8s.io/queue-name"]', NoteKind.DIFFERENT),
        ('metadata.labels["kueue.x-k8s.io/other"]', NoteKind.NONE),
    ]
    assert found[0].message.startswith("the job waits in this queue if the operator has kueue.enabled")


def test_nothing_is_printed_after_a_rejection_and_every_rejection_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([tfjob(), tfjob(Worker={})]))
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "c.yaml").write_text("replicas: 3")
    done = run("-f", str(tmp_path), "-f", "none")
    assert (done.exit_code, done.stdout) == (1, "")
    assert isinstance(done.exception, CommandError)
    assert str(done.exception) == "4 documents must be changed first, as above: no manifest is printed."
    assert (
        f"{tmp_path}/a.yaml: document 2 (TFJob mnist):\n  refused: spec.tfReplicaSpecs.Worker.template: " in done.stderr
    )
    assert f"refused: {tmp_path}/b.yaml, line 2" in done.stderr
    assert f"{tmp_path}/c.yaml: document 1 (no kind):\n  refused: it is not a Kubernetes object" in done.stderr
    assert "refused: none cannot be read" in done.stderr


def test_report(tmp_path: Path) -> None:
    queue = tfjob({"runPolicy": {"schedulingPolicy": {"queue": "q", "scheduleTimeoutSeconds": 9}}})
    plain = tfjob(PS=replica(command=["server"], policy="OnFailure"))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([queue, {"apiVersion": "v1", "kind": "Service"}]))
    (tmp_path / "b.json").write_text(json.dumps(tfjob(Worker={})))
    (tmp_path / "c.json").write_text(json.dumps(plain | {"metadata": {"name": "mnist", "namespace": "team"}}))
    done = run("-f", str(tmp_path), "--report")
    assert done.exit_code == 1
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        *(["FILE", "DOCUMENT", "KIND", "NAME", "RESULT"] + [str(what).upper() for what in NoteKind],),
        [f"{tmp_path}/a.yaml", "1", "TFJob", "mnist", "converted, incomplete", "1", "1", "1"],
        [f"{tmp_path}/a.yaml", "2", "Service", "passed on"],
        [f"{tmp_path}/b.json", "1", "TFJob", "mnist", "refused", "1", "1", "1", "1"],
        [f"{tmp_path}/c.json", "1", "TFJob", "mnist", "converted, with notes", "1"],
    ]
    found = json.loads(run("-f", str(tmp_path), "--report", "-o", "json").stdout)
    assert [one["result"] for one in found["documents"]] == [
        *("converted, incomplete", "passed on", "refused", "converted, with notes")
    ]
    assert yaml.safe_load(run("-f", str(tmp_path), "--report", "-o", "yaml").stdout) == found
    assert found["documents"][2]["notes"][0] == {
        "field": "spec.tfReplicaSpecs.Worker.template",
        "what": "refused",
        "message": "it is missing.",
        "todo": "",
    }


def test_command_is_the_entrypoint_of_images() -> None:
    job = json.dumps(tfjob(Worker=replica(command=None, args=["--lr", "1"])))
    done = run("-f", "-", "--command", "python -m 'my train'", text=job)
    assert done.exit_code == 0
    container = yaml.safe_load(done.stdout)["spec"]["worker"]["template"]["spec"]["containers"][0]
    assert (container["command"], container["args"]) == (["python", "-m", "my train"], ["--lr", "1"])
    assert "changed: spec.tfReplicaSpecs.Worker.template.spec.containers[0].command: it is not set: --co" in done.stderr
    assert (
        yaml.safe_load(done.stdout)["spec"]["ps"]["template"]["spec"]["containers"][0]["command"]
        == CONTAINER["command"]
    )
    assert run("-f", "-", text=job).exit_code == 3
    assert str(run("-f", "-", "--command", "'x", text=job).exception) == "--command: No closing quotation"


def test_lines_of_older_versions_are_named(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("# old\n---\nkind: TFJob\n\napiVersion: kubeflow.org/v1alpha1\nmetadata: {name: x}\nspec: {}\n")
    (document,) = documents([str(file)])
    (note,) = convert_document(document).notes
    assert note.message.startswith("line 5: kubeflow.org/v1alpha1 has other fields")
    file.write_text("kind: tfjob\napiVersion: kubeflow.org/v1alpha2\nmetadata: {name: x}\nspec: {tfReplicaSpecs: {}}\n")
    assert [n.message.partition(":")[0] for n in convert_document(documents([str(file)])[0]).notes][:1] == ["line 1"]


def test_the_page_shows_what_the_command_prints() -> None:
    """The page shows the command's output: the first block of YAML is a TFJob, and the next one its conversion."""
    theirs, ours, *_ = (block.split("```")[0] for block in PAGE.read_text().split("```yaml\n")[1:])
    assert run("-f", "-", text=theirs).stdout == ours
