"""`version`: the installed versions, their incompatibilities, and the output without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from pstraining import __version__
from pstraining.cli.commands.version import cluster_versions
from pstraining.cli.errors import RequestError
from pstraining.cli.main import app
from tests.support.command_runner import CliRunner
from tests.support.installation import Installation, definition, deployment

OPERATORS = "/apis/apps/v1/deployments"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pstrainingjobs.pstraining.dev"


def skew(cluster: Installation) -> list[str]:
    return [found["message"] for found in cluster_versions(cluster)["skew"]]


def test_compatible_and_incompatible_versions() -> None:
    cluster = Installation()
    found = cluster_versions(cluster)
    assert (found["kubernetes"], found["skew"], found["unknown"]) == ("v1.34.1", [], [])
    assert found["operators"] == [
        {"namespace": "sys", "name": "op", "version": __version__, "image": f"pstraining/operator:{__version__}"}
    ]
    other = definition()
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop("network")
    cluster.paths |= {OPERATORS: [deployment(version="0.0.9"), deployment()], CRD: other}
    assert skew(cluster) == [
        f"operator sys/op has version 0.0.9, the plugin has {__version__}",
        f"the CRD differs from this CLI's ({__version__}): spec.network (only in this CLI); the findings of validate "
        "may also differ",
    ]


def test_an_unreadable_version_is_unknown() -> None:
    found = cluster_versions(Installation(("deployments", "customresourcedefinitions")))
    assert found["operators"] is None
    assert found["unknown"] == ["eve may not read /apis/apps/v1/namespaces/pstraining-system/deployments"]
    assert (found["crd"]["result"], found["skew"]) == ("warn", [])
    assert cluster_versions(Installation(("/v1/deployments",)))["operators"], "of the usual namespace"


def test_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = Installation()
    operator = deployment(version="0.0.9")
    operator["metadata"] |= {"namespace": "pstraining-system", "name": "pstraining-operator"}
    cluster.paths[OPERATORS] = [operator]
    monkeypatch.setattr("pstraining.cli.commands.version.KubeconfigClient", lambda context: cluster)
    text = CliRunner().invoke(app, ["version"]).output
    page = (Path(__file__).parents[3] / "docs" / "operators" / "doctor.md").read_text(encoding="utf-8")
    shown = page.split("## Versions")[1].split("```\n")[1]
    assert [line.rstrip() for line in text.splitlines()] == shown.splitlines()

    def nowhere(context: str | None) -> None:
        raise RequestError("No answer.")

    monkeypatch.setattr("pstraining.cli.commands.version.KubeconfigClient", nowhere)
    done = CliRunner().invoke(app, ["version", "--client", "-o", "json"])
    assert done.exit_code == 0
    own = {"version": __version__, "api": "pstraining.dev/v1alpha1"}
    assert json.loads(done.output)["client"] == own
    away = CliRunner().invoke(app, ["version", "-o", "json"])
    assert isinstance(away.exception, RequestError)
    assert json.loads(away.output)["client"] == own, "the known versions are printed"
