"""Labels, annotations, selectors and scheduler names that have an effect on TFJobs, but not on PSTrainingJobs."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pstraining.api import names
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import join
from pstraining.resources import kueue
from pstraining.resources.gang import PROVIDERS

OURS = f"Ours are {names.LABEL_JOB}, {names.LABEL_ROLE} and, on workers, {names.LABEL_INDEX}."
_GROUP = "training.kubeflow.org/"
_LABELS = frozenset(
    [
        *("group-name", "group_name", "job-name", "job_name", "job-role", "job_role", "controller-name"),
        *("replica-type", "replica_type", "replica-index", "replica_index", "kubeflow.org", "job_type", "runtime_id"),
        *("tf-job-name", "tf_job_name", "tf-job-key", "tf_job_key", "task_index"),
        *("tf-replica-type", "tf_replica_type", "tf-replica-index", "tf_replica_index"),
    ]
)
"""Labels that TFJob's operator has set on pods since release 0.1, besides those of its group."""
_OF_OTHERS = ("job-name", "job_name", "controller-name", "kubeflow.org")
"""Labels that pods of other objects, such as Jobs, also have."""
_UNIQUE_IN_TEXT = re.compile(r"training[._]kubeflow[._]org[/_]|\btf[-_](job[-_](name|key)|replica[-_](type|index))\b")
"""Labels that only TFJob's operator sets, also as Prometheus writes them: label_training_kubeflow_org_job_name."""
_NAME = r"(?<![\w./-])tfjobs?(?![\w.-])"
_RESOURCE = re.compile(
    rf"\btfjobs\.kubeflow\.org\b|\bkubeflow\.org/v1\w*/(namespaces/[^/\s]+/)?tfjobs\b|\bkubectl\b[^\n]*{_NAME}",
    re.IGNORECASE,
)
_WORD = re.compile(_NAME, re.IGNORECASE)
_METRIC = re.compile(r"\b(tf|training)_operator_(jobs_\w+_total|is_leader)\b")
"""Metrics of TFJob's operator, under its former and its newer name."""
_FIELD_REFERENCE = re.compile(rf"metadata\.labels\['({'|'.join(map(re.escape, sorted(_LABELS)))})'\]")
_GANGS = (
    "scheduling.k8s.io/group-name",
    "scheduling.k8s.io/kube-batch",
    "scheduling.volcano.sh/",
    "volcano.sh/",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.sigs.k8s.io/",
    "scheduling.x-k8s.io/pod-group",
)
"""Prefixes of labels and annotations by which kube-batch, Volcano and the coscheduling plugins find gangs."""
_GONE = "kube-batch"
_KUEUE = "kueue.x-k8s.io/"
_PROVISIONING = "provreq.kueue.x-k8s.io/"
_KEYS = ("matchLabelKeys", "mismatchLabelKeys")
"""Fields with labels whose values a selector takes from the pod itself."""
_SELECTORS = ("selector", "labelSelector", "podSelector", "objectSelector", "endpointSelector", "primaryPodLabels")
"""Fields with label selectors; admission webhooks and policies, Cilium, and Katib have the last three."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def refers_to_labels(text: str) -> bool:
    """Return whether a text, such as a query or a field reference, names labels that TFJob's operator sets."""
    return names_only_theirs(text) or _FIELD_REFERENCE.search(text) is not None


def names_only_theirs(text: str) -> bool:
    """Return whether a text names labels that only TFJob's operator sets, unlike job-name, which Jobs also have."""
    return _UNIQUE_IN_TEXT.search(text) is not None


def metric_in(text: str) -> str:
    """Return the metric of TFJob's operator in a text; empty without one, or if the text is on other frameworks."""
    found = _METRIC.search(text)
    of_others = "framework" in text and "tensorflow" not in text
    return "" if found is None or of_others else found[0]


def names_resource(text: str) -> bool:
    """Return whether a text, such as a script with kubectl, names the resource of TFJobs."""
    return _RESOURCE.search(text) is not None


def commands_on_resource(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of words that name the resource in commands of kubectl that are lists, as in containers.

    Args:
        value: an object, or a part of it.
        path: the value's path.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from commands_on_resource(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        lists = {join(path, name): value[name] for name in ("command", "args") if isinstance(value.get(name), list)}
        words = [(f"{at}[{index}]", str(word)) for at, found in lists.items() for index, word in enumerate(found)]
        # The entrypoint of an image such as bitnami/kubectl is kubectl.
        if "kubectl" in str(value.get("image")) or any(word.endswith("kubectl") for _, word in words):
            yield from (at for at, word in words if _WORD.match(word))
        for name, item in value.items():
            yield from commands_on_resource(item, join(path, name))


def name_resource(path: str, notes: Notes) -> None:
    """Note a text that names the resource of TFJobs."""
    notes.none(path, "it names the resource of TFJobs.", "The one here is pstrainingjobs.pstraining.dev.")


def name_gangs(marks: Mapping[str, Any], path: str, metadata: Mapping[str, Any], notes: Notes) -> None:
    """Note the labels and annotations that request a gang.

    Args:
        marks: labels and annotations.
        path: path of the metadata.
        metadata: the metadata that has them.
        notes: receives the notes.
    """
    for mark in marks:
        kind = "labels" if mark in (metadata.get("labels") or {}) else "annotations"
        at = join(f"{path}.{kind}", mark)
        if mark.startswith(_GANGS):
            notes.none(
                at,
                "it requests a gang or a queue from kube-batch, Volcano or a coscheduling plugin. Here the operator "
                "creates the gang that the job requests; this is kept, and has no effect.",
                "Set spec.runPolicy.schedulingPolicy.gang to SchedulerPlugins or Volcano, and remove it.",
            )


def name_kueue(labels: Mapping[str, Any], annotations: Mapping[str, Any], path: str, notes: Notes) -> None:
    """Note labels of a template by which Kueue holds single pods, and annotations that it reads of a TFJob's pods.

    Args:
        labels: the template's labels.
        annotations: the template's annotations.
        path: path of the template's metadata.
        notes: receives the notes.
    """
    for label in labels:
        if label.startswith(_KUEUE):
            at = join(f"{path}.labels", label)
            notes.none(
                at,
                "Kueue's labels belong on the job. In templates, it ignores them, or holds their pods one by one.",
                f"Remove it, and set {_KUEUE}queue-name in metadata.labels of the job.",
            )
    for annotation in annotations:
        if annotation.startswith(_KUEUE):
            notes.none(
                join(f"{path}.annotations", annotation),
                "the operator does not pass this request, such as one for a topology, to Kueue. It is kept, and has no "
                "effect.",
                "Remove it, and place the pods by affinity in the template.",
            )


def name_kueue_of_job(annotations: Mapping[str, Any], path: str, notes: Notes) -> None:
    """Note annotations of the TFJob that Kueue copies to its Workload.

    Args:
        annotations: the TFJob's annotations.
        path: path of the annotations.
        notes: receives the notes.
    """
    for annotation in annotations:
        if annotation.startswith((_KUEUE, _PROVISIONING)) and annotation != kueue.PREBUILT:
            notes.none(
                join(path, annotation),
                "the operator does not pass this annotation to Kueue. It is kept, and has no effect.",
                "Remove it, or set it for the whole queue in Kueue.",
            )


def name_scheduler(spec: Mapping[str, Any], at: str, gang: bool, notes: Notes) -> None:
    """Note a scheduler that no longer exists, or that would place the pods one by one.

    Args:
        spec: the pod's spec.
        at: path of the spec.
        gang: whether the TFJob's schedulingPolicy requests a gang.
        notes: receives the notes.
    """
    name, path = spec.get("schedulerName"), f"{at}.schedulerName"
    if name == _GONE:
        notes.none(
            path,
            f"{_GONE} is no longer developed, and pods that name a scheduler that does not run stay Pending.",
            "Remove it, or set it to the scheduler of the cluster; gangs are set by "
            "spec.runPolicy.schedulingPolicy.gang.",
        )
    for kind, provider in PROVIDERS.items():
        if name == provider.scheduler and not gang:
            notes.different(
                path,
                f"TFJob's operator, with its option for {provider.product}, makes a gang of every job. Here "
                f"{provider.product} gets single pods.",
                f"Set spec.runPolicy.schedulingPolicy.gang: {kind}.",
            )


def name_selectors(
    spec: Mapping[str, Any], at: str, labels: Mapping[str, Any], of_job: Collection[str], notes: Notes
) -> tuple[str, ...]:
    """Note the selectors of a pod's affinity and spread that require labels of TFJob's operator.

    Args:
        spec: the pod's spec.
        at: path of the spec.
        labels: the template's labels.
        of_job: labels of all templates of the job.
        notes: receives the notes.

    Returns:
        The paths of these selectors.
    """
    found = []
    for path, selector in _selectors(spec, at):
        if not (foreign := [key for key in _keys(selector) if _is_theirs(key) and key not in of_job]):
            continue
        found.append(path)
        message = f"pods here do not have the labels of TFJob's operator ({', '.join(foreign)}): it selects no pod"
        if any(key in foreign for key in _excluded_keys(selector)):
            notes.different(path, f"{message.partition(':')[0]}: it excludes no pod.", OURS)
        elif _REQUIRED in path and ".podAffinity." in path:
            notes.none(path, f"{message}, and the pod stays Pending.", OURS)
        else:
            notes.different(path, f"{message}, and has no effect.", OURS)
    for path, keys in _label_keys(spec, at):
        if foreign := [key for key in keys if _is_theirs(str(key)) and key not in labels]:
            found.append(path)
            message = f"pods here do not have the labels of TFJob's operator ({', '.join(foreign)})"
            notes.different(path, f"{message}: Kubernetes ignores them there.", OURS)
    return tuple(found)


def name_selectors_of(body: Mapping[str, Any], jobs: Collection[str], notes: Notes) -> tuple[str, ...]:
    """Note the selectors of another object that require labels of TFJob's operator.

    Args:
        body: an object such as a Service, a NetworkPolicy or a PodMonitor.
        jobs: names of the TFJobs beside it.
        notes: receives the notes.

    Returns:
        The paths of these selectors.
    """
    found = []
    for path, selector in _selectors(body, ""):
        # A Job's pods have the label job-name, too, but not with the name of a TFJob.
        of_jobs = any(job in _values(selector) for job in jobs)
        if foreign := [key for key in _keys(selector) if _is_theirs(key) and (of_jobs or key not in _OF_OTHERS)]:
            found.append(path)
            notes.none(
                path,
                f"it selects by labels of TFJob's operator ({', '.join(foreign)}), which no pod here has.",
                OURS,
            )
    return tuple(found)


def _is_theirs(label: str) -> bool:
    return label.startswith(_GROUP) or label in _LABELS


def _selectors(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the label selectors below a value, with their paths."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _selectors(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _SELECTORS and isinstance(item, dict):
                yield join(path, name), item
            else:
                yield from _selectors(item, join(path, name))


def _label_keys(value: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of `_KEYS` below a value, with their paths."""
    items = enumerate(value) if isinstance(value, list) else ()
    for index, item in items:
        yield from _label_keys(item, f"{path}[{index}]")
    for name, item in value.items() if isinstance(value, dict) else ():
        if name in _KEYS and isinstance(item, list):
            yield join(path, name), item
        else:
            yield from _label_keys(item, join(path, name))


def _keys(selector: Mapping[str, Any]) -> list[str]:
    """Return the labels that a selector names. A Service's selector has them without matchLabels."""
    labels = selector.get("matchLabels", selector if "matchExpressions" not in selector else {})
    asked = [str(name) for name, value in labels.items() if isinstance(value, str)] if isinstance(labels, dict) else []
    return asked + [str(term.get("key")) for term in _terms(selector)]


def _values(selector: Mapping[str, Any]) -> list[Any]:
    """Return the values that a selector requires of the labels that other objects' pods also have."""
    labels = selector.get("matchLabels", selector)
    found = [labels.get(key) for key in _OF_OTHERS] if isinstance(labels, dict) else []
    several = [term.get("values") for term in _terms(selector) if term.get("key") in _OF_OTHERS]
    return found + [value for values in several if isinstance(values, list) for value in values]


def _excluded_keys(selector: Mapping[str, Any]) -> list[str]:
    return [str(term.get("key")) for term in _terms(selector) if term.get("operator") in ("NotIn", "DoesNotExist")]


def _terms(selector: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    terms = selector.get("matchExpressions")
    return [term for term in terms if isinstance(term, dict)] if isinstance(terms, list) else []
