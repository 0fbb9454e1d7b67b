"""For any TFJob, each leaf is in the PSTrainingJob or named in a note, and the converted job is usable."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.cli.tfjob.job import converted
from pstraining.cli.tfjob.notes import NoteKind, Notes
from pstraining.cli.tfjob.source import cleaned
from pstraining.cli.tfjob.template import TemplatesOf, converted_template
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity, validate
from pstraining.resources import pods
from pstraining.resources.launcher import LauncherMap
from tests.support import builders
from tests.support.soak_marks import examples, in_all
from tests.tfjob.accounting import REFUSED, ROLES, unaccounted

WORDS = st.sampled_from(
    ["a", "b/c", "TF_CONFIG", "training.kubeflow.org/job-name", "mnist-worker-0", "1e-3", "x\ny", ""]
)
SCALARS = st.one_of(WORDS, st.integers(-1, 3), st.booleans(), st.none(), st.just(0.5))
ANYTHING = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below.filter(lambda v: v is not None), max_size=2) | st.dictionaries(WORDS, below, max_size=2)
    ),
    max_leaves=4,
)
EXTRA = st.dictionaries(st.sampled_from(["lifecycle", "other field", "x"]), ANYTHING, max_size=1)
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["TF_CONFIG", "PSTRAINING_JOB", "CUDA_VISIBLE_DEVICES", "EPOCHS"])},
        optional={"value": st.sampled_from(["", "0"])},
    ),
    max_size=2,
    unique_by=lambda v: v["name"],
)
PORTS = st.lists(
    st.fixed_dictionaries(
        {"containerPort": st.sampled_from([80, 2222, 2223, 3333])},
        optional={"name": st.sampled_from(["tfjob-port", "tf", "http"]), "hostPort": st.just(80)},
    ),
    max_size=2,
)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu"]), st.sampled_from([1, "2"]), max_size=2)
RESOURCES = st.fixed_dictionaries(
    {}, optional={"limits": AMOUNTS, "requests": AMOUNTS, "claims": st.just([{"name": "g"}])}
)
PARTS = {"env": ENV, "ports": PORTS, "resources": RESOURCES, "args": st.just(["--lr", "1e-3"]), "x": ANYTHING}
TENSORFLOW = st.fixed_dictionaries(
    {
        "name": st.just("tensorflow"),
        "image": st.just("img:1"),
        "command": st.sampled_from([["python"]] * 8 + [["server"], None]),
    },
    optional=PARTS,
)
PROXY = st.fixed_dictionaries({"name": st.just("proxy")}, optional=PARTS)
POD = st.fixed_dictionaries(
    {"containers": st.tuples(TENSORFLOW, st.lists(PROXY, max_size=1)).map(lambda t: [*t[1], t[0]])},
    optional={
        "initContainers": st.lists(PROXY, max_size=1),
        "hostNetwork": st.booleans(),
        "hostname": st.just("me"),
        "restartPolicy": st.just("Always"),
        "serviceAccountName": st.just("me"),
        "securityContext": st.dictionaries(st.sampled_from(["runAsUser", "fsGroup"]), st.just(1)),
        "volumes": st.just([{"name": "v", "emptyDir": {}}]),
        "affinity": ANYTHING,
    },
)
TEMPLATE = st.fixed_dictionaries({"spec": POD}, optional={"metadata": st.fixed_dictionaries({"labels": EXTRA})})
NUMBERS = st.sampled_from([1, 2, 0])


@st.composite
def tfjobs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw TFJobs of which some templates are equal, and some differ only in their resources."""
    templates: list[Any] = [draw(TEMPLATE)]
    twin = copy.deepcopy(templates[0])
    twin["spec"]["containers"][-1]["resources"] = draw(RESOURCES)
    templates += [twin, draw(TEMPLATE)]
    specs = {}
    others = draw(st.lists(st.sampled_from(["Chief", "Evaluator"]), unique=True))
    for title in [draw(st.sampled_from(["PS", "ps"])), "Worker", *draw(st.sampled_from([others, ["master"]]))]:
        policy = {"restartPolicy": st.sampled_from(["Always", "OnFailure", "Never", "ExitCode", ""])}
        spec = draw(
            st.fixed_dictionaries({}, optional={"replicas": st.sampled_from([1] * 9 + [2, 0]), **policy, "x": ANYTHING})
        )
        specs[title] = {**spec, "template": draw(st.sampled_from(templates))}
    scheduling = {"priorityClass": WORDS, "queue": WORDS, "minAvailable": NUMBERS, "minResources": EXTRA, "x": ANYTHING}
    scheduling |= {"scheduleTimeoutSeconds": NUMBERS}
    run_policy = {
        "cleanPodPolicy": st.sampled_from(["All", "Running", "None", ""]),
        "ttlSecondsAfterFinished": NUMBERS,
        "activeDeadlineSeconds": st.sampled_from([0, 5, 2**40]),
        "backoffLimit": st.sampled_from([0, 20000]),
        "suspend": st.booleans(),
        "managedBy": st.sampled_from(["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]),
    }
    whole = {"schedulingPolicy": st.fixed_dictionaries({}, optional=scheduling), "x": ANYTHING, **run_policy}
    more = {
        "runPolicy": st.fixed_dictionaries({}, optional=whole),
        "successPolicy": st.sampled_from(["", "AllWorkers"]),
        "enableDynamicWorker": st.booleans(),
        "x": ANYTHING,
        **run_policy,
    }
    marks = {"labels": EXTRA, "annotations": EXTRA, "uid": WORDS, "finalizers": ANYTHING, "namespace": st.just("team")}
    name = st.sampled_from(["mnist", "a" * 50])
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": draw(st.fixed_dictionaries({"name": name}, optional=marks)),
        "spec": {"tfReplicaSpecs": specs, **draw(st.fixed_dictionaries({}, optional=more))},
        **draw(st.fixed_dictionaries({}, optional={"status": ANYTHING, "x": ANYTHING})),
    }


@settings(max_examples=examples(150))
@given(tfjobs())
def test_nothing_is_dropped_silently(job: dict[str, Any]) -> None:
    made = converted(job)
    if made.manifest is None:
        assert {n.kind for n in made.notes} == {NoteKind.NONE}
        return
    assert unaccounted(job, made) == []
    assert converted(copy.deepcopy(job)) == made


JUNK: Any = st.sampled_from(
    [None, True, -1, 2.5, "x", "", "${X}", "{{ .Values.x }}", [], {}, [3], [{}], [None], {"name": 3}]
)


def holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return every mapping and list, with every key or index in it."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from holders(value[key])


@in_all("tests/unit/cli/test_convert.py::test_all_obstacles_are_reported_in_one_run")
@settings(max_examples=examples(300))
@given(tfjobs(), st.lists(st.tuples(st.integers(0), JUNK), min_size=1, max_size=3))
def test_every_field_value_is_kept_named_or_rejected(job: dict[str, Any], junk: list[tuple[int, Any]]) -> None:
    job = copy.deepcopy(job)
    for place, value in junk:
        found = list(holders(job))
        holder, key = found[place % len(found)]
        holder[key] = copy.deepcopy(value)
    made = converted(job)
    assert any(note.kind in (NoteKind.REFUSED, NoteKind.NONE) for note in made.notes) or made.manifest is not None
    assert made.manifest is None or unaccounted(job, made) == []


@given(tfjobs())
def test_a_converted_job_follows_the_rules_or_a_note_reports_the_violation(job: dict[str, Any]) -> None:
    made = converted(job)
    if made.manifest is not None:
        refused = [f for f in validate(made.manifest) if f.severity is Severity.ERROR]
        reported = [n for n in made.notes if n.kind is NoteKind.NONE and REFUSED in n.message]
        assert bool(refused) is bool(reported)


@given(tfjobs())
def test_a_role_with_the_workers_template_gets_the_same_pods_as_with_its_own(job: dict[str, Any]) -> None:
    made = converted(job)
    if made.manifest is None or any(f.severity is Severity.ERROR for f in wrong_with(made.manifest)):
        return
    for title, replicas in cleaned(job)["spec"]["tfReplicaSpecs"].items():
        role = ROLES[title.lower()]
        if role == "worker" or "template" in made.manifest["spec"].get(role, {"template": ""}):
            continue
        explicit = copy.deepcopy(made.manifest)
        explicit["spec"][role].pop("resources", None)
        explicit["spec"][role]["template"] = converted_template(replicas["template"], "", TemplatesOf(""), Notes())
        if role in explicit["spec"] and explicit["spec"][role].get("enabled", True):
            assert rendered(made.manifest, role) == rendered(explicit, role)


def rendered(manifest: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the pod template of a role, without empty fields and without the variable that hides devices."""
    stored = {**manifest, "metadata": builders.job(manifest["metadata"]["name"])["metadata"]}
    template = pods.build(PSTrainingJob.model_validate(stored), pods.PodTask(role, 0), LauncherMap("launcher"))
    for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ())):
        container["env"] = [v for v in container.get("env", ()) if v["name"] != "CUDA_VISIBLE_DEVICES"]
        container["resources"] = {k: v for k, v in container.get("resources", {}).items() if v}
    # The cluster has the same tasks, whatever their templates.
    del template["metadata"]["annotations"][names.ANNOTATION_CLUSTER_HASH]
    return template
