"""Rules across fields, in Kubernetes' CEL (KEP-2876): the API server itself rejects contradictory fields.

Each rule has an expression and a message that names the field. The generator attaches a function's rules to the schema
that its name refers to.
"""

from typing import Final

from pstraining.api import contract, names

Rule = dict[str, str]

_RESERVED_ENV: Final = "PSTRAINING_"
_FREE_ENV: Final = " || ".join(f"e.name == '{name}'" for name in contract.ENV_OF_TEMPLATES)


def _main(containers: str) -> str:
    """Return a CEL expression for a list with one item, the training container of a template."""
    return f"{containers}.filter(c, c.name == '{names.MAIN_CONTAINER}' || {containers}.size() == 1)"


FIXED_WHILE_RUNNING: Final = (
    *(f"ps.{f}" for f in ("server", "standby", "onChiefRestart?", "restartPolicy")),
    *("ps.volumeClaimTemplates?", "ps.persistentVolumeClaimRetentionPolicy"),
    *(f"worker.{f}" for f in ("template", "addressing", "restartPolicy")),
    *(f"chief.{f}" for f in ("enabled", "template?", "restartPolicy")),
    *(f"evaluator.{f}" for f in ("enabled", "template?", "restartPolicy", "inCluster")),
    *("checkpoint?", "training", "network.topologyKey", "network.packTopologyKey?"),
    *("runPolicy.nodeLossSeconds", "runPolicy.schedulingPolicy"),
)
"""Fields that are rendered into pods, with a question mark if they may be absent. Running pods are not rendered again.
Sizes are not among them, because running pods are resized (core/policies/resizing.py)."""
CHECKPOINT_FIXED: Final = (
    *("path", "keep", "intervalSeconds?", "fullEvery?", "history?", "uri?", "volume?", "volumeClaimTemplate?"),
)
"""The fields of spec.checkpoint that are rendered into pods."""


FREE_WITH_HOT_STANDBYS: Final = ("ps.template?",)
"""Fields that may change while hot standbys run, because parameter servers are then replaced one at a time."""


def _fixed(free: str, field: str, why: str) -> Rule:
    path = f"spec.{field.rstrip('?')}"
    parts = [f"{path}.{part}" for part in CHECKPOINT_FIXED] if field == "checkpoint?" else [f"spec.{field}"]
    same = " && ".join(_same(part) for part in parts)
    if field == "checkpoint?":
        same = f"(has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || ({same})))"
    return {"rule": f"{free} || {same}", "message": f"{path} {why}", "fieldPath": f".{path}"}


def _same(field: str) -> str:
    path = field.rstrip("?")
    same = f"self.{path} == oldSelf.{path}"
    # Without has() an absent field is an error; CEL's optional types exceed the cost budget more than 100 times.
    if field.endswith("?"):
        same = f"(has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same}))"
    return same


def _fixed_voters(free: str) -> Rule:
    """Return the rule that fixes the voters: two majorities share a worker only if the voters stay the same."""
    has = "has({}.spec.worker.minReplicas)"
    number = "({0} ? {1}.spec.worker.minReplicas : {1}.spec.worker.replicas)"
    before, after = (number.format(has.format(version), version) for version in ("oldSelf", "self"))
    return {
        "rule": f"{free} || self.spec.ps.standby.mode != 'Hot' || {before} == {after}",
        "message": "spec.worker: with hot standbys the first minReplicas workers, or all, vote on lost members: set "
        "minReplicas before the job runs to change replicas while it does",
        "fieldPath": ".spec.worker.minReplicas",
    }


def _fixed_workers(free: str) -> Rule:
    """Return the rule that fixes the number of gradients in a sum of a fixed order."""
    ordered = "has(self.spec.training.orderedSums) && self.spec.training.orderedSums"
    return {
        "rule": f"{free} || !({ordered}) || {_same('spec.worker.replicas')}",
        "message": "spec.worker.replicas is immutable with orderedSums while the job runs: suspend, change and "
        "resume it",
        "fieldPath": ".spec.worker.replicas",
    }


def root() -> list[Rule]:
    """Return the rules on the whole object: its name, and the fields that may change while it runs."""
    free = (
        "oldSelf.spec.runPolicy.suspend || self.spec.runPolicy.suspend || "
        "(has(self.status) && has(self.status.phase) && self.status.phase == 'Invalid')"
    )
    fixed = "is immutable while the job runs: set runPolicy.suspend to true, change it and resume"
    unless_hot = fixed.replace("runs:", "runs without hot standbys:")
    return [
        {
            "rule": f"self.metadata.name.size() <= {names.MAX_JOB_NAME}",
            "message": f"metadata.name must have at most {names.MAX_JOB_NAME} characters: names of Services and pods "
            "start with it",
        },
        {
            "rule": f"self.metadata.name.matches('{names.JOB_NAME_PATTERN}')",
            "message": "metadata.name must be lower-case letters, digits and '-', and start with a letter: names of "
            "Services start with it",
        },
        *(_fixed(free, path, fixed) for path in FIXED_WHILE_RUNNING),
        *(_fixed(f"{free} || self.spec.ps.standby.mode == 'Hot'", path, unless_hot) for path in FREE_WITH_HOT_STANDBYS),
        _fixed_voters(free),
        _fixed_workers(free),
        {
            "rule": "self.spec.runPolicy.managedBy == oldSelf.spec.runPolicy.managedBy",
            "message": "spec.runPolicy.managedBy is immutable: delete the job and create it again",
            "fieldPath": ".spec.runPolicy.managedBy",
        },
        {
            "rule": "has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && "
            "(!has(self.spec.managedBy) || self.spec.managedBy == oldSelf.spec.managedBy)",
            "message": "spec.managedBy is immutable: delete the job and create it again",
            "fieldPath": ".spec.managedBy",
        },
        {
            "rule": f"self.spec.runPolicy.managedBy != '{names.MULTIKUEUE}'",
            "message": f"spec.runPolicy.managedBy: MultiKueue reads spec.managedBy; set {names.MULTIKUEUE} there",
            "fieldPath": ".spec.runPolicy.managedBy",
        },
    ]


def training() -> list[Rule]:
    """Return the rules on spec.training."""
    sync = "has(self.mode) && self.mode == 'Sync'"
    hybrid = "has(self.mode) && self.mode == 'Hybrid'"
    pull = "!has(self.compression) || !has(self.compression.pull) || self.compression.pull in ['None', 'Bf16', 'Auto']"
    auto = "((has(self.compression.push) && self.compression.push == 'Auto') || (has(self.compression.pull) && "
    auto += "self.compression.pull == 'Auto'))"
    plain = " && ".join(
        f"(!has(self.compression.{way}) || self.compression.{way} == 'None')" for way in ("push", "pull")
    )
    return [
        {
            "rule": f"!({hybrid}) || !has(self.compression) || ({plain})",
            "message": "spec.training.compression cannot be used with mode Hybrid, where workers exchange dense "
            "gradients directly; remove it, or set spec.training.mode to Sync or Async",
            "fieldPath": ".compression",
        },
        {
            "rule": f"!({hybrid}) || !has(self.localSteps) || self.localSteps == 1",
            "message": "spec.training.localSteps cannot be used with mode Hybrid; use accumulationSteps",
            "fieldPath": ".localSteps",
        },
        {
            "rule": f"{pull} || ({sync})",
            "message": "spec.training.compression.pull must be None, Bf16 or Auto in mode Async; other codecs need "
            "spec.training.mode: Sync",
            "fieldPath": ".compression",
        },
        {
            "rule": "!has(self.localSteps) || self.localSteps == 1 || !has(self.accumulationSteps) || "
            "self.accumulationSteps == 1",
            "message": "spec.training.localSteps and accumulationSteps cannot be used together; remove one of them",
            "fieldPath": ".localSteps",
        },
        {
            "rule": "!has(self.maxStaleness) || !has(self.mode) || self.mode == 'Async'",
            "message": "spec.training.maxStaleness needs mode Async, because only its workers are at different steps; "
            "remove it",
            "fieldPath": ".maxStaleness",
        },
        {
            "rule": "!has(self.overlapCommunication) || !self.overlapCommunication || ((!has(self.mode) || "
            "self.mode == 'Async') && (!has(self.localSteps) || self.localSteps == 1))",
            "message": "spec.training.overlapCommunication needs mode Async without localSteps; remove it, or remove "
            "mode and localSteps",
            "fieldPath": ".overlapCommunication",
        },
        {
            "rule": f"!has(self.backupWorkers) || self.backupWorkers == 0 || ({sync})",
            "message": "spec.training.backupWorkers needs spec.training.mode: Sync, whose updates can leave out slow "
            "workers",
            "fieldPath": ".backupWorkers",
        },
        {
            "rule": f"!has(self.orderedSums) || !self.orderedSums || ({sync})",
            "message": "spec.training.orderedSums needs spec.training.mode: Sync, whose servers can add gradients in a "
            "fixed order",
            "fieldPath": ".orderedSums",
        },
        {
            "rule": "!has(self.orderedSums) || !self.orderedSums || !has(self.backupWorkers) || "
            "self.backupWorkers == 0",
            "message": "spec.training.orderedSums waits for every worker and cannot be used with backupWorkers; remove "
            "one of them",
            "fieldPath": ".orderedSums",
        },
        {
            "rule": f"!has(self.orderedSums) || !self.orderedSums || !has(self.compression) || !{auto}",
            "message": "spec.training.orderedSums repeats a run bit for bit, and cannot be used with compression Auto, "
            "which depends on measured times; choose a fixed codec",
            "fieldPath": ".orderedSums",
        },
    ]


def pod_spec(path: str) -> list[Rule]:
    """Return the rules on a template's pod spec."""
    containers = "self.containers"
    return [
        {
            "rule": f"{containers}.size() == 1 || {containers}.exists(c, c.name == '{names.MAIN_CONTAINER}')",
            "message": f"{path}.containers: with more than one container, name the one that trains "
            f"'{names.MAIN_CONTAINER}'",
        },
        {
            "rule": f"{containers}.all(c, !has(c.env) || c.env.all(e, e.name != 'TF_CONFIG'))",
            "message": f"{path}.containers: TF_CONFIG is set by the operator; remove it from env",
        },
        {
            "rule": f"{containers}.all(c, !has(c.env) || c.env.all(e, !e.name.startsWith('{_RESERVED_ENV}') || "
            f"{_FREE_ENV}))",
            "message": f"{path}.containers: names in env that start with {_RESERVED_ENV} are reserved, except "
            f"{' and '.join(contract.ENV_OF_TEMPLATES)}; rename them",
        },
        {
            "rule": "!has(self.hostNetwork) || !self.hostNetwork",
            "message": f"{path}.hostNetwork is not supported, because two tasks on one node would need the same port; "
            "remove it",
        },
        {
            "rule": "!has(self.restartPolicy)",
            "message": f"{path}.restartPolicy is not supported: use restartPolicy of the role",
        },
    ]


def command(path: str) -> list[Rule]:
    """Return the rule that requires a command: the launcher runs it, and cannot read an image's entrypoint."""
    main = _main("self.containers")
    return [
        {
            "rule": f"{main}.all(c, has(c.command) && c.command.size() > 0)",
            "message": f"{path}.containers: the training container needs a command: the launcher runs it, and cannot "
            "read an image's entrypoint (args alone are not enough)",
        }
    ]


def spec() -> list[Rule]:
    """Return the rules on spec."""
    least = "self.runPolicy.schedulingPolicy.minAvailable"
    always = "self.ps.replicas + (self.chief.enabled ? 1 : 0)"
    needed = "(has(self.worker.minReplicas) ? self.worker.minReplicas : self.worker.replicas)"
    return [
        {
            "rule": "self.successPolicy != 'AllWorkers' || self.worker.restartPolicy != 'Always'",
            "message": "spec.successPolicy AllWorkers needs workers that can succeed: set spec.worker.restartPolicy to "
            "another value than Always",
        },
        {
            "rule": "self.ps.standby.mode != 'Hot' || has(self.training.mode)",
            "message": "spec.ps.standby.mode Hot needs pstraining.runtime: set spec.training.mode to Sync, Async or "
            "Hybrid",
            "fieldPath": ".ps",
        },
        {
            "rule": "!has(self.autoscaling.mode) || self.autoscaling.mode != 'Full' || has(self.checkpoint)",
            "message": "spec.autoscaling.mode Full needs spec.checkpoint, from which training may resume with more "
            "parameter servers: add it, or set spec.autoscaling.mode to Grow",
            "fieldPath": ".autoscaling",
        },
        {
            "rule": f"!has({least}) || ({least} >= {always} + {needed} && {least} <= {always} + self.worker.replicas)",
            "message": "spec.runPolicy.schedulingPolicy.minAvailable must be at least all parameter servers, the chief "
            "and spec.worker.minReplicas workers (all without it), and at most all of these with "
            "spec.worker.replicas: change these numbers, or change or remove it; for the latter, set "
            "runPolicy.suspend to true first if the job runs",
            "fieldPath": ".runPolicy.schedulingPolicy",
        },
    ]


def scheduling_policy() -> list[Rule]:
    """Return the rules on spec.runPolicy.schedulingPolicy."""
    return [
        {
            "rule": "!has(self.queue) || self.gang == 'Volcano'",
            "message": "spec.runPolicy.schedulingPolicy.queue: only Volcano has queues; set gang to Volcano, or remove "
            "the queue",
            "fieldPath": ".queue",
        },
        {
            "rule": "!has(self.minAvailable) || self.gang != 'None'",
            "message": "spec.runPolicy.schedulingPolicy.minAvailable: without a gang pods are scheduled one by one; "
            "set gang as well, or remove it",
            "fieldPath": ".minAvailable",
        },
        {
            "rule": "!has(self.timeoutSeconds) || self.gang == 'SchedulerPlugins'",
            "message": "spec.runPolicy.schedulingPolicy.timeoutSeconds: only SchedulerPlugins has such a timeout; set "
            "gang to SchedulerPlugins, or remove it",
            "fieldPath": ".timeoutSeconds",
        },
    ]


def worker() -> list[Rule]:
    """Return the rules on spec.worker."""
    return [
        {
            "rule": "!has(self.minReplicas) || self.minReplicas <= self.replicas",
            "message": "spec.worker.minReplicas must not be greater than spec.worker.replicas",
            "fieldPath": ".minReplicas",
        }
    ]


def ps() -> list[Rule]:
    """Return the rules on spec.ps."""
    hot = "self.standby.mode == 'Hot'"
    main = _main("self.template.spec.containers")
    claims, claim = "self.volumeClaimTemplates", "c.metadata.name"
    ours = ", ".join(f"'{name}'" for name in names.VOLUMES)
    return [
        {
            "rule": f"!has({claims}) || {claims}.all(c, {claims}.exists_one(d, d.metadata.name == {claim}))",
            "message": "spec.ps.volumeClaimTemplates: two templates have the same name; rename one of them",
            "fieldPath": ".volumeClaimTemplates",
        },
        {
            "rule": f"!has({claims}) || {claims}.all(c, !({claim} in [{ours}]))",
            "message": f"spec.ps.volumeClaimTemplates: {', '.join(names.VOLUMES)} are the operator's volumes; choose "
            "another name",
            "fieldPath": ".volumeClaimTemplates",
        },
        {
            "rule": "self.server == 'Builtin' || !has(self.template) || "
            f"{main}.all(c, has(c.command) && c.command.size() > 0)",
            "message": "spec.ps.template.spec.containers: the training container needs a command, or spec.ps.server: "
            "Builtin",
        },
        {
            "rule": f"!({hot}) || self.standby.replicasPerShard <= 2",
            "message": "spec.ps.standby.replicasPerShard must be 1 or 2 with hot standbys",
            "fieldPath": ".standby",
        },
        {
            "rule": "self.standby.mode != 'None' || !has(self.standby.placement)",
            "message": "spec.ps.standby.placement places standbys, and mode None has none: set spec.ps.standby.mode to "
            "Warm or Hot",
            "fieldPath": ".standby",
        },
        {
            "rule": f"!({hot}) || !has(self.onChiefRestart) || self.onChiefRestart != 'Restart'",
            "message": "spec.ps.onChiefRestart: Restart would delete the state on hot standbys; remove it",
            "fieldPath": ".onChiefRestart",
        },
    ]


def checkpoint() -> list[Rule]:
    """Return the rules on spec.checkpoint."""
    return [
        {
            "rule": "[has(self.uri), has(self.volume), has(self.volumeClaimTemplate)].exists_one(given, given)",
            "message": "spec.checkpoint needs exactly one of uri, volume and volumeClaimTemplate",
        },
        {
            "rule": "!has(self.uri) || self.path == '/checkpoints'",
            "message": "spec.checkpoint.path is the mount path of a volume, and uri has none; remove path",
            "fieldPath": ".path",
        },
        {
            "rule": "self.retainPolicy != 'Delete' || has(self.volumeClaimTemplate)",
            "message": "spec.checkpoint.retainPolicy: Delete needs volumeClaimTemplate, because the operator never "
            "deletes your own claim; remove it",
            "fieldPath": ".retainPolicy",
        },
        {
            # As in a path, more slashes and parts of dots have no effect.
            "rule": "!self.path.matches('^/+([.]+(/+|$))*((run/+)?pstraining(/.*)?)?$')",
            "message": "spec.checkpoint.path: /, /pstraining and /run/pstraining are reserved for the image and the "
            "launcher; choose another path",
        },
    ]
