"""Rules across fields, as CEL inside the CRD: the API server itself refuses nonsense, in words that name the field.

Each rule is (expression, message); the generator attaches them at the place given by the function's name. Written in
Kubernetes' CEL (KEP-2876).
"""

from typing import Final

from pstraining.api import names

Rule = dict[str, str]

_RESERVED_ENV: Final = "PSTRAINING_"


def _main(containers: str) -> str:
    """The wrapped container of a template, as a CEL list of one."""
    return f"{containers}.filter(c, c.name == '{names.MAIN_CONTAINER}' || {containers}.size() == 1)"


def root() -> list[Rule]:
    """On the object as a whole: its name, and what may change while it runs."""
    free = (
        "oldSelf.spec.runPolicy.suspend || self.spec.runPolicy.suspend || "
        "(has(self.status) && has(self.status.phase) && self.status.phase == 'Invalid')"
    )
    fixed = "is immutable while the job runs: set spec.runPolicy.suspend to true, change it, and resume"
    return [
        {
            "rule": f"self.metadata.name.size() <= {names.MAX_JOB_NAME}",
            "message": f"metadata.name must have at most {names.MAX_JOB_NAME} characters: names of Services and pods "
            "are made from it",
        },
        {
            "rule": f"self.metadata.name.matches('{names.JOB_NAME_PATTERN}')",
            "message": "metadata.name must be lower-case letters, digits and '-', and start with a letter: names of "
            "Services are made from it",
        },
        {"rule": f"{free} || self.spec.ps == oldSelf.spec.ps", "message": f"spec.ps {fixed}", "fieldPath": ".spec.ps"},
        {
            "rule": f"{free} || self.spec.worker.template == oldSelf.spec.worker.template",
            "message": f"spec.worker.template {fixed}",
            "fieldPath": ".spec.worker.template",
        },
        {
            "rule": f"{free} || self.spec.worker.addressing == oldSelf.spec.worker.addressing",
            "message": f"spec.worker.addressing {fixed}",
            "fieldPath": ".spec.worker.addressing",
        },
        {
            "rule": f"{free} || self.spec.chief == oldSelf.spec.chief",
            "message": f"spec.chief {fixed}",
            "fieldPath": ".spec.chief",
        },
        {
            "rule": f"{free} || self.spec.training == oldSelf.spec.training",
            "message": f"spec.training {fixed}",
            "fieldPath": ".spec.training",
        },
        {
            "rule": f"{free} || (has(self.spec.checkpoint) == has(oldSelf.spec.checkpoint) && "
            "(!has(self.spec.checkpoint) || self.spec.checkpoint == oldSelf.spec.checkpoint))",
            "message": f"spec.checkpoint {fixed}",
            "fieldPath": ".spec.checkpoint",
        },
    ]


def pod_spec(path: str) -> list[Rule]:
    """On a template's pod spec."""
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
            "rule": f"{containers}.all(c, !has(c.env) || c.env.all(e, !e.name.startsWith('{_RESERVED_ENV}')))",
            "message": f"{path}.containers: names in env that start with {_RESERVED_ENV} are the operator's; rename",
        },
        {
            "rule": "!has(self.hostNetwork) || !self.hostNetwork",
            "message": f"{path}.hostNetwork is not supported: two tasks of a job on one node would fight for a port",
        },
        {
            "rule": "!has(self.restartPolicy)",
            "message": f"{path}.restartPolicy is not the pod's here: use restartPolicy of the role",
        },
    ]


def command(path: str) -> list[Rule]:
    """On a template's pod spec whose command is needed: the launcher runs it, and cannot know an image's entrypoint."""
    main = _main("self.containers")
    return [
        {
            "rule": f"{main}.all(c, has(c.command) && c.command.size() > 0)",
            "message": f"{path}.containers: the training container needs a command: the launcher runs it, and cannot "
            "read an image's entrypoint (args alone are not enough)",
        }
    ]


def ps() -> list[Rule]:
    """On spec.ps."""
    main = _main("self.template.spec.containers")
    return [
        {
            "rule": "self.server == 'Builtin' || !has(self.template) || "
            f"{main}.all(c, has(c.command) && c.command.size() > 0)",
            "message": "spec.ps.template.spec.containers: the training container needs a command, or spec.ps.server: "
            "Builtin",
        }
    ]


def checkpoint() -> list[Rule]:
    """On spec.checkpoint."""
    return [
        {
            "rule": "has(self.volume) != has(self.volumeClaimTemplate)",
            "message": "spec.checkpoint needs exactly one of volume and volumeClaimTemplate",
        },
        {
            "rule": "self.path != '/pstraining' && !self.path.startsWith('/pstraining/') && self.path != "
            "'/run/pstraining' && !self.path.startsWith('/run/pstraining/')",
            "message": "spec.checkpoint.path: /pstraining and /run/pstraining are the launcher's; choose another",
        },
    ]
