"""Objects beside TFJobs: they are passed on unchanged, with notes on their references to TFJobs."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pstraining.api import contract, names
from pstraining.cli.manifests import LAST_APPLIED
from pstraining.cli.tfjob import marks
from pstraining.cli.tfjob.notes import Note, Notes
from pstraining.cli.tfjob.ports import TFJOB_PORT
from pstraining.cli.tfjob.run_policy import FIELDS
from pstraining.cli.tfjob.source import join, texts
from pstraining.cli.tfjob.template import service_in
from pstraining.cli.tfjob.versions import API_VERSION, KIND, VERSIONS, is_tfjob

_IN_TEXT = re.compile(rf"(?:^[ \t-]*|[{{,]\s*)\\*[\"']?kind\\*[\"']?\s*:\s*\\*[\"']?{KIND}\b", re.MULTILINE)
"""The kind in a manifest in a text: in YAML, in JSON on one line or several, or in JSON in a text of JSON."""
_GROUP = "kubeflow.org"
_KIND = re.compile(rf"\bkubeflow\.org(/v\w+)?[/_]{KIND}\b", re.IGNORECASE)
"""The kind with its group, as Kyverno, Kueue and Argo CD write it."""
_KINDS = re.compile(r"\bkinds\[\d+\]$")
_COUNTS = re.compile(r"\bstatus\.(tfR|r)eplicaStatuses\b")
_PORT = re.compile(r"\b(port|targetPort)$")
_KUSTOMIZATION = ("resources", "bases", "components", "patches", "patchesStrategicMerge", "patchesJson6902")
"""Fields of which a kustomization.yaml has one; it may have no kind."""
_OF_SPEC = frozenset(("tfReplicaSpecs", "runPolicy", "successPolicy", "enableDynamicWorker", *FIELDS))
_OF_ROLE = frozenset(("replicas", "restartPolicy", "template"))
_RENDER = "Render it first, and convert the result: `{} | kubectl pstraining convert -f -`."


def notes_on(body: Mapping[str, Any], jobs: Collection[str] = ()) -> tuple[Note, ...]:
    """Return the notes on an object that is not a TFJob.

    Args:
        body: an object of any kind.
        jobs: names of the TFJobs beside it.
    """
    notes = Notes()
    if not body.get("kind") or not body.get("apiVersion"):
        notes.refused("", "it is not a Kubernetes object, which has an apiVersion and a kind.", _renderer(body))
        return tuple(notes.found)
    if str(body["apiVersion"]).startswith("kustomize.config.k8s.io/"):
        notes.none("", "it changes other files, and is not applied to them here.", _renderer({"resources": []}))
    found = dict(_tfjobs(body, ""))
    inside = tuple(found)
    for path, is_whole in found.items():
        if is_whole:
            notes.none(
                path,
                f"it contains a {KIND}, which is passed on unchanged.",
                f"Convert and replace the {KIND}; the controller that creates it must support PSTrainingJobs.",
            )
        else:
            _refers(path, notes)
    is_role = body.get("kind") in ("Role", "ClusterRole")
    for path in _rules(body, "", is_role):
        what, todo = ("grants rights on", "Grant them on") if is_role else ("applies to", "Let it apply to")
        notes.none(path, f"it {what} tfjobs.", f"{todo} pstrainingjobs of the group pstraining.dev.")
    _name_texts(body, inside, jobs, notes)
    return tuple(notes.found)


def _name_texts(body: Mapping[str, Any], inside: tuple[str, ...], jobs: Collection[str], notes: Notes) -> None:
    """Note selectors and other texts of an object that name TFJobs, or what only TFJobs have.

    Args:
        body: the object.
        inside: paths of TFJobs in it.
        jobs: names of the TFJobs beside it.
        notes: receives the notes.
    """
    # Jobs of other frameworks, such as PyTorchJobs, have the same labels on their own pods.
    has_labels = body["apiVersion"] == API_VERSION
    selectors = () if has_labels else marks.name_selectors_of(body, jobs, notes)
    for path in marks.commands_on_resource(body, ""):
        if not path.startswith(inside):
            marks.name_resource(path, notes)
    for path, text in texts(body, ""):
        if path.startswith(inside):
            continue
        if marks.names_resource(text):
            marks.name_resource(path, notes)
        elif _KIND.search(text) or (_KINDS.search(path) and text == KIND):
            _refers(path, notes)
        elif inside and _COUNTS.search(text):
            notes.none(
                path,
                "it reads replicaStatuses of the TFJob, which a PSTrainingJob does not have.",
                "Read its conditions Succeeded and Failed, or in Argo Workflows status.phase == Succeeded and Failed.",
            )
        elif not (has_labels or path.startswith(("metadata", *selectors))) and marks.names_only_theirs(text):
            notes.none(path, "it names labels of TFJob's operator, which no pod here has.", marks.OURS)
        elif metric := marks.metric_in(text):
            notes.none(
                path,
                f"{metric} is a metric of TFJob's operator, which does not count PSTrainingJobs.",
                "Read metrics of the operator here, such as pstraining_jobs.",
            )
        elif text == TFJOB_PORT and _PORT.search(path):
            notes.none(path, f"TensorFlow's port is named {contract.TF_PORT_NAME} here.", "Change it in the object.")
        elif not path.startswith("metadata") and (service := _service(text, jobs)):
            notes.none(
                path,
                f"{service} is a Service that TFJob creates.",
                f"Create a Service that selects {names.LABEL_JOB} and {names.LABEL_ROLE}, and name it here; with "
                "spec.worker.addressing: ClusterIP workers have such Services, too.",
            )


def notes_on_part(tfjob: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return a note if a TFJob that cannot be converted may be a patch of Kustomize, a part of a TFJob."""
    notes = Notes()
    if tfjob.get("apiVersion") in VERSIONS and _is_part(tfjob.get("spec", {})):
        notes.none("", "it may be a patch of Kustomize, which has only a part of a TFJob.", _renderer({"patches": []}))
    return tuple(notes.found)


def _is_part(spec: Any) -> bool:
    """Return whether a TFJob's spec has known fields, but not all fields that a whole TFJob has."""
    if not isinstance(spec, dict) or set(spec) - _OF_SPEC:
        return False
    roles = spec.get("tfReplicaSpecs", {})
    given = [role for role in roles.values() if isinstance(role, dict)] if isinstance(roles, dict) else []
    if len(given) == 1:
        return given[0].keys() < _OF_ROLE
    return not given or any("template" not in role for role in given)


def _tfjobs(value: Any, path: str) -> Iterator[tuple[str, bool]]:
    """Yield the paths of TFJobs in another object, as objects or as texts with a manifest, and of references to them.

    Each has whether it is a whole TFJob: a reference, such as an autoscaler's target, has no spec.
    """
    if isinstance(value, str):
        if _IN_TEXT.search(value):
            yield path, True
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _tfjobs(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        if path and is_tfjob(value):
            yield path, "spec" in value
            return
        for name, item in value.items():
            if name != LAST_APPLIED:  # the object once more
                yield from _tfjobs(item, join(path, name))


def _service(text: str, jobs: Collection[str]) -> str:
    """Return the name of a TFJob's Service in a text; empty without one."""
    return next((found[0] for job in sorted(jobs) if (found := service_in(text, job))), "")


def _refers(path: str, notes: Notes) -> None:
    notes.none(
        path,
        f"it refers to the kind {KIND}.",
        f"Refer to apiVersion {names.API_VERSION} and kind {names.KIND}, or remove it.",
    )


def _rules(value: Any, path: str, is_role: bool) -> Iterator[str]:
    """Yield the paths of rules on tfjobs: of a role, or of a webhook or a policy for admission."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rules(item, f"{path}[{index}]", is_role)
    elif isinstance(value, dict):
        resources, groups = _texts(value, "resources"), _texts(value, "apiGroups")
        is_whole_group = bool({"*", "*/*"} & {*resources}) and "*" not in groups and _GROUP in groups
        names_them = any(name.partition("/")[0] == "tfjobs" for name in resources)
        if is_whole_group or (names_them and (is_role or bool(groups))):
            yield path
        for name, item in value.items():
            yield from _rules(item, join(path, name), is_role)


def _texts(holder: Any, name: str) -> list[str]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _renderer(body: Mapping[str, Any]) -> str:
    """Return the advice for a file that another tool reads."""
    if any(name in body for name in _KUSTOMIZATION):
        return _RENDER.format("kubectl kustomize FOLDER")
    if body.get("apiVersion") and "version" in body:
        return _RENDER.format("helm template RELEASE CHART")
    return "Remove it."
