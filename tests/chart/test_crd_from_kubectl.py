"""A CRD that `kubectl apply` has created is adopted by Helm after the documented commands, and Helm keeps its own."""

import copy
import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.chart.conftest import CHART, NAMESPACE, ROOT, Helm, Manifest, Render

CRD = ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml"
CLUSTER_WIDE = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Namespace"}


def plural(kind: str) -> str:
    return f"{kind.lower()}s" if kind[-1] != "y" else f"{kind.lower()[:-1]}ies"


class Answers(BaseHTTPRequestHandler):
    """The part of an API server that `helm install --dry-run=server` needs."""

    server: "ApiServer"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        found = self.server.answer(path)
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


class ApiServer(ThreadingHTTPServer):
    """Has only the CRD and perhaps the Deployment, and serves the kinds of the chart's objects."""

    deployment: Manifest | None = None

    def __init__(self, crd: Manifest, kinds: set[tuple[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.crd = crd
        self.kinds = kinds

    def answer(self, path: str) -> Manifest | None:
        groups = {version.partition("/")[0]: version for version, _ in self.kinds if "/" in version}
        if path == "version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            versions = {group: {"groupVersion": v, "version": v.partition("/")[2]} for group, v in groups.items()}
            entries = [{"name": g, "versions": [v], "preferredVersion": v} for g, v in versions.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}
        version = path.removeprefix("apis/").removeprefix("api/")
        if path in (f"api/{version}", f"apis/{version}") and (kinds := [k for v, k in self.kinds if v == version]):
            rows = [
                {"name": plural(k), "kind": k, "namespaced": k not in CLUSTER_WIDE, "verbs": ["get"]} for k in kinds
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": rows}
        if path.endswith(f"customresourcedefinitions/{self.crd['metadata']['name']}"):
            return self.crd
        if path == f"apis/apps/v1/namespaces/{NAMESPACE}/deployments/pstraining-operator":
            return self.deployment
        if path.endswith("/secrets"):  # no release
            return {"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}
        return None


@contextmanager
def serving(crd: Manifest, render: Render) -> Iterator[ApiServer]:
    """Run the server."""
    kinds = {(o["apiVersion"], o["kind"]) for o in render().objects}
    server = ApiServer(crd, kinds | {("v1", "Secret")})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def install(server: ApiServer, folder: Path) -> tuple[str, ...]:
    """Return the arguments of an installation that changes nothing."""
    empty = folder / "kubeconfig"
    empty.write_text("")
    place = (
        f"--kube-apiserver=http://127.0.0.1:{server.server_address[1]}",
        f"--kubeconfig={empty}",
        "--namespace",
        NAMESPACE,
    )
    options = ("--dry-run=server", "--disable-openapi-validation", "--set", "image.repository=a/b")
    return ("install", "pstraining", str(CHART), *place, *options)


def commands(page: str) -> list[list[str]]:
    """Return the documented kubectl commands that change the CRD."""
    text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^ +(kubectl (?:annotate|label) crd .*)$", text, re.M)]


def changed(crd: Manifest, commands: list[list[str]]) -> Manifest:
    """Return the CRD after such commands."""
    crd = copy.deepcopy(crd)
    for _, verb, _, name, *words in commands:
        assert name == crd["metadata"]["name"]
        entries = dict(word.split("=", 1) for word in words if not word.startswith("--"))
        crd["metadata"].setdefault({"label": "labels", "annotate": "annotations"}[verb], {}).update(entries)
    return crd


def test_the_documented_commands_let_helm_adopt_the_crd(helm: Helm, render: Render, tmp_path: Path) -> None:
    crd = yaml.safe_load(CRD.read_text())
    crd["metadata"] |= {"uid": "1", "resourceVersion": "1"}
    found = commands("operators/install.md")
    assert found
    with serving(crd, render) as server:
        # No command can be left out.
        for some in (found[:0], *(found[:index] + found[index + 1 :] for index in range(len(found)))):
            server.crd = changed(crd, some)
            refused = helm(*install(server, tmp_path))
            assert "exists and cannot be imported" in refused.stderr, (some, refused)
        server.crd = changed(crd, found)
        after = helm(*install(server, tmp_path))
    assert after.returncode == 0, after.stderr


def test_helm_does_not_delete_the_jobs_with_the_crd_of_a_release(helm: Helm, render: Render, tmp_path: Path) -> None:
    """Helm deletes what a release no longer has, so a CRD without the annotation `keep` would be lost with all jobs."""
    owner = {"meta.helm.sh/release-name": "pstraining", "meta.helm.sh/release-namespace": NAMESPACE}
    for keep in (True, False):
        made = copy.deepcopy(render({"crds": {"keep": keep}}).one("Deployment"))
        made["metadata"] |= {"uid": "1", "resourceVersion": "1"}
        made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), **owner}
        with serving(yaml.safe_load(CRD.read_text()), render) as server:
            server.deployment = made
            found = helm(*install(server, tmp_path), "--set", "crds.install=false")
        assert ("crds.install=false would delete" in found.stderr) is not keep, found.stderr
        assert (found.returncode == 0) is keep, found.stderr
    assert not render({"crds": {"install": False}}).of_kind("CustomResourceDefinition"), "as for GitOps"
