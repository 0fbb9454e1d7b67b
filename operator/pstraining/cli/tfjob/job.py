"""A TFJob as a PSTrainingJob: the job as a whole, and its metadata."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import names
from pstraining.cli.errors import CommandError
from pstraining.cli.tfjob.notes import Note, Notes, What
from pstraining.cli.tfjob.roles import ALWAYS, converted_roles, read_roles, without_role
from pstraining.cli.tfjob.run_policy import FIELDS, converted_run_policy
from pstraining.cli.tfjob.source import Fields, cleaned
from pstraining.cli.validation.schema import Severity, validate

API_VERSION = "kubeflow.org/v1"
KIND = "TFJob"

_SERVERS_OWN = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "selfLink", "managedFields"),
    "deletionGracePeriodSeconds",
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE = "kueue.x-k8s.io/"
_SUFFIX = 5
"""Characters that the API server adds to generateName."""


@dataclass(frozen=True)
class Conversion:
    """What has become of a TFJob."""

    name: str
    """The TFJob's."""
    manifest: dict[str, Any] | None
    """The PSTrainingJob; None if there can be none."""
    notes: tuple[Note, ...]


def converted(tfjob: Mapping[str, Any]) -> Conversion:
    """Convert a TFJob.

    Args:
        tfjob: the object, as in a manifest or as an API server stores it.

    Returns:
        The PSTrainingJob, and a note for every field that is not simply there. The same for the same TFJob.

    Raises:
        CommandError: it is something else than a TFJob of kubeflow.org/v1, or one that no cluster would take.
    """
    notes = Notes()
    fields = Fields(cleaned(dict(tfjob)), "", notes)
    _check_kind(fields.take("apiVersion", str), fields.take("kind", str))
    metadata, name = _metadata(fields.below("metadata"), notes)
    spec = fields.below("spec")
    policy = _run_policy(spec, notes)
    replicas = read_roles(spec.below("tfReplicaSpecs"), name, notes)
    if missing := without_role(replicas):
        return Conversion(name, None, (Note(spec.at("tfReplicaSpecs"), What.NONE, *missing),))
    roles = converted_roles(replicas, notes)
    found = roles | _success(spec, roles, replicas[names.WORKER].path, notes)
    _dynamic_worker(spec, found, notes)
    if run_policy := converted_run_policy(policy, roles, notes):
        found["runPolicy"] = run_policy
    spec.close()
    if fields.has("status"):
        fields.drop("status")
        notes.changed("status", "it is the status of the old job; it is left out.")
    fields.close()
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": found}
    _refused(job, {role: one.path for role, one in replicas.items()}, notes)
    return Conversion(name, job, tuple(notes.found))


def _check_kind(version: str | None, kind: str | None) -> None:
    if kind != KIND:
        raise CommandError(
            f"It is a {kind or 'thing without a kind'}: only {KIND}s of {API_VERSION} can be converted. Remove it."
        )
    if version != API_VERSION:
        raise CommandError(
            f"It is a {KIND} of {version or 'no apiVersion'}: only {API_VERSION} can be converted. Bring it to that "
            "version first; Kubeflow's release notes say how."
        )


def _metadata(fields: Fields, notes: Notes) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    name, prefix = fields.take("name", str) or "", fields.take("generateName", str) or ""
    if not re.fullmatch(names.JOB_NAME_PATTERN, name or prefix.rstrip("-")):
        raise CommandError(
            f"{fields.at('name')}: {name or prefix or 'none'} is no name of a TFJob: that has lower-case letters, "
            "digits and '-', and starts with a letter."
        )
    if name:
        found["name"] = _short(name, fields.at("name"), notes)
    else:
        found["generateName"] = prefix[: names.MAX_JOB_NAME - _SUFFIX]
        if found["generateName"] != prefix:
            notes.changed(fields.at("generateName"), f"names have at most {names.MAX_JOB_NAME} characters; shortened.")
    if prefix and name:
        notes.changed(fields.at("generateName"), "it has no effect beside a name; it is left out.")
    given = {
        "namespace": fields.take("namespace", str),
        "labels": fields.take("labels", dict),
        "annotations": fields.take("annotations", dict),
    }
    found |= {what: value for what, value in given.items() if value}
    _marks(found, fields, notes)
    for own in _SERVERS_OWN:
        if fields.has(own):
            fields.drop(own)
            notes.changed(fields.at(own), "the API server's own, of the old object; it is left out.")
    fields.close("it binds the old object to others; it is left out.", "Set it on the new one if it is still wanted.")
    return found, name or prefix


def _short(name: str, path: str, notes: Notes) -> str:
    if len(name) <= names.MAX_JOB_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    short = f"{name[: names.MAX_JOB_NAME - 7].rstrip('-')}-{digest}"
    notes.changed(
        path, f"names have at most {names.MAX_JOB_NAME} characters; it is {short} now.", "Choose a better one."
    )
    return short


def _marks(found: dict[str, Any], fields: Fields, notes: Notes) -> None:
    """Labels and annotations that others act on."""
    annotations = Fields(found.get("annotations", {}), fields.at("annotations"), notes)
    if annotations.has(_LAST_APPLIED):
        del found["annotations"][_LAST_APPLIED]
        notes.changed(annotations.at(_LAST_APPLIED), "kubectl's own, of the old object; it is left out.")
        if not found["annotations"]:
            del found["annotations"]
    labels = Fields(found.get("labels", {}), fields.at("labels"), notes)
    for label in found.get("labels", {}):
        if label.startswith(_KUEUE):
            notes.none(
                labels.at(label),
                "Kueue does not know PSTrainingJobs, and neither admits nor resumes them. The label stays.",
                "Remove spec.runPolicy.suspend if Kueue was to resume the job.",
            )


def _run_policy(spec: Fields, notes: Notes) -> Fields:
    """The fields of runPolicy, also those that stand in spec itself, as they did in old TFJobs."""
    policy = spec.below("runPolicy")
    for name in FIELDS:
        if not spec.has(name):
            continue
        if policy.has(name):
            spec.drop(name)
            notes.changed(spec.at(name), f"{policy.at(name)} is there, too, and counts; it is left out.")
        else:
            policy.put(name, spec.drop(name))
            notes.changed(spec.at(name), "in newer TFJobs it stands in runPolicy; it is there now.")
    return policy


def _success(spec: Fields, roles: dict[str, Any], worker: str, notes: Notes) -> dict[str, Any]:
    policy, path = spec.take("successPolicy", str), spec.at("successPolicy")
    if not policy:
        return {}
    if policy != "AllWorkers":
        raise CommandError(f'{path} must be AllWorkers or "", is {policy}.')
    if roles["chief"].get("enabled", True):
        notes.different(
            path,
            "In TFJob the chief alone decides, where there is one. Here the chief and all workers must have ended "
            "with 0.",
            "Remove it for the chief's success alone.",
        )
    if roles["worker"]["restartPolicy"] == ALWAYS:
        roles["worker"]["restartPolicy"] = "OnFailure"
        notes.none(
            f"{worker}.restartPolicy",
            "with successPolicy AllWorkers and workers that never end a TFJob cannot succeed. They have OnFailure now.",
            "Check that this is intended.",
        )
    return {"successPolicy": policy}


def _dynamic_worker(spec: Fields, found: dict[str, Any], notes: Notes) -> None:
    path, switch = spec.at("enableDynamicWorker"), spec.take("enableDynamicWorker", bool)
    if switch:
        found["worker"]["minReplicas"] = 1
        notes.different(
            path,
            "workers can always be scaled (`kubectl scale`), and TF_CONFIG names all tasks of the cluster, not one "
            "worker and the PS. spec.worker.minReplicas: 1 lets the job continue without failed workers.",
            "Check that the program accepts a complete TF_CONFIG.",
        )
    elif switch is not None:
        notes.changed(path, "there is no switch: workers can always be scaled; it is left out.")


def _refused(job: dict[str, Any], paths: Mapping[str, str], notes: Notes) -> None:
    """What the API server would still refuse; of commands that are missing a note has said it already."""
    known = [note.path.rpartition(".containers")[0] for note in notes.found if note.path.endswith("].command")]
    for finding in validate(job):
        role, _, rest = finding.field.removeprefix("spec.").partition(".")
        path = f"{paths[role]}.{rest}" if role in paths else finding.field
        if finding.severity is Severity.ERROR and path not in known:
            notes.none(path, f"the API server refuses the job: {finding}.", "Change it by hand.")
