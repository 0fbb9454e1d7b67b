"""Converts a TFJob's tfReplicaSpecs to our roles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import names
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import Fields
from pstraining.cli.tfjob.template import Template, TemplatesOf, converted_template, shared
from pstraining.cli.tfjob.users import note_users
from pstraining.cli.tfjob.versions import name_restarts
from pstraining.cli.validation.schema import did_you_mean

ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"
_ROLES = (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR)
"""Roles in the order of our spec."""
_MASTER = "master"
_TITLES = ("PS", "Worker", "Chief", "Master", "Evaluator")
"""The roles' names in a TFJob."""
_NOTHING: Template = {"spec": {"containers": [{"name": names.MAIN_CONTAINER}]}}
_POLICIES = (ALWAYS, ON_FAILURE, NEVER, "ExitCode")


@dataclass(frozen=True)
class Replicas:
    """One entry of tfReplicaSpecs."""

    path: str
    number: int
    policy: str
    template: Template
    """The converted template."""
    broken: bool = False
    """Whether the template was refused; `template` is then a placeholder."""


def read_roles(specs: Fields, job: TemplatesOf, notes: Notes) -> dict[str, Replicas]:
    """Return the TFJob's roles by our names.

    Args:
        specs: tfReplicaSpecs.
        job: the job of the templates.
        notes: receives the notes on the fields.
    """
    found: dict[str, Replicas] = {}
    for name in specs.names():
        role = names.CHIEF if name.lower() == _MASTER else name.lower()
        if role not in _ROLES:
            known = "a TFJob has Chief or Master, PS, Worker and Evaluator"
            notes.refused(specs.at(name), f"{known}{did_you_mean(role, _TITLES) or '.'}")
            specs.drop(name)
            continue
        if role in found:
            notes.refused(specs.at(name), f"{found[role].path} is the same role.", "Remove one of them.")
            specs.drop(name)
            continue
        before = len(notes.found)
        found[role] = _replicas(specs.below(name), job, notes)
        if role in (names.CHIEF, names.EVALUATOR) and not found[role].number:
            # The role is left out, so only what prevents reading it matters.
            notes.found[before:] = [note for note in notes.found[before:] if note.refused]
        elif name.lower() == _MASTER:
            notes.different(
                specs.at(name),
                "its task is called chief in TF_CONFIG, as TensorFlow 2 does, not master.",
                "Programs that check for the task type master must check for chief.",
            )
    return found


def without_role(found: Mapping[str, Replicas]) -> tuple[str, str] | None:
    """Return the reason that these roles cannot be converted, and the action to take; None if they can."""
    numbers = {role: one.number for role, one in found.items() if one.number}
    if not found:
        return "it names no role that can be read: a PSTrainingJob has at least one PS and one worker.", ""
    if not numbers:
        return (
            "all of its roles have replicas: 0, so it has no task. A PSTrainingJob has at least one PS and one worker.",
            "Set the replicas of PS and Worker, and convert again.",
        )
    zero = {role: " (replicas: 0)" if role in found else "" for role in (names.PS, names.WORKER)}
    if names.PS not in numbers and sum(number for role, number in numbers.items() if role != names.EVALUATOR) <= 1:
        return (
            f"the TFJob has no PS{zero[names.PS]} and a single task, which trains alone. A PSTrainingJob has at least "
            "one PS and one worker, so it cannot be converted.",
            "Run its pod template as a Job of Kubernetes (batch/v1).",
        )
    if names.PS not in numbers:
        return (
            f"the TFJob has no PS{zero[names.PS]}: its tasks train by all-reduce (MultiWorkerMirroredStrategy), or "
            "each on its own. A PSTrainingJob trains with at least one PS, so it cannot be converted.",
            "Add a PS and convert again if the program can use ParameterServerStrategy or pstraining.runtime; else run "
            "it with a JobSet or Kubeflow's Trainer.",
        )
    if names.WORKER not in numbers:
        return (
            f"the TFJob has no Worker{zero[names.WORKER]}. A PSTrainingJob has at least one PS and one worker, so it "
            "cannot be converted.",
            "Add a worker and convert again.",
        )
    return None


def converted_roles(found: Mapping[str, Replicas], notes: Notes) -> dict[str, Any]:
    """Return our ps, worker, chief and evaluator.

    Args:
        found: the TFJob's roles, with at least one PS and one Worker.
        notes: receives the notes on the fields.
    """
    roles: dict[str, Any] = {}
    for role in _ROLES:
        one = found.get(role)
        if one is not None and one.number:
            roles[role] = _converted(role, one, found[names.WORKER], notes)
        elif role == names.CHIEF:
            roles[role] = {"enabled": False}
        if one is not None and role in (names.CHIEF, names.EVALUATOR):
            _single(role, one, notes)
    return roles


def _replicas(fields: Fields, job: TemplatesOf, notes: Notes) -> Replicas:
    number, policy = fields.number("replicas"), fields.take("restartPolicy", str)
    path = fields.at("restartPolicy")
    if not fields.is_set("restartPolicy"):
        name_restarts(job.version, path, notes)
    lost = "a pod that Kubernetes ends (evicted, preempted, deleted) is replaced under Never, too."
    if policy and policy not in _POLICIES:
        notes.refused(path, f"it must be one of {', '.join(_POLICIES)}, is {policy}.")
    elif not fields.is_set("restartPolicy"):
        notes.changed(path, f"it is not set; TFJob's default, Never, is written out, because ours is OnFailure; {lost}")
    elif policy == NEVER:
        notes.different(path, lost)
    if not fields.has("template"):
        notes.refused(fields.at("template"), "it is missing.")
    template = fields.take("template", dict)
    made = None if template is None else converted_template(template, fields.at("template"), job, notes)
    fields.close()
    number = 1 if number is None else number
    return Replicas(fields.path, number, policy or NEVER, _NOTHING if made is None else made, made is None)


def _converted(role: str, one: Replicas, worker: Replicas, notes: Notes) -> dict[str, Any]:
    found: dict[str, Any] = {"enabled": True} if role == names.EVALUATOR else {}
    if role in (names.PS, names.WORKER):
        found["replicas"] = one.number
    found["restartPolicy"] = one.policy
    path = f"{one.path}.template"
    by_worker = None if role == names.WORKER or one.broken else shared(worker.template, one.template)
    if by_worker is None:
        if not one.broken:
            note_users(one.template, path, notes)
        return {**found, "template": one.template}
    but = ", except for its resources" if by_worker else ""
    notes.changed(
        path,
        f"it is the worker's{but}, so it is written once: spec.{role} runs the worker's without its devices (GPUs), "
        "with CUDA_VISIBLE_DEVICES empty.",
    )
    return found | by_worker


def _single(role: str, one: Replicas, notes: Notes) -> None:
    if one.number > 1:
        notes.none(
            f"{one.path}.replicas", f"a job has one {role}, not {one.number}.", "Check that the program works with one."
        )
    elif not one.number:
        notes.changed(one.path, f"with replicas: 0 there is no {role}; it is left out.")
    if role == names.EVALUATOR and one.number:
        notes.different(
            one.path,
            "TF_CONFIG's cluster does not name the evaluator, because most TensorFlow 2 programs hang if it does.",
            "Set spec.evaluator.inCluster: true for a program that needs it, such as some with Estimators.",
        )
    if one.number and one.policy in (ALWAYS, ON_FAILURE):
        _scratch(role, one, notes)


def _scratch(role: str, one: Replicas, notes: Notes) -> None:
    """Note the volumes that last as long as a pod: each attempt of a chief or an evaluator has a pod of its own."""
    volumes = one.template["spec"].get("volumes")
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        for kind in ("emptyDir", "ephemeral"):
            source = volume.get(kind) if isinstance(volume, dict) else None
            if isinstance(source, dict) and source.get("medium") != "Memory":
                notes.different(
                    f"{one.path}.template.spec.volumes[{index}].{kind}",
                    f"TFJob restarts the {role} in its pod, which keeps these files. Here each attempt has a new pod, "
                    "without them.",
                    "Use a claim if the program continues from these files, such as checkpoints.",
                )


def note_always(found: Mapping[str, Replicas], all_workers: bool, notes: Notes) -> None:
    """Note that exit code 0 of the evaluator, and of the chief or worker 0 without one, is final also under Always.

    Args:
        found: the TFJob's roles.
        all_workers: whether the job succeeds with all workers. Those under Always then have a note of their own.
        notes: receives the notes.
    """
    evaluator = found.get(names.EVALUATOR)
    if evaluator is not None and evaluator.number and evaluator.policy == ALWAYS:
        notes.different(
            f"{evaluator.path}.restartPolicy",
            "TFJob runs an evaluator that ends with exit code 0 again. Here it has ended.",
            "Let its program evaluate in a loop.",
        )
    chief = found.get(names.CHIEF)
    duty = chief if chief is not None and chief.number else found[names.WORKER]
    if duty.policy != ALWAYS or (all_workers and duty is not chief):
        return
    task = "the chief" if duty is chief else "worker 0"
    whose = "its" if all_workers else "the job's"
    notes.different(f"{duty.path}.restartPolicy", f"exit code 0 of {task} is {whose} success also under {ALWAYS}.")
