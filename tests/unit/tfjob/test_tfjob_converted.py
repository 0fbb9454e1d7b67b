"""The conversion of every example of a TFJob is the reviewed one, satisfies the API, and runs to the documented end."""

from typing import Any

import pytest
import yaml

from pstraining.cli.tfjob.notes import NoteKind
from pstraining.cli.validation.schema import validate
from pstraining.cli.validation.templates import refused
from tests.support import builders
from tests.tfjob.converted import EXAMPLES, EXPECTED, FOLDER, Example, expected_text
from tests.tfjob.simulated import play, templates

RUNNABLE = [e for e in EXAMPLES if e.play]


def named(example: Example) -> str:
    return example.name


def test_every_file_belongs_to_an_example() -> None:
    assert len(EXAMPLES) >= 15
    names = {e.name for e in EXAMPLES}
    assert {p.stem for p in (FOLDER / "tfjobs").iterdir()} == names == {p.stem for p in EXPECTED.iterdir()}


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_the_converted_jobs_are_the_reviewed_ones(example: Example) -> None:
    assert expected_text(example) == example.expected.read_text(), "run `make generate` and read the change"


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_a_missing_counterpart_is_reported(example: Example) -> None:
    assert any(note.kind is NoteKind.NONE for note in example.conversion().notes) is not example.complete
    assert example.play or not (example.real or example.quick)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.conversion().manifest], ids=named)
def test_converted_jobs_follow_the_rules_of_the_api(example: Example) -> None:
    manifest = yaml.safe_load(example.expected.read_text())
    assert manifest == example.conversion().manifest
    said = [str(finding) for finding in validate(manifest)]
    assert all(example.refused in s for s in said) if example.refused else not said, said
    assert bool(said) is bool(example.refused)
    assert example.refused or refused(manifest) == []


@pytest.mark.parametrize("example", RUNNABLE, ids=named)
def test_a_converted_job_behaves_like_the_tfjob(example: Example) -> None:
    play(example.case())


@pytest.mark.parametrize("example", RUNNABLE, ids=named)
def test_roles_run_what_they_ran(example: Example) -> None:
    """Roles run the same containers, devices and resources as before, also those whose template is the worker's."""
    made = templates(example.case())
    for title, replicas in example.tfjob()["spec"]["tfReplicaSpecs"].items():
        role = {"master": "chief"}.get(title.lower(), title.lower())
        for theirs, ours in zip(containers(replicas["template"]), containers(made[role]), strict=True):
            assert ours["image"] == theirs["image"]
            assert resources(ours) == resources(theirs)
            command = [*theirs.get("command", []), *theirs.get("args", [])]
            assert [*ours.get("command", []), *ours.get("args", [])][-len(command) or None :] == command


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"]["containers"], *template["spec"].get("initContainers", [])]


def resources(container: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in (container.get("resources") or {}).items() if v}


def test_the_models_read_converted_jobs() -> None:
    for example in RUNNABLE:
        manifest = builders.deep_merge(builders.job(), example.conversion().manifest or {})
        assert builders.typed(manifest).metadata.name == example.name
