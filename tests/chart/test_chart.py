"""The chart as a whole: lint, the CRD's copy, the values and their schema, the notes."""

import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from pstraining import __version__
from tests.support.builders import deep_merge

from .conftest import CHART, KUBERNETES, NAMESPACE, REPOSITORY, ROOT, Helm, Render

CRD_NAME = "pstrainingjobs.pstraining.dev"


def leaves(node: Any, path: str = "") -> list[str]:
    if isinstance(node, dict) and node:
        return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}")]
    return [path]


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def test_lint_strict(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_the_copy_of_the_crd_is_the_generated_one() -> None:
    source = ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml"
    assert (CHART / "files" / "crd.yaml").read_text("utf-8") == source.read_text("utf-8"), "run `make generate`"


def test_the_whole_crd_is_installed_and_kept(render: Render) -> None:
    crd = render().one("CustomResourceDefinition")
    source = yaml.safe_load((ROOT / "crds" / "pstraining.dev_pstrainingjobs.yaml").read_text("utf-8"))
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"] == CRD_NAME
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crd_is_deleted_with_the_release_on_request(render: Render) -> None:
    crd = render({"crds": {"keep": False}}).one("CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]


def test_the_crd_can_be_left_out(render: Render) -> None:
    assert render({"crds": {"install": False}}).of_kind("CustomResourceDefinition") == []


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"replicas": 2}, "replicas"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"crds": {"install": "yes"}}, "install"),
        ({"operator": {"workers": "many"}}, "workers"),
        ({"operator": {"logFormat": "xml"}}, "logFormat"),
        ({"operator": {"podIds": "1000"}}, "podIds"),
        ({"kueue": {"enabled": "yes"}}, "enabled"),
        ({"kueue": {"serviceAccount": {"namespace": ""}}}, "namespace"),
        ({"watch": {"namespaces": "team-a"}}, "namespaces"),
        ({"watch": {"namespaces": ["Team_A"]}}, "namespaces"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"image": {"tag": "0.2.0+build"}}, "tag"),
        ({"podDisruptionBudget": {"maxUnavailable": -1}}, "maxUnavailable"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"podLabels": {"a": 1}}, "podLabels"),
        ({"extraEnv": [{"value": "x"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "A", "value": 1}]}, "'/extraEnv/0/value': got number, want null or string"),
        ({"tolerations": [{"key": "a", "value": True}]}, "'/tolerations/0/value': got boolean, want null or string"),
    ],
)
def test_the_schema_rejects_invalid_values(helm: Helm, given: dict[str, Any], reported: str) -> None:
    done = helm("template", "pstraining", str(CHART), "--values", "-", stdin=json.dumps(given))
    assert done.returncode != 0
    assert reported in done.stderr


def test_the_schema_has_exactly_the_charts_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))

    def compare(node: dict[str, Any], given: dict[str, Any], path: str) -> None:
        assert node["additionalProperties"] is False, path
        assert set(node["properties"]) - (set() if path else {"global", "enabled"}) == set(given), path
        for key, value in given.items():
            inner = node["properties"][key]
            if "properties" in inner and path + key != "resources":
                compare(inner, value, f"{path}{key}.")

    compare(schema, values(), "")


@pytest.mark.parametrize(("enabled", "is_rendered"), [(True, True), (False, False)])
def test_a_parent_chart_may_have_a_condition(helm: Helm, tmp_path: Path, enabled: bool, is_rendered: bool) -> None:
    shutil.copytree(CHART, tmp_path / "charts" / "pstraining")
    dependency = {"name": "pstraining", "version": __version__, "condition": "pstraining.enabled"}
    parent = {"apiVersion": "v2", "name": "parent", "version": "0.1.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(json.dumps(parent), "utf-8")
    given = {"pstraining": {"enabled": enabled, "image": {"repository": REPOSITORY}}}
    done = helm(
        *("template", "parent", str(tmp_path), "--kube-version", KUBERNETES, "--values", "-"), stdin=json.dumps(given)
    )
    assert done.returncode == 0, done.stderr
    assert ("kind: Deployment" in done.stdout) is is_rendered


NULLABLE = ("resources", "podSecurityContext", "securityContext")
"""Values with a default that may be left out of the pod."""


def defaults(node: dict[str, Any], *, empty: bool, path: str = "") -> set[str]:
    """Return the values, and groups of values, whose default is empty, or is not."""
    found = set()
    for key, value in node.items():
        may_be_null = value in ("", [], {}) or key in NULLABLE or f"{path}{key}" == "metrics.dashboard.labels"
        found |= {f"{path}{key}"} if may_be_null is empty else set()
        if isinstance(value, dict) and not may_be_null:
            found |= defaults(value, empty=empty, path=f"{path}{key}.")
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    key, _, rest = path.partition(".")
    return {key: nested(rest, value) if rest else value}


def test_a_value_that_has_a_default_cannot_be_null(helm: Helm) -> None:
    """A value that has a default cannot be null. Helm would remove the default: the operator would not start, or the
    NetworkPolicy would admit every port.
    """
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))

    def required(node: dict[str, Any], path: str = "") -> set[str]:
        found = {f"{path}{key}" for key in node.get("required", ())}
        inner = {key: value for key, value in node.get("properties", {}).items() if f"{path}{key}" in found}
        return found.union(*(required(value, f"{path}{key}.") for key, value in inner.items()))

    assert required(schema) == defaults(values(), empty=False)
    given = deep_merge(nested("lease.durationSeconds", None), nested("networkPolicy.apiServerPorts", None))
    done = helm("template", "pstraining", str(CHART), "--values", "-", stdin=json.dumps(given))
    assert "at '/lease': missing property 'durationSeconds'" in done.stderr
    assert "at '/networkPolicy': missing property 'apiServerPorts'" in done.stderr


def test_all_other_values_may_be_null(render: Render) -> None:
    given: dict[str, Any] = {name: {"enabled": True} for name in ("podDisruptionBudget", "networkPolicy")}
    given["metrics"] = {name: {"enabled": True} for name in ("podMonitor", "jobsPodMonitor", "rules", "dashboard")}
    for path in sorted(defaults(values(), empty=True) - {"image.repository"}):
        given = deep_merge(given, nested(path, None))
    rendered = render(given)
    pod = rendered.one("Deployment")["spec"]["template"]["spec"]
    assert not pod.get("securityContext")
    assert rendered.one("PrometheusRule")["spec"]["groups"]


def test_every_value_is_used() -> None:
    templates = "\n".join(p.read_text("utf-8") for p in (CHART / "templates").rglob("*") if p.is_file())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", templates))
    unused = [leaf for leaf in leaves(values()) if not any(leaf == u or leaf.startswith(f"{u}.") for u in used)]
    assert unused == []


def test_every_value_is_described() -> None:
    """Every value is described: a group of values may describe its members, or itself as a whole."""
    readme = (CHART / "README.md").read_text("utf-8")
    described = {f".{path}" for path in re.findall(r"^\| `([\w.]+)` \|", readme, re.MULTILINE)}
    missing = [leaf for leaf in leaves(values()) if not any(leaf == d or leaf.startswith(f"{d}.") for d in described)]
    assert missing == []


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({}, "jobs of all namespaces"),
        ({"watch": {"namespaces": ["team-a", "team-b"]}}, "namespaces team-a, team-b"),
        ({"crds": {"install": False}}, "must exist already"),
        ({"kueue": {"enabled": True}}, "externalFrameworks must\nlist PSTrainingJob.v1alpha1.pstraining.dev."),
        ({"image": {"repository": "registry.example.org/mine"}}, f"REGISTRY/pstraining/runtime:{__version__}"),
    ],
)
def test_the_notes(helm: Helm, tmp_path: Path, given: dict[str, Any], reported: str) -> None:
    # helm shows notes only with a cluster, so a copy of the chart has them as an object.
    copy = shutil.copytree(CHART, tmp_path / "pstraining")
    source = (copy / "templates" / "NOTES.txt").read_text("utf-8")
    wrapped = '{{- define "notes" }}' + source + '{{ end }}\nkind: Notes\ntext: {{ include "notes" . | quote }}\n'
    (copy / "templates" / "notes.yaml").write_text(wrapped, "utf-8")
    done = helm(
        *("template", "pstraining", str(copy), "--namespace", NAMESPACE, "--kube-version", KUBERNETES),
        *("--show-only", "templates/notes.yaml", "--values", "-"),
        stdin=json.dumps({"image": {"repository": REPOSITORY}} | given),
    )
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["text"]
    shown = yaml.safe_load(textwrap.dedent(notes[notes.index("  apiVersion:") : notes.index("Watch it:")]))
    assert shown["spec"]["checkpoint"]["volumeClaimTemplate"], "a reader who copies it keeps the model"
    (container,) = shown["spec"]["worker"]["template"]["spec"]["containers"]
    registry = "REGISTRY" if "image" in given else "registry.example.org"
    assert container["image"] == f"{registry}/pstraining/runtime:{__version__}", "beside the operator's"
    assert reported in notes
    assert "deployment/pstraining-operator" in notes
    assert "{{" not in notes


def test_the_example_in_the_annotations_is_the_smallest_job() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    (example,) = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    assert example["kind"] == "PSTrainingJob"
    assert example["spec"]["checkpoint"]["volumeClaimTemplate"]
    assert example["spec"]["worker"]["template"]["spec"]["containers"][0]["image"].endswith(f":{chart['appVersion']}")


def test_the_dashboard_is_rendered_for_the_sidecar_on_request(render: Render) -> None:
    assert not render().of_kind("ConfigMap")
    options = {"enabled": True, "labels": {"mine": "yes"}, "annotations": {"grafana_folder": "ML"}}
    found = render({"metrics": {"dashboard": options}}).one("ConfigMap")
    assert found["data"] == {"pstraining.json": (CHART / "files" / "dashboard.json").read_text("utf-8")}
    # Labels are added to those that the sidecars select by default.
    assert {"grafana_dashboard": "1", "mine": "yes"}.items() <= found["metadata"]["labels"].items()
    assert found["metadata"]["annotations"] == {"grafana_folder": "ML"}


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
    for folder in (CHART, ROOT):
        assert f"\n## [{__version__}] - " in (folder / "CHANGELOG.md").read_text("utf-8"), "its notes"
