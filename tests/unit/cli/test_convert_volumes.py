"""Volumes whose files last as long as a pod: a chief or an evaluator that is restarted has a new pod here."""

from typing import Any

import pytest

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind
from tests.support.tfjobs import template, tfjob

VOLUMES: list[dict[str, Any]] = [
    {"name": "shm", "emptyDir": {"medium": "Memory"}},
    {"name": "model", "emptyDir": {}},
    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
]


@pytest.mark.parametrize("role", ["Chief", "Evaluator"])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never", "ExitCode"])
def test_files_that_last_until_a_restart_are_named(role: str, policy: str) -> None:
    one = {"restartPolicy": policy, "template": template({"command": ["own"]}, volumes=VOLUMES)}
    notes = converted(tfjob(**{role: one})).notes
    path = f"spec.tfReplicaSpecs.{role}.template.spec.volumes"
    said = [note.path for note in notes if note.kind is NoteKind.DIFFERENT and path in note.path]
    assert said == ([f"{path}[1].emptyDir", f"{path}[2].ephemeral"] if policy in ("Always", "OnFailure") else [])
