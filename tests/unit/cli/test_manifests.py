"""Files of manifests: several documents and Lists, read as kubectl reads them, and what cannot be read."""

import io
from pathlib import Path

import pytest

from pstraining.cli.errors import CommandError
from pstraining.cli.manifests import STDIN, documents, parsed


def test_documents_are_numbered_as_they_stand() -> None:
    text = (
        "kind: A\n---\n---\nkind: PSTrainingJob\nmetadata: {name: x}\n---\nkind: List\nitems: [{kind: B}, {kind: C}]\n"
    )
    found = list(parsed("f.yaml", text))
    assert [str(d) for d in found] == [
        "f.yaml: document 1 (A)",
        "f.yaml: document 3 (PSTrainingJob x)",
        "f.yaml: document 4.1 (B)",
        "f.yaml: document 4.2 (C)",
    ]
    assert [d.is_job for d in found] == [False, True, False, False]


@pytest.mark.parametrize(
    ("head", "is_job"),
    [
        ("apiVersion: pstraining.dev/v1alpha1\nkind: PSTrainingJobs", True),
        ("apiVersion: other/v1\nkind: pstrainingjob", True),
        ("apiVersion: kubeflow.org/v1\nkind: TFJob", False),
        ("metadata: {}", False),
    ],
)
def test_what_was_perhaps_meant_to_be_a_job_is_one(head: str, is_job: bool) -> None:
    (document,) = parsed("f", head)
    assert document.is_job is is_job


def test_dates_and_keys_are_texts_and_json_is_yaml() -> None:
    (document,) = parsed("f", "a: 2024-01-01\n1: x\ntrue: y\nb: &b {p: 1}\nc: {<<: *b, q: 2}")
    assert document.body == {"a": "2024-01-01", "1": "x", "true": "y", "b": {"p": 1}, "c": {"p": 1, "q": 2}}
    (document,) = parsed("f", '{"kind": "A"}')
    assert document.kind == "A"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {a: 1,\n  a: 2}", "f, line 2, column 3: duplicate key a"),
        ("a: [", "f, line 1, column 5: "),
        ("- a", "f: document 1 is not a Kubernetes object"),
        ("kind: List\nitems: [3]", "f: document 1.1 is not a Kubernetes object"),
        ("? [1]\n: 2", "f, line 1, column 3: "),
        ("a: \x07", "f is not YAML: "),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        list(parsed("f", text))
    assert str(caught.value).startswith(message)


def test_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("kind: A")
    monkeypatch.setattr("sys.stdin", io.StringIO("kind: B"))
    found = documents([tmp_path / "a.yaml", STDIN])
    assert [(d.file, d.kind) for d in found] == [(str(tmp_path / "a.yaml"), "A"), ("standard input", "B")]
    with pytest.raises(CommandError, match=r"none.yaml cannot be read: No such file"):
        documents([tmp_path / "none.yaml"])
    with pytest.raises(CommandError, match="cannot be read: Is a directory"):
        documents([tmp_path])
