"""`report`: the archive's content, its omissions, and its list of unreadable resources."""

import hashlib
import io
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining.cli.commands import doctor, report
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.main import app
from pstraining.redaction import LEFT_OUT, Redactor
from tests.support.command_runner import CliRunner
from tests.support.installation import deployment
from tests.support.job_cluster import JobCluster, Object
from tests.support.simulation import running

SECRET = "correct-horse-battery"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl"


class Reported(JobCluster):
    """Has a job whose program has a password, an operator, and unreadable resources."""

    def __init__(self, denied: tuple[str, ...] = ()) -> None:
        world = running()
        assert world.job is not None
        env = [{"name": "DB_PASSWORD", "value": SECRET}, {"name": "LEARNING_RATE", "value": "0.1"}]
        world.job["spec"]["worker"]["template"]["spec"]["containers"][0]["env"] = env
        world.end("worker", 1, 137, "Killed")
        for pod in world.pods.values():
            pod["spec"]["containers"][0]["env"] = env
        super().__init__(world)
        self.denied = denied
        self.queries: list[tuple[str, str]] = []

    def _may(self, what: str) -> None:
        if what in self.denied:
            raise DeniedError(f"You (eve) may not read {what}.", 403)

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self._may("log")
        self.queries.append((pod, query.get("previous", "")))
        if pod.startswith("digits-chief"):
            raise RequestError("The container is gone.", 404)
        return iter((f"connects with {SECRET}", f"token={TOKEN}", "step 1"))

    def listed(self, path: str, **query: str) -> list[Object]:
        if path.endswith("/events"):
            self._may("events")
            (pod, *_) = self.world.pods.values()
            uid, old = pod["metadata"]["uid"], "digits-worker-0-gone"
            about = ({"uid": uid}, {"name": old}, {"name": "digits-other-worker-0-x"}, {"name": "another"})
            return [{"metadata": {"name": f"e{n}"}, "involvedObject": o} for n, o in enumerate(about)]
        if path.endswith("deployments") and "part-of" in str(query):
            self._may("operators")
            return [deployment()]
        if path.startswith("/api/v1/namespaces/sys/pods"):
            return [{"metadata": {"name": "op-1", "namespace": "sys"}, "status": {}}]
        if any(group in path for group in ("kueue.x-k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh")):
            raise RequestError("It is not installed.", 404)
        return super().listed(path, **query)

    def read(self, path: str) -> Any:
        if path.startswith("/api/v1/nodes"):
            self._may("nodes")
            return {"metadata": {"name": path.rpartition("/")[2]}, "status": {"images": ["many"], "conditions": []}}
        return {"gitVersion": "v1.34.1"} if path == "/version" else None

    def events(self, namespace: str, uid: str) -> list[Object]:
        return []

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 10) -> str:
        raise RequestError("connection refused", 503)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return at once, without counting steps."""
    monkeypatch.setattr(doctor, "measure", lambda *_: {"job": None})


def written(cluster: Reported, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(report, "KubeconfigClient", lambda context: cluster)
    done = CliRunner().invoke(app, ["report", "digits", "--file", "report.tar.gz"])
    assert done.exception is None, done.exception
    content = Path("report.tar.gz").read_bytes()
    Path("report.tar.gz").unlink()
    return content


def unpacked(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            member.name.removeprefix("default-digits/"): found.read().decode()
            for member in archive
            if (found := archive.extractfile(member)) is not None
        }


def test_a_report_contains_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = Reported()
    found = unpacked(written(cluster, monkeypatch))
    contents = yaml.safe_load(found["contents.yaml"])
    assert {*contents["files"]} == {*found} - {"contents.yaml"}
    assert {"job.yaml", "events.yaml", "status.yaml", "doctor.yaml", "version.yaml", "nodes/node-1.yaml"} <= {*found}
    assert {"children/StatefulSet/digits-ps.yaml", "operators/sys/op/deployment.yaml"} <= {*found}
    assert "operators/sys/op/op-1/pod.yaml" in found
    (worker,) = (name for name in cluster.world.pods if "-worker-1-" in name)
    assert found[f"pods/{worker}/tensorflow.log"].splitlines()[-1] == "step 1"
    assert (worker, "true") in cluster.queries, "it was restarted"
    assert f"pods/{worker}/tensorflow.previous.log" in found
    assert [e["metadata"]["name"] for e in yaml.safe_load(found["events.yaml"])["items"]] == ["e0", "e1"]
    (chief,) = (name for name in cluster.world.pods if "-chief-" in name)
    assert contents["notRead"] == [
        {"what": f"the log of {chief}, container tensorflow", "why": "The container is gone."}
    ]
    assert "many" not in found["nodes/node-1.yaml"]


def test_a_report_contains_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = unpacked(written(Reported(), monkeypatch))
    assert not [path for path, text in found.items() if SECRET in text or TOKEN in text]
    env = yaml.safe_load(found["job.yaml"])["spec"]["worker"]["template"]["spec"]["containers"][0]["env"]
    assert env == [{"name": "DB_PASSWORD", "value": LEFT_OUT}, {"name": "LEARNING_RATE", "value": "0.1"}]
    assert not [path for path in found if "Secret" in path]


def test_the_same_state_is_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digests = {hashlib.sha256(written(Reported(), monkeypatch)).hexdigest() for _ in range(2)}
    assert len(digests) == 1


def test_unreadable_resources_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = unpacked(written(Reported(("log", "events", "nodes", "operators")), monkeypatch))
    said = [left["what"] for left in yaml.safe_load(found["contents.yaml"])["notRead"]]
    assert said[:3] == ["operators and all further operators", "events and all further events", said[2]]
    assert said[2].startswith("the log of digits-chief-")
    assert said[2].endswith("and all further logs in default")
    assert said[3] == "node node-1 and all further nodes"
    assert "job.yaml" in found


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = Reported()
    monkeypatch.setattr(report, "KubeconfigClient", lambda context: cluster)
    assert (
        "default-digits.tar.gz: written; 1 part could not be read"
        in CliRunner().invoke(app, ["report", "digits"]).output
    )
    again = CliRunner().invoke(app, ["report", "digits"])
    assert str(again.exception) == "default-digits.tar.gz exists: remove it, or write to another --file."
    away = CliRunner().invoke(app, ["report", "digits", "--file", "none/r.tar.gz"])
    assert str(away.exception) == "none/r.tar.gz cannot be written: No such file or directory."
    piped = CliRunner().invoke(app, ["report", "digits", "--file", "-"])
    assert "job.yaml" in unpacked(piped.stdout_bytes), "and nothing else"
    monkeypatch.setattr(cluster, "pods", lambda *_: 1 / 0)
    assert isinstance(CliRunner().invoke(app, ["report", "digits", "--file", "r.tar.gz"]).exception, ZeroDivisionError)
    assert not Path("r.tar.gz").exists(), "half an archive is none"
    with pytest.raises(CommandError, match="There is no PSTrainingJob digit "):
        report.report("digit")


def test_an_archive_is_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "KubeconfigClient", lambda context: Reported())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(CommandError, match=r"^--file -: the archive is not text for a terminal"):
        report.report("digits", file="-")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("postgres://bob:hunter2hunter2@db/x", f"postgres://bob:{LEFT_OUT}@db/x"),
        (f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {LEFT_OUT}"),
        ("--api-key=abcdefgh --lr 0.1", f"--api-key={LEFT_OUT} --lr 0.1"),
        ("key AKIAABCDEFGHIJKLMNOP", f"key {LEFT_OUT}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx", f"{LEFT_OUT}\nx"),
        ('secret "keys" not found', 'secret "keys" not found'),
        ("the token expired at 12:00", "the token expired at 12:00"),
        ("loss: 0.25, tokens: 1000000", "loss: 0.25, tokens: 1000000"),
        ("https://host:8443/a@b", "https://host:8443/a@b"),
        ("postgres://bob:hunter2@hunter2@db/x", f"postgres://bob:{LEFT_OUT}@db/x"),
        ("GET https://b/k?X-Amz-Signature=aeeed9bbccd4&x=1", f"GET https://b/k?X-Amz-Signature={LEFT_OUT}&x=1"),
        ("https://b/k?a=1&X-Goog-Signature=aeeed9bbccd4", f"https://b/k?a=1&X-Goog-Signature={LEFT_OUT}"),
        ("https://acc.blob/c?sv=2022&sig=abc%2Bxyz%3D", f"https://acc.blob/c?sv=2022&sig={LEFT_OUT}"),
        ("AccountName=a;AccountKey=abcdefghijkl==;x", f"AccountName=a;AccountKey={LEFT_OUT};x"),
    ],
)
def test_texts(text: str, left: str) -> None:
    assert Redactor().text(text) == left


def env(name: str, value: str) -> str:
    found = Redactor().redacted({"env": [{"name": name, "value": value}]})
    return str(found["env"][0]["value"])


def test_variables_and_arguments() -> None:
    for name in (
        "DB_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "API_KEY",
        "WANDB_API_KEY",
        "PGPASS",
        "AUTH",
        "apiKey",
    ):
        assert env(name, "abcdefgh") == LEFT_OUT, name
    for name in (
        "LEARNING_RATE",
        "TOKENIZERS_PARALLELISM",
        "TOKEN_FILE",
        "KEYS",
        "AUTHOR",
        "SECRET_PATH",
        "PSTRAINING_TASK_TYPE",
    ):
        assert env(name, "abcdefgh") == "abcdefgh", name
    assert env("HF_TOKEN", "") == ""
    args = Redactor().redacted({"args": ["--db-password", "short", "--steps", "5"]})
    assert args == {"args": ["--db-password", LEFT_OUT, "--steps", "5"]}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}
    assert Redactor().redacted({"managedFields": [], "annotations": applied}) == {"annotations": {"a": "b"}}
    reference = {"name": "DB_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}
    assert Redactor().redacted(reference) == reference, "names the Secret, without its content"
    learned = Redactor()
    learned.learn([{"name": "TOKEN", "value": "100000"}, {"name": "SECRET", "value": "abc"}])
    learned.learn({"args": ["--db-password", "hunter2hunter2", "--use-token", "--verbose"]})
    assert learned.text("argv ['--db-password', 'hunter2hunter2']") == f"argv ['--db-password', '{LEFT_OUT}']"
    assert learned.text("runs with --verbose") == "runs with --verbose", "another argument"
    assert learned.text("step 100000 of abc") == "step 100000 of abc", "numbers and short words also occur elsewhere"
