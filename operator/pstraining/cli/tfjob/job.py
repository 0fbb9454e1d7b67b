"""Converts a TFJob to a PSTrainingJob: the whole job and its metadata."""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pstraining.api import names
from pstraining.api.values import copied
from pstraining.cli.manifests import SERVERS_OWN
from pstraining.cli.tfjob.gang import FIELDS as GANG_FIELDS
from pstraining.cli.tfjob.marks import name_gangs, name_kueue_of_job
from pstraining.cli.tfjob.notes import Note, Notes
from pstraining.cli.tfjob.owners import drop_owners
from pstraining.cli.tfjob.placeholders import name_placeholders, placeholder
from pstraining.cli.tfjob.roles import ALWAYS, converted_roles, note_always, read_roles, without_role
from pstraining.cli.tfjob.run_policy import FIELDS, converted_run_policy
from pstraining.cli.tfjob.source import QUOTES, Fields, cleaned, path_to, shown, texts, unreadable
from pstraining.cli.tfjob.template import TemplatesOf
from pstraining.cli.tfjob.versions import fill_defaults, read_version
from pstraining.cli.validation.blanks import blanks
from pstraining.cli.validation.schema import Severity, validate
from pstraining.cli.validation.templates import is_sound, misfits, of_other_effect, refused
from pstraining.resources import kueue, pods

_KUEUE = (kueue.LABEL_PRIORITY_CLASS, kueue.LABEL_MAX_SECONDS)
"""Labels of Kueue that have the same effect on a PSTrainingJob in a queue."""
_QUOTED = re.compile(r'\["([^"]*)"\]')
_SAME = re.compile(r"\.metadata\.finalizers$|\.initContainers\[\d+\]\.env\[")
"""Paths of fields of which `validate` warns, although they have the same effect on a TFJob."""
_WHOLE = re.compile(r"spec\.tfReplicaSpecs\.[^.]+(\.template(\.spec(\.(containers|initContainers))?)?)?")
"""Paths of roles, templates and lists of containers: a note on one of them says nothing about the fields below it."""
_BLANK = "it is null, which the API server leaves out of a TFJob; it is left out here, too."
_MOST_UNREADABLE = 20
"""Maximum number of notes on such values: a loop of aliases has any number."""
_SUFFIX = 5
"""Number of characters that the API server adds to generateName."""


@dataclass(frozen=True)
class Conversion:
    """The result of a TFJob's conversion."""

    name: str
    """The TFJob's name."""
    manifest: dict[str, Any] | None
    """The PSTrainingJob; None if the TFJob cannot be converted."""
    notes: tuple[Note, ...]


def converted(tfjob: Mapping[str, Any], lines: Mapping[str, int] | None = None, command: str = "") -> Conversion:
    """Convert a TFJob.

    Args:
        tfjob: the object, as in a manifest or as stored by an API server.
        lines: line numbers of its top-level fields, for notes.
        command: the command of training containers that have none: the entrypoint of their image.

    Returns:
        The PSTrainingJob, and a note for every field without an identical counterpart, also if the TFJob cannot be
        converted. The result is deterministic.
    """
    notes = Notes()
    for path, message in islice(unreadable(dict(tfjob)), _MOST_UNREADABLE):
        notes.refused(path, message)
    if notes.found:
        return Conversion("", None, tuple(notes.found))
    for steps in blanks({part: tfjob.get(part) for part in ("metadata", "spec")}, (), ["tfReplicaSpecs"]):
        notes.changed(path_to(steps), _BLANK, 'Write a value, such as "", or remove it.')
    whole = cleaned(dict(tfjob))
    fields = Fields(whole, "", notes)
    version = read_version(fields, lines or {}, notes)
    metadata, name = _metadata(fields.below("metadata"), notes)
    spec = fields.below("spec")
    _rest(fields, notes)
    renamed = "" if metadata.get("name", name) == name else str(metadata["name"])
    job_of = TemplatesOf(name, version, tuple(shlex.split(command)), renamed=renamed, labels=_labels(whole))
    found = _spec(spec, job_of, notes) if version else None
    if found is not None and found.spec.get("managedBy") == names.MULTIKUEUE:
        _without_queue(metadata, notes)
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
    to_fill = name_placeholders(texts({k: v for k, v in whole.items() if k != "status"}, ""), notes)
    if found is not None:
        _findings({**job, "spec": found.spec}, found, to_fill, notes)
    made = None if found is None or any(note.refused for note in notes.found) else {**job, "spec": found.spec}
    return Conversion(name, made, tuple(notes.found))


@dataclass(frozen=True)
class _ConvertedSpec:
    spec: dict[str, Any]
    paths: Mapping[str, str]
    """Paths of the TFJob's roles, by our names."""
    broken: frozenset[str]
    """Roles whose templates cannot be read."""


def _spec(spec: Fields, job: TemplatesOf, notes: Notes) -> _ConvertedSpec | None:
    """Return our spec; None if the TFJob's roles cannot be converted."""
    policy = _run_policy(spec, notes)
    fill_defaults(job.version, policy, notes)
    gang = any(policy.has_below("schedulingPolicy", field) for field in GANG_FIELDS)
    replicas = read_roles(spec.below("tfReplicaSpecs"), replace(job, gang=gang), notes)
    if missing := without_role(replicas):
        # Keep only notes that may explain the missing role.
        notes.found[:] = [note for note in notes.found if note.refused]
        notes.none(spec.at("tfReplicaSpecs"), *missing)
        for known in ("successPolicy", "enableDynamicWorker"):
            if spec.has(known):
                spec.drop(known)
        spec.close()
        return None
    roles = converted_roles(replicas, notes)
    success = _success(spec, roles, replicas[names.WORKER].path, notes)
    note_always(replicas, bool(success), notes)
    found = roles | success
    _dynamic_worker(spec, found, notes)
    run_policy = converted_run_policy(policy, roles, notes)
    if run_policy.get("managedBy") == names.MULTIKUEUE:
        found["managedBy"] = run_policy.pop("managedBy")
    if run_policy:
        found["runPolicy"] = run_policy
    spec.close()
    broken = frozenset(role for role, one in replicas.items() if one.broken)
    return _ConvertedSpec(found, {role: one.path for role, one in replicas.items()}, broken)


def _labels(tfjob: Mapping[str, Any]) -> frozenset[str]:
    """Return the labels of all templates."""
    found: list[Any] = list(_mapping(_mapping(tfjob, "spec"), "tfReplicaSpecs").values())
    templates = [_mapping(replicas, "template") for replicas in found]
    return frozenset(label for template in templates for label in _mapping(_mapping(template, "metadata"), "labels"))


def _mapping(holder: Any, name: str) -> dict[str, Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, dict) else {}


def _rest(fields: Fields, notes: Notes) -> None:
    if fields.has("status"):
        fields.drop("status")
        notes.changed("status", "it is the status of the old job; it is left out.")
    fields.close()


def _metadata(fields: Fields, notes: Notes) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    before = len(notes.found)
    name, prefix = _name(fields, "name"), _name(fields, "generateName")
    if len(notes.found) == before and not re.fullmatch(names.JOB_NAME_PATTERN, name or prefix.rstrip("-")):
        hint = placeholder(name or prefix)
        notes.refused(
            fields.at("name"),
            f"{name or prefix or 'none'} is not a valid name: use lower-case letters, digits and '-', and start with "
            "a letter.",
            "" if hint is None else f"{hint}: fill it in first, and pass the result to -f -.",
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
    found |= {name: value for name, value in given.items() if value}
    _marks(found, fields, notes)
    for own in SERVERS_OWN:
        if fields.has(own):
            fields.drop(own)
            notes.changed(fields.at(own), "the API server's own, of the old object; it is left out.")
    fields.close("it binds the old object to others; it is left out.", "Set it on the new one if it is still needed.")
    return found, name or prefix


def _name(fields: Fields, field: str) -> str:
    """Take a name. A number becomes a text: quotes alone would not make a valid name of it."""
    if fields.has(field):
        given = fields.drop(field)
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        fields.put(field, shown(given) if is_number else given)
    return fields.take(field, str) or ""


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
    """Note the labels and annotations that other controllers act on."""
    annotations = Fields(found.get("annotations", {}), fields.at("annotations"), notes)
    drop_owners(found, fields.path, exported=fields.has("uid"), notes=notes)
    name_gangs({**found.get("labels", {}), **found.get("annotations", {})}, fields.path, found, notes)
    name_kueue_of_job(found.get("annotations", {}), annotations.path, notes)
    labels = Fields(found.get("labels", {}), fields.at("labels"), notes)
    for label in found.get("labels", {}):
        if label == kueue.LABEL_QUEUE:
            notes.different(
                labels.at(label),
                "the job waits in this queue if the operator has kueue.enabled; otherwise it runs at once. Kueue does "
                "not resume a suspended job.",
                "Remove spec.runPolicy.suspend if Kueue has set it.",
            )
        elif label.startswith(f"{kueue.GROUP}/") and label not in _KUEUE:
            notes.none(labels.at(label), "the operator does not read this label of Kueue. It stays.", "Remove it.")


def _without_queue(metadata: Mapping[str, Any], notes: Notes) -> None:
    """Note a job that MultiKueue sends nowhere, because it has no queue."""
    if kueue.LABEL_QUEUE not in metadata.get("labels", {}):
        notes.different(
            "spec.runPolicy.managedBy",
            "without a queue, the job is not sent to another cluster, and does not run in this one either. A job here "
            f"gets the LocalQueue {kueue.DEFAULT_QUEUE} of its namespace, where there is one.",
            f"Set {kueue.LABEL_QUEUE} in metadata.labels, or remove managedBy.",
        )


def _run_policy(spec: Fields, notes: Notes) -> Fields:
    """Return the fields of runPolicy, including those that old TFJobs have in spec itself."""
    policy = spec.below("runPolicy")
    for name in FIELDS:
        if not spec.has(name):
            continue
        if policy.has(name):
            spec.drop(name)
            notes.changed(spec.at(name), f"{policy.at(name)} is set, too, and takes precedence; it is left out.")
        else:
            policy.put(name, spec.drop(name))
            notes.changed(spec.at(name), "newer TFJobs have it in runPolicy; it is moved there.")
    policy.prune("schedulingPolicy")
    return policy


def _success(spec: Fields, roles: dict[str, Any], worker: str, notes: Notes) -> dict[str, Any]:
    policy, path = spec.take("successPolicy", str), spec.at("successPolicy")
    if not policy:
        return {}
    if policy != "AllWorkers":
        notes.refused(path, f'it must be AllWorkers or "", is {policy}.')
        return {}
    has_chief, endless = roles["chief"].get("enabled", True), roles["worker"]["restartPolicy"] == ALWAYS
    if has_chief and endless:
        notes.changed(
            path,
            f"in TFJob the chief alone decides, where there is one. Workers under {ALWAYS} never end; it is left out.",
        )
        return {}
    if has_chief:
        notes.different(
            path,
            "In TFJob the chief alone decides, where there is one. Here the chief and all workers must have ended "
            "with 0.",
            "Remove it for the chief's success alone.",
        )
    if endless:
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


def _findings(job: dict[str, Any], made: _ConvertedSpec, to_fill: set[str], notes: Notes) -> None:
    """Note the errors that the API server would report about the job and its pods.

    Args:
        job: our job.
        made: its spec.
        to_fill: paths of placeholders. Their values are not known yet.
        notes: receives the notes.
    """
    job = _with_commands(job)
    by_crd = [finding for finding in validate(job) if finding.severity is Severity.ERROR]
    # Other notes on a field do not excuse a wrong value.
    wrong = {_QUOTED.sub(r".\1", note.path) for note in notes.found if note.refused}
    known = wrong | {_QUOTED.sub(r".\1", path) for path in to_fill}
    for finding in by_crd:
        path = _path_of(finding.field, made, notes)
        if path and path not in wrong:
            known.add(_QUOTED.sub(r".\1", path))
            todo = QUOTES if finding.message.startswith("must be a string") else "Change it by hand."
            notes.none(path, f"the API server refuses the job: {_ended(finding.message)}", todo)
    whole = not by_crd and not made.broken
    warned = known | {_QUOTED.sub(r".\1", note.path) for note in notes.found}
    for finding in refused(job) if whole else misfits(job):
        path, is_error = _path_of(finding.field, made, notes), finding.severity is Severity.ERROR
        if path is None or path in (known if is_error else warned):
            continue
        message = _ended(finding.message)
        if is_error:
            todo = QUOTES if finding.message.startswith("must be a valid string") else "Change it by hand."
            notes.none(path, f"Kubernetes refuses it: {message}", todo)
        elif message.startswith("container "):
            notes.none(path, f"{message} It is kept.", "Correct it, or remove it.")
        elif finding.field.endswith(".dnsPolicy"):
            notes.none(path, f"it {message} It is kept.", "Remove it, or add the search domain.")
        else:
            notes.none(path, f"it {message} It is kept, and has no effect.", "Correct it, or remove it.")
    if whole and is_sound(job):
        _other_effects(job, made, notes)


def _other_effects(job: dict[str, Any], made: _ConvertedSpec, notes: Notes) -> None:
    """Note the fields that have another effect here than in an ordinary pod, except those with a note already.

    Args:
        job: our job, with right types.
        made: its spec.
        notes: receives the notes.
    """
    noted = (note.path for note in notes.found if note.path and not _WHOLE.fullmatch(note.path))
    known = tuple(_QUOTED.sub(r".\1", path) for path in noted)
    for finding in of_other_effect(job):
        path = _path_of(finding.field, made, notes)
        if (
            path is None
            or _SAME.search(path)
            or any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in known)
        ):
            continue
        message, _, todo = finding.message.rpartition("; ")
        message, todo = (message, f"{todo[:1].upper()}{todo[1:]}.") if message else (todo, "")
        note = notes.none if message.startswith("is left out") else notes.different
        note(path, f"it {message}.", todo)


def _ended(message: str) -> str:
    return message if message.endswith("?") else f"{message}."


def _with_commands(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job with placeholders for missing commands, which have notes already."""
    found = copied(job)
    for role in found["spec"].values():
        if isinstance(role, dict) and "template" in role:
            container = pods.main_container(role["template"]["spec"])
            container["command"] = container.get("command") or ["?"]
    return found


def _path_of(field: str, made: _ConvertedSpec, notes: Notes) -> str | None:
    """Return the path in the TFJob of one of our fields; None if the role's template could not be read."""
    role, _, rest = field.removeprefix("spec.").partition(".")
    if role in made.broken:
        return None
    return notes.original(f"{made.paths[role]}.{rest}") if role in made.paths else field
