"""Detection of TFJobs, and the differences between their API versions.

The versions from v1alpha2 on have the spec of v1, except for some fields in spec itself and for defaults
(pkg/apis/tensorflow/*/defaults.go of kubeflow/training-operator).
"""

from collections.abc import Mapping
from typing import Any

from pstraining.api import names
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import Fields

API_VERSION = "kubeflow.org/v1"
KIND = "TFJob"
_ALPHA = "kubeflow.org/v1alpha2"
_OLDER = ("kubeflow.org/v1beta2", "kubeflow.org/v1beta1", _ALPHA)
VERSIONS = (API_VERSION, *_OLDER)
"""The API versions that are converted."""
_GROUPS = ("kubeflow.org", "tensorflow.org")


def is_tfjob(body: Mapping[str, Any]) -> bool:
    """Return whether an object is, or may have been intended as, a TFJob."""
    kind, spec = str(body.get("kind") or ""), body.get("spec")
    group = str(body.get("apiVersion")).partition("/")[0]
    roles = isinstance(spec, dict) and ("tfReplicaSpecs" in spec or "replicaSpecs" in spec)
    return kind.lower() == KIND.lower() or (roles and (not kind or group in _GROUPS) and kind != names.KIND)


def read_version(fields: Fields, lines: Mapping[str, int], notes: Notes) -> str:
    """Return the TFJob's API version; empty if its spec cannot be read, which is refused.

    Args:
        fields: the TFJob's fields.
        lines: line numbers of its top-level fields.
        notes: receives the notes.
    """
    kind, version = fields.take("kind", str), fields.take("apiVersion", str)
    if kind != KIND:
        where = _line("kind", lines)
        notes.refused("kind", f"{where}it is {kind or 'missing'}.", f"Write kind: {KIND} there.")
    if version == API_VERSION:
        return version
    where = _line("apiVersion", lines)
    if version in _OLDER:
        notes.changed("apiVersion", f"{where}it is {version}, and is read as {API_VERSION}, which has the same fields.")
        return version
    if str(version).endswith("/v1alpha1"):
        notes.refused(
            "apiVersion",
            f"{where}{version} has other fields: a list spec.replicaSpecs, and no restartPolicy for each role.",
            f"Write apiVersion: {API_VERSION} there, and spec.tfReplicaSpecs with PS, Worker and Chief (MASTER).",
        )
        return ""
    notes.refused("apiVersion", f"{where}it is {version or 'missing'}.", f"Write apiVersion: {API_VERSION} there.")
    return API_VERSION


def fill_defaults(version: str, policy: Fields, notes: Notes) -> None:
    """Write out an older version's defaults that differ from those of v1.

    Args:
        version: the TFJob's API version.
        policy: the TFJob's runPolicy, which is changed.
        notes: receives the notes.
    """
    name = "cleanPodPolicy"
    if version != API_VERSION and not policy.has(name):
        policy.put(name, "Running")
        notes.changed(policy.at(name), f"it is not set; the default of {version}, Running, is written out.")


def name_restarts(version: str, path: str, notes: Notes) -> None:
    """Note a missing restartPolicy if its default differs between releases.

    Args:
        version: the TFJob's API version.
        path: path of the role's restartPolicy.
        notes: receives the note.
    """
    if version == _ALPHA:
        notes.different(
            path,
            f"it is not set: the first releases with {version} used Always, later ones Never, which is written out.",
            "Set restartPolicy: OnFailure to restart failed replicas.",
        )


def _line(field: str, lines: Mapping[str, int]) -> str:
    return f"line {lines[field]}: " if field in lines else ""
