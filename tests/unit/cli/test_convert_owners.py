"""Labels and annotations by which tools know the TFJob are left out: the new job is not theirs."""

import pytest

from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind
from tests.support.tfjobs import tfjob


@pytest.mark.parametrize(
    ("kind", "mark"),
    [
        ("annotations", "kubectl.kubernetes.io/last-applied-configuration"),
        ("annotations", "meta.helm.sh/release-name"),
        ("annotations", "meta.helm.sh/release-namespace"),
        ("annotations", "argocd.argoproj.io/tracking-id"),
        ("labels", "argocd.argoproj.io/instance"),
        ("labels", "kustomize.toolkit.fluxcd.io/name"),
        ("labels", "helm.toolkit.fluxcd.io/namespace"),
        ("labels", "applyset.kubernetes.io/part-of"),
        ("labels", "kapp.k14s.io/app"),
        ("annotations", "kapp.k14s.io/original"),
        ("labels", "objectset.rio.cattle.io/hash"),
        ("annotations", "objectset.rio.cattle.io/applied"),
        ("annotations", "config.k8s.io/owning-inventory"),
    ],
)
def test_the_marks_of_tools_are_left_out(kind: str, mark: str) -> None:
    job = tfjob()
    job["metadata"] = {"name": "mnist", kind: {mark: "x"}}
    found = converted(job)
    assert found.manifest is not None
    assert found.manifest["metadata"] == {"name": "mnist"}
    assert (f'metadata.{kind}["{mark}"]', NoteKind.CHANGED) in [(note.path, note.kind) for note in found.notes]
    job["metadata"][kind] = {mark: "x", "team": "a"}
    kept = converted(job).manifest
    assert kept is not None
    assert kept["metadata"][kind] == {"team": "a"}


@pytest.mark.parametrize("exported", [True, False])
def test_the_label_of_an_instance_is_noted_on_exported_objects(exported: bool) -> None:
    """In a file, it may be the author's own, as from a chart."""
    job = tfjob()
    labels = {"app.kubernetes.io/instance": "mnist", "app.kubernetes.io/managed-by": "Helm"}
    job["metadata"] = {"name": "mnist", "labels": labels, **({"uid": "u"} if exported else {})}
    found = converted(job)
    assert found.manifest is not None
    assert found.manifest["metadata"]["labels"] == labels
    said = [note.kind for note in found.notes if "instance" in note.path]
    assert said == ([NoteKind.DIFFERENT] if exported else [])
