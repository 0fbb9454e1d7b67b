"""The chart as an archive that `helm push` accepts, and install.yaml: the rendered chart, for kubectl."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from hack.release.archive import Entry, write
from hack.release.source import ReleaseError, Source

NAMESPACE = "pstraining-system"
KUBERNETES = "1.29"
"""The oldest Kubernetes version that the chart accepts; no object needs a newer one."""
NO_DIGEST = '  digest: ""\n'
HELMS = ("helm.sh/", "app.kubernetes.io/managed-by")
"""Labels and annotations that are true only of objects that Helm installs."""


def package(source: Source, folder: Path, digest: str) -> Path:
    """Write the chart's archive; its operator's image has the digest, or the version as its tag if that is empty.

    Raises:
        ReleaseError: the chart's version is not the project's.
    """
    chart = source.root / "charts" / "pstraining"
    meta = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    if {meta["version"], meta["appVersion"]} != {source.version}:
        raise ReleaseError(f"pyproject.toml has version {source.version}, Chart.yaml another: run `make generate`")
    entries = {
        f"{meta['name']}/{path.relative_to(chart).as_posix()}": Entry(path.read_bytes())
        for path in chart.rglob("*")
        if path.is_file()
    }
    values = entries["pstraining/values.yaml"].content.decode()
    if values.count(NO_DIGEST) != 1:
        raise ReleaseError("values.yaml has no line for the image's digest")
    written = values.replace(NO_DIGEST, f'  digest: "{digest}"\n')
    entries["pstraining/values.yaml"] = Entry(written.encode())
    path = folder / f"{meta['name']}-{source.version}.tgz"
    write(path, entries, source.epoch)
    return path


def install_manifest(helm: str, chart: Path, registry: str, version: str) -> str:
    """Return all objects of the chart with its default values, and their namespace, for `kubectl apply --server-side`.

    Raises:
        ReleaseError: Helm rejects the chart.
    """
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    image = ["--set-string", f"image.repository={registry}/pstraining/operator"]
    done = subprocess.run(
        [helm, "template", "pstraining", str(chart), *where, *image], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"helm template: {done.stderr.strip()}")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    objects = [namespace, *(_without_helm(found) for found in yaml.safe_load_all(done.stdout) if found)]
    body = yaml.safe_dump_all(objects, sort_keys=False, width=120, explicit_start=True)
    return f"# pstraining {version}: kubectl apply --server-side -f install.yaml\n{body}"


def _without_helm(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the labels and annotations of Helm, also in a pod template."""
    template = found.get("spec", {}).get("template", {}) if found["kind"] == "Deployment" else {}
    for metadata in (found["metadata"], template.get("metadata", {})):
        for field in ("labels", "annotations"):
            kept = {key: value for key, value in metadata.get(field, {}).items() if not key.startswith(HELMS)}
            metadata.pop(field, None)
            metadata.update({field: kept} if kept else {})
    return found
