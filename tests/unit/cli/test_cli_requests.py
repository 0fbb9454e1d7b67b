"""The requests that commands send, as an API server sees them, and how its answers are told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from pstraining.cli.cluster import KubeconfigCluster, existing
from pstraining.cli.errors import CommandError, DeniedError
from tests.support.builders import job

JOBS = "/apis/pstraining.dev/v1alpha1/namespaces/default/pstrainingjobs"


class Server(ThreadingHTTPServer):
    """Answers what it was told to, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, dict[str, list[str]], str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.headers.get("Content-Type", "")
        self.server.asked.append((self.command, url.path, parse_qs(url.query), kind, json.loads(body or "null")))
        code, said = self.server.answers.get((self.command, url.path), [(404, "404 page not found")])[0]
        if len(self.server.answers.get((self.command, url.path), ())) > 1:
            self.server.answers[self.command, url.path].pop(0)
        text = said if isinstance(said, str) else json.dumps(said)
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = answer  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.01,)).start()
        yield found
        found.shutdown()


def kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "config"
    one = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }
    path.write_text(yaml.safe_dump(one))
    return path


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeconfigCluster:
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig(tmp_path, server.server_port))
    )
    return KubeconfigCluster()


def test_an_apply_is_strict_and_has_a_field_manager(server: Server, cluster: KubeconfigCluster) -> None:
    server.answers["PATCH", f"{JOBS}/digits"] = [(200, job())]
    assert cluster.apply(job(), dry_run=True, force=True) == job()
    cluster.apply(job())
    query = {"fieldManager": ["kubectl-pstraining"], "fieldValidation": ["Strict"]}
    apply = "application/apply-patch+yaml"
    assert server.asked == [
        ("PATCH", f"{JOBS}/digits", {**query, "dryRun": ["All"], "force": ["true"]}, apply, job()),
        ("PATCH", f"{JOBS}/digits", query, apply, job()),
    ]


def test_changes_are_merge_patches(server: Server, cluster: KubeconfigCluster) -> None:
    for path in (f"{JOBS}/digits", f"{JOBS}/digits/scale"):
        server.answers["PATCH", path] = [(200, job())]
    cluster.patch("default", "digits", {"spec": {"a": False}})
    cluster.scale("default", "digits", 3)
    sent = [(path, query, kind, body) for _, path, query, kind, body in server.asked]
    manager, merge = {"fieldManager": ["kubectl-pstraining"]}, "application/merge-patch+json"
    assert sent == [
        (f"{JOBS}/digits", manager, merge, {"spec": {"a": False}}),
        (f"{JOBS}/digits/scale", manager, merge, {"spec": {"replicas": 3}}),
    ]


def test_long_lists_come_in_pages(server: Server, cluster: KubeconfigCluster) -> None:
    pages = [{"metadata": {"continue": "more"}, "items": [{"a": 1}]}, {"metadata": {}, "items": [{"a": 2}]}]
    server.answers["GET", "/api/v1/pods"] = [(200, page) for page in pages]
    assert cluster.listed("/api/v1/pods", fieldSelector="f") == [{"a": 1}, {"a": 2}]
    assert [query for _, _, query, _, _ in server.asked] == [
        {"limit": ["500"], "fieldSelector": ["f"]},
        {"limit": ["500"], "continue": ["more"], "fieldSelector": ["f"]},
    ]


def test_rights_are_asked_of_the_api_server(server: Server, cluster: KubeconfigCluster) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.answers["POST", path] = [(201, {"status": {"allowed": True}}), (201, {"status": {"allowed": False}})]
    assert cluster.allowed("patch", "pstrainingjobs", "team", "scale") is True
    assert cluster.allowed("get", "pstrainingjobs", "team") is False
    attributes = server.asked[0][4]["spec"]["resourceAttributes"]
    assert attributes == {
        "verb": "patch",
        "group": "pstraining.dev",
        "resource": "pstrainingjobs",
        "subresource": "scale",
        "namespace": "team",
    }


def test_texts_are_read_as_they_are(server: Server, cluster: KubeconfigCluster) -> None:
    server.answers["GET", "/metrics"] = [(200, "pstraining_jobs 1\n")]
    assert cluster.read("/metrics") == "pstraining_jobs 1\n"


def refusal(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


def test_a_job_that_is_not_there_and_a_crd_that_is_not_there(server: Server, cluster: KubeconfigCluster) -> None:
    server.answers["GET", f"{JOBS}/digits"] = [refusal(404, "NotFound", 'pstrainingjobs "digits" not found')]
    assert cluster.job("default", "digits") is None
    with pytest.raises(CommandError, match="There is no PSTrainingJob digits in namespace default"):
        existing(cluster, "default", "digits")
    with pytest.raises(CommandError, match="This cluster has no PSTrainingJobs: the CustomResourceDefinition"):
        cluster.job("default", "other")
    with pytest.raises(CommandError, match="This cluster has no PSTrainingJobs"):
        cluster.apply(job())


def test_what_is_not_allowed(server: Server, cluster: KubeconfigCluster) -> None:
    words = 'User "eve" cannot patch resource "pstrainingjobs" in API group "pstraining.dev" in the namespace "default"'
    server.answers["PATCH", f"{JOBS}/digits"] = [refusal(403, "Forbidden", words)]
    with pytest.raises(DeniedError, match=r"eve may not patch pstrainingjobs\.pstraining\.dev in namespace default"):
        cluster.patch("default", "digits", {})


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as gone:
        path = kubeconfig(tmp_path, gone.server_port)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with pytest.raises(CommandError, match=r"The API server does not answer: .*refused"):
        KubeconfigCluster().job("default", "digits")
    with pytest.raises(CommandError, match=r"No cluster: .*context.* Set KUBECONFIG, or choose another --context\."):
        KubeconfigCluster("elsewhere")


@pytest.mark.parametrize("text", [None, "{", ""])
def test_no_kubeconfig_or_none_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with pytest.raises(CommandError, match=r"No cluster: .*Set KUBECONFIG"):
        KubeconfigCluster()
