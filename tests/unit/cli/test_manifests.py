"""The manifests of -f, read as kubectl reads them: files, folders, patterns, URLs; documents, Lists, JSON, YAML's
scalars.
"""

import base64
import errno
import http.server
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.manifests import Document, documents, parsed
from pstraining.cli.output import yaml_text
from pstraining.cli.reading import sources, texts
from tests.support.command_runner import CliRunner

KUBECTL = [json.loads(line) for line in (Path(__file__).parent / "kubectl_scalars.jsonl").read_text().splitlines()]
"""kubectl 1.34's values of these plain scalars, and of them as keys: `kubectl annotate --local -o json -f`."""


def whole(text: str) -> list[Document]:
    """Return the readable documents of a text."""
    found = [one for one in parsed("f", text) if isinstance(one, Document)]
    assert len(found) == len(list(parsed("f", text)))
    return found


def problems(text: str) -> list[str]:
    """Return the problems of a text."""
    return [str(one) for one in parsed("f", text) if isinstance(one, CommandError)]


def test_scalars_are_read_as_by_kubectl() -> None:
    for row in KUBECTL:
        text = f"kind: A\nd: {row['text']}\n"
        if row.get("refused"):
            assert problems(text), row
        else:
            (document,) = whole(text)
            assert repr(document.body["d"]) == repr(row["is"]), row


def test_keys_are_read_as_by_kubectl_except_fractions() -> None:
    for row in KUBECTL:
        text = f"kind: A\n{row['text']}: v\n"
        if row.get("key") is None:
            continue
        for document in parsed("f", text):
            fraction = "put it in quotes" in str(document) or "not a JSON number" in str(document)
            assert fraction or (isinstance(document, Document) and list(document.body) == ["kind", row["key"]]), row
            assert not fraction or row["key"][0] in "0123456789.", row


def test_written_strings_are_read_unchanged_by_kubectl() -> None:
    """kubectl reads written strings unchanged: PyYAML leaves many of these without quotes, and the table has kubectl's
    value for each.
    """
    words = [row["text"] for row in KUBECTL] + ["", "0X1F", "a: b", "x\ny", " x", "#"]
    (document,) = whole(yaml_text({"kind": "A", "d": words}))
    assert document.body["d"] == words


def test_later_merges_win_as_in_kubectl() -> None:
    (document,) = whole("a: &a {p: 1}\nb: {p: 7, <<: *a}\nc: {<<: *a, p: 7}\nd: {<<: [*a, {p: 2, q: 3}]}\n'<<': 1\n")
    assert document.body == {"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 7}, "d": {"p": 1, "q": 3}, "<<": 1}
    document.body["a"]["p"] = 5
    assert document.body["b"] == {"p": 1}, "aliases are copies"


def test_an_alias_is_the_newest_anchor_of_its_name() -> None:
    (document,) = whole("a: &a 1\nb: *a\nc: &a {d: 2}\ne: *a\nf: {<<: *a}\n")
    assert document.body == {"a": 1, "b": 1, "c": {"d": 2}, "e": {"d": 2}, "f": {"d": 2}}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("{apiVersion: a/v1, kind: BList, items: [{metadata: {}}, {kind: C, apiVersion: d/v1}]}", ["a/v1 B", "d/v1 C"]),
        ("{apiVersion: a/v1, kind: BList, items: [{kind: C}]}", ["None C"]),
        ("{apiVersion: v1, kind: List, items: [{metadata: {}}]}", ["None None"]),
        ("{apiVersion: v1, kind: List, items: null}", []),
        ("{apiVersion: v1, kind: List, items: text}", ["v1 List"]),
    ],
)
def test_items_of_lists_have_the_kind_that_they_have_for_kubectl(text: str, kinds: list[str]) -> None:
    assert [f"{d.body.get('apiVersion')} {d.body.get('kind')}" for d in whole(text)] == kinds


def test_documents_are_numbered_in_order() -> None:
    text = (
        "# first\n---\nkind: A\n---\n---  # none\n---\nkind: PSTrainingJob\nmetadata: {name: x}\n---\nkind: List\n"
        "items: [{kind: B}, {kind: C}]\n---\n# none either\n"
    )
    found = whole(text)
    assert [str(d) for d in found] == [
        "f: document 1 (A)",
        "f: document 4 (PSTrainingJob x)",
        "f: document 5.1 (B)",
        "f: document 5.2 (C)",
    ]
    assert [d.is_job for d in found] == [False, True, False, False]
    assert found[1].lines == {"kind": 7, "metadata": 8}
    assert found[1].text == "kind: PSTrainingJob\nmetadata: {name: x}\n"


@pytest.mark.parametrize(
    ("head", "is_job"),
    [
        ("apiVersion: pstraining.dev/v1alpha1\nkind: PSTrainingJobs", True),
        ("apiVersion: other/v1\nkind: pstrainingjob", True),
        ("apiVersion: kubeflow.org/v1\nkind: TFJob", False),
        ("metadata: {}", False),
    ],
)
def test_a_document_that_resembles_a_job_is_checked_as_one(head: str, is_job: bool) -> None:
    (document,) = whole(head)
    assert document.is_job is is_job


ONE, TWO = {"kind": "A", "n": 1.0, "f": 1e3, "big": 2**64}, {"kind": "B"}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (json.dumps(ONE, indent="\t"), ["A"]),
        (json.dumps(ONE) + json.dumps(TWO), ["A", "B"]),
        (f"\n{json.dumps(ONE)}\n\n{json.dumps(TWO)}\n{json.dumps(TWO)}\n", ["A", "B", "B"]),
        (f"{json.dumps(ONE)}\n---\nkind: B\n---\nkind: C\n", ["A", "B", "C"]),
        ("{kind: A, 'b': [1,],}\n---\nkind: B\n", ["A", "B"]),
        ("kind: A\t# one\nd: {\n\ta: 1}\n", ["A"]),
        ("\ufeffkind: A\r\nd: 1\r\n---\r\nkind: B\r\n", ["A", "B"]),
    ],
)
def test_json_and_tabs(text: str, kinds: list[str]) -> None:
    found = whole(text)
    assert [d.kind for d in found] == kinds
    assert [d.number for d in found] == [str(i + 1) for i in range(len(kinds))]
    if "n" in found[0].body:
        assert repr(found[0].body) == repr({"kind": "A", "n": 1, "f": 1000, "big": float(2**64)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {a: 1,\n  a: 2}", "f, line 2, column 3: duplicate key a"),
        ("kind: A\n---\na: [", "f, line 4, column 1: did not find expected node content"),
        ("- a", "f: document 1 is not a Kubernetes object"),
        (
            "- {op: remove, path: /spec/a}",
            "f: document 1 is not a Kubernetes object, a mapping with apiVersion and kind. It is a JSON patch: pass",
        ),
        (
            '[{"kind": "A"}, {"kind": "B"}]',
            "f: document 1 is not a Kubernetes object, a mapping with apiVersion and kind. It is a list: write its",
        ),
        ("// a job\n{}", "f: document 1 is not a Kubernetes object, a mapping with apiVersion and kind. JSON has no"),
        (
            "local p = 3;\n{a: p + 1, b: [p]: c}",
            "f, line 2, column 3: mapping values are not allowed in this context. It seems to be",
        ),
        ("kind: A\nspec:\n\ta: 1\n", "f, line 3, column 1: found character that cannot start any token. YAML accepts"),
        ("kind: List\nitems: [3]", "f: document 1.1 is not a Kubernetes object"),
        ("? [1]\n: 2", "f, line 1, column 3: "),
        ("a: \x07", "f is not YAML: "),
        ("--- {kind: A}\n", "f, line 1: kubectl accepts --- only on a line of its own, not before {kind: A}"),
        ("kind: A\n...\nkind: B\n", "f, line 3, column 1: did not find expected <document start>"),
        (
            "# A\n%YAML 1.1\n---\nkind: A\n",
            "f, line 3, column 1: did not find expected <document start>. kubectl accepts no directives, such as "
            "%YAML: remove the line",
        ),
        ("a: &a [*a]", "f, line 1, column 4: the value of an anchor contains itself"),
        ("a: &a 3\nb: {<<: *a}", "f, line 1, column 4: << requires a mapping"),
        ("a: " + "[" * 300 + "]" * 300, "f, line 1, column 204: more than 200 levels"),
        ("~: 1", "f, line 1, column 1: ~ is not the name of a field: put it in quotes"),
        ("1.10: x", "f, line 1, column 1: 1.10 is not the name of a field: put it in quotes"),
        ("a: !!int x", "f, line 1, column 4: x is not a value of type int"),
        ("a: !!binary x", "f, line 1, column 4: !!binary is not the base64 of a text"),
        ('{"a": 1, "a": 2}', "f: document 1: duplicate key a"),
        ('{"a": NaN}', "f: document 1: NaN is not a JSON value"),
        ('{"a": "\\ud800"}', "f: document 1: a text has half of a surrogate pair"),
        ('{"a": 1}{"b": 2}\nc: 3', "f, line 2, column 1: Expecting value"),
        ("replicas: {{ .Values.n }}", "f, line 1, column 12: "),
    ],
)
def test_unreadable_manifests(text: str, message: str) -> None:
    (said,) = problems(text)
    assert said.startswith(message)
    assert ("`helm template" in said) is ("{{" in text)


def test_aliases_that_would_exhaust_memory_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MOST_VALUES", 1000)
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    (said,) = problems("\n".join(lines))
    assert "more than 1000 values, with those that aliases repeat" in said


def test_readable_documents_are_read_beside_unreadable_ones() -> None:
    found = list(parsed("f", "kind: A\n---\na: [\n---\nb: ]\n---\nkind: C\n"))
    assert [one.kind if isinstance(one, Document) else str(one)[:9] for one in found] == [
        *("A", "f, line 4", "f, line 5", "C")
    ]


def named(*files: str, recursive: bool = False) -> list[str]:
    return [document.kind for document in documents(files, recursive)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "empty").mkdir()
    for name, kind in {"b.yaml": "B", "a.yml": "A", "c.json": "C", ".d.yaml": "D", "e.txt": "E"}.items():
        (tmp_path / name).write_text(json.dumps({"kind": kind}))
    (tmp_path / "below" / "f.yaml").write_text("kind: F")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_patterns_and_lists(folder: Path) -> None:
    assert named(str(folder)) == ["D", "A", "B", "C"]
    assert named(".", recursive=True) == ["D", "A", "B", "C", "F"]
    assert named("*.y*ml") == ["D", "A", "B"]
    assert named("e.txt", "below") == ["E", "F"]
    assert named("c.json,e.txt") == ["C", "E"]
    (folder / "c,e.yaml").write_text("kind: G")
    assert named("c,e.yaml") == ["G"]
    (folder / "utf16.yaml").write_bytes("kind: H".encode("utf-16"))
    assert named("utf16.yaml") == ["H"]


@pytest.mark.parametrize(("closed", "recursive"), [("below", True), ("", False)])
def test_a_folder_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, recursive: bool
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.yaml").write_text("kind: A")
    (tmp_path / "below" / "b.yaml").write_text("kind: B")
    entries, denied = os.scandir, str(tmp_path / closed)

    def scandir(path: str) -> Any:
        if path == denied:
            raise PermissionError(13, "Permission denied", path)
        return entries(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CommandError, match=re.escape(f"{denied} cannot be read: Permission denied.")):
        named(str(tmp_path), recursive=recursive)


def test_all_unreadable_documents_are_named_at_once(folder: Path) -> None:
    (folder / "bad.yaml").write_bytes(b"a: \xff")
    with pytest.raises(CommandError) as caught:
        documents(["none.yaml", "*.none", "empty", "bad.yaml", "a.yml"])
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [
        *("none.yaml", "*.none", "empty", "bad.yaml")
    ]
    assert "empty has no file that ends in .json, .yaml, .yml. With -R, its subfolders are also read." in str(
        caught.value
    )


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: B")))
    found = documents(["-"])
    assert [(d.file, d.kind) for d in found] == [("standard input", "B")]
    with pytest.raises(CommandError, match="Standard input can be read once"):
        documents(["-", "-"])


class FolderAsInput(io.RawIOBase):
    """Standard input that is a folder, as after `< FOLDER`."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise IsADirectoryError(errno.EISDIR, "Is a directory")


def test_standard_input_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(FolderAsInput())))
    with pytest.raises(CommandError, match="standard input cannot be read: Is a directory"):
        documents(["-"])


JOB = {
    **{"apiVersion": "pstraining.dev/v1alpha1", "kind": "PSTrainingJob"},
    "spec": {
        "ps": {"replicas": 1},
        "worker": {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "t", "image": "i", "command": ["true"]}]}},
        },
    },
}


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["submit", "--dry-run", "client"]], ids=lambda c: c[0])
def test_commands_read_folders_of_json_with_tabs(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "below").mkdir()
    jobs = [json.dumps(JOB | {"metadata": {"name": name}}, indent="\t") for name in ("one", "two")]
    (tmp_path / "below" / "jobs.json").write_text("\n".join(jobs))
    assert CliRunner().invoke(app, [*command, "-f", str(tmp_path)]).exit_code == 1
    done = CliRunner().invoke(app, [*command, "-R", "-f", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "one" in done.stdout
    assert "two" in done.stdout


class Server(http.server.BaseHTTPRequestHandler):
    """Answers /busy with status 503 twice, and then normally."""

    asked: ClassVar[list[str]] = []
    logins: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.logins.append(self.headers.get("Authorization", ""))
        code = 404 if self.path == "/none" else 503 if self.asked[:-1].count(self.path) < self.busy() else 200
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b"kind: A")

    def busy(self) -> int:
        return {"/busy": 2, "/dead": 9}.get(self.path, 0)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sources, "_PAUSE_SECONDS", 0)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Server, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_login_in_a_url_is_sent_and_not_shown(url: str) -> None:
    with_login = [url.replace("//", f"//{login}@") for login in ("ci:t%40ken", "token")]
    assert {d.file for d in documents([f"{one}/a" for one in with_login])} == {f"{url}/a"}
    assert Server.logins[-2:] == [f"Basic {base64.b64encode(pair).decode()}" for pair in (b"ci:t@ken", b"token:")]
    with pytest.raises(CommandError, match=f"^{url}/none cannot be read"):
        documents([f"{with_login[0]}/none"])


def test_urls(url: str) -> None:
    assert named(f"{url}/a,b", f"{url}/busy") == ["A", "A"]
    assert named(f"{url}/größe 1.yaml?a=é&b=%20/", f"{url}/%C3%A9#part") == ["A", "A"], "as kubectl escapes them"
    assert Server.asked[-2:] == ["/gr%C3%B6%C3%9Fe%201.yaml?a=%C3%A9&b=%20/", "/%C3%A9"]
    with pytest.raises(CommandError) as caught:
        documents([f"{url}/none", f"{url}/dead", "http://127.0.0.1:1/x"])
    assert [line.rpartition(": ")[2] for line in str(caught.value).splitlines()] == [
        *("the server responded with 404 Not Found.", "the server responded with 503 Service Unavailable."),
        "[Errno 111] Connection refused.",
    ]
