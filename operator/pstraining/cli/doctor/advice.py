"""Actions for reasons, for events of the runtime and for lines of the launcher, each with a section of the docs.

docs/users/troubleshoot.md names the same actions in the same sections; a test compares them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pstraining.api.conditions import Reason
from pstraining.api.run_policy import FailureReason

PAGE: Final = "docs/users/troubleshoot.md"
PENDING: Final = "the-job-stays-pending"
NOT_READY: Final = "pods-run-and-do-not-become-ready"
WAITS_FOR_SERVERS: Final = "workers-wait-for-parameter-servers"
INVALID: Final = "the-job-is-invalid"
STANDBYS: Final = "a-standby-is-missing"
STANDS_STILL: Final = "training-stands-still"
RESTARTS: Final = "something-restarts-repeatedly"
FAILED: Final = "the-job-has-failed"
GPUS: Final = "ps-or-chief-wait-for-nodes-with-gpus-or-fill-them"
CHECKPOINTS: Final = "a-checkpoint-is-not-durable-or-is-not-written"
NO_EFFECT: Final = "a-field-has-no-effect"
STOPS: Final = "it-does-not-stop-or-does-not-come-back"
SIZES: Final = "pods-get-another-size-or-template"
NOTHING_HAPPENS: Final = "nothing-happens-at-all"


NAMESPACE: Final = "{-n}"
"""The place in an action where its command names the namespace of the job."""


@dataclass(frozen=True)
class Advice:
    """The action to take next."""

    todo: str
    """The action; NAMESPACE follows the arguments of its command."""
    section: str
    """The heading's anchor on the page."""

    def action(self, namespace: str = "") -> str:
        """Return the action.

        Args:
            namespace: the namespace that the command names; empty for the context's.
        """
        return self.todo.replace(NAMESPACE, f" -n {namespace}" if namespace else "")

    def text(self, namespace: str) -> str:
        """Return the action and its section. `namespace` is as in `action`."""
        return f"{self.action(namespace)} See {PAGE}#{self.section}"


OF_REASONS: Final[Mapping[str, Advice]] = {
    Reason.WAITING_FOR_PODS: Advice(
        "Wait: after a minute, a pod that has not started is reported under another reason.", PENDING
    ),
    Reason.CHILDREN_MISSING: Advice("Wait: objects of the job are being created.", PENDING),
    Reason.SCHEDULING_GATED: Advice(
        "Wait for the controller that set the gate. For kueue.x-k8s.io/admission, check the queue's quota.", PENDING
    ),
    Reason.AWAITS_ADMISSION: Advice(
        f"Wait for quota, or check the queue: kubectl describe localqueue{NAMESPACE}.", PENDING
    ),
    Reason.KUEUE_NOT_INSTALLED: Advice(
        "Install Kueue, or suspend the job and remove its label kueue.x-k8s.io/queue-name.", PENDING
    ),
    Reason.QUEUE_IGNORED: Advice("Set kueue.enabled in the values of the operator's chart.", PENDING),
    Reason.UNSCHEDULABLE: Advice(
        "Request less, add nodes, or check taints, node selectors and unbound volumes.", PENDING
    ),
    Reason.WAITING_FOR_GANG: Advice("Request less, add nodes, or check that the job's scheduler runs.", PENDING),
    Reason.IMAGE_PULL_FAILED: Advice("Check the image's name, and the template's imagePullSecrets.", PENDING),
    Reason.CONTAINER_CONFIG_INVALID: Advice(
        "Check that every ConfigMap, Secret and key exists, and that the image has python3 on its PATH.", PENDING
    ),
    Reason.CRASH_LOOP: Advice(f"Read the log of the last run: kubectl logs --previous{NAMESPACE}.", PENDING),
    Reason.INIT_CONTAINER_FAILED: Advice(f"Read its log: kubectl logs --previous POD -c NAME{NAMESPACE}.", PENDING),
    Reason.QUOTA_EXCEEDED: Advice("Raise the quota, or request less.", PENDING),
    Reason.PODS_REFUSED: Advice(
        "Correct the cause that the API server names: a policy, Pod Security, a LimitRange, a service account.",
        PENDING,
    ),
    Reason.NODE_LOST: Advice("Repair the node, or delete its Node object if the machine is off.", PENDING),
    Reason.VOLUME_NOT_MOUNTED: Advice("Create the Secret, ConfigMap or claim, or check its storage.", PENDING),
    Reason.STILL_WAITING: Advice("Read the log and the events of the pod.", PENDING),
    Reason.WRITE_REFUSED: Advice("Correct the cause that the API server names; the operator retries.", PENDING),
    Reason.GANG_NOT_INSTALLED: Advice("Install the scheduler that the job names, or name another one.", PENDING),
    Reason.TEMPLATE_REFUSED: Advice("Correct the field that the message names, and apply the job again.", INVALID),
    Reason.NAME_TAKEN: Advice("Delete the object, or give the job another name.", INVALID),
    Reason.STATUS_TOO_LARGE: Advice("Use fewer replicas in one job, or raise etcd's --max-request-bytes.", INVALID),
    Reason.STATUS_REFUSED: Advice("Upgrade the CRD or the operator, so that both have the same version.", INVALID),
    Reason.NO_STEP: Advice("Look for workers that are missing or that wait for their data.", STANDS_STILL),
    Reason.STANDBY_MISSING: Advice(
        "Remove the obstacle that the message names: members of a shard need separate nodes.", STANDBYS
    ),
    Reason.PS_LOST: Advice("Wait: a parameter server is being restarted.", RESTARTS),
    Reason.CHIEF_REPLACED: Advice("Wait: a new attempt of the chief starts.", RESTARTS),
    Reason.WORKERS_LOST: Advice("Wait: the missing workers are being restarted.", RESTARTS),
    Reason.SPEC_CHANGED: Advice("Wait: the job stops, the chief first, and then starts with the new spec.", RESTARTS),
    Reason.JOB_RESTARTED: Advice("Wait: a rule of failurePolicy restarts the whole job.", RESTARTS),
    Reason.BACKOFF_LIMIT_EXCEEDED: Advice("Correct the cause of the last failure, and create the job again.", FAILED),
    Reason.REPLICA_FAILED: Advice("Correct the cause, or set restartPolicy: OnFailure for the role.", FAILED),
    Reason.FAILURE_RULE: Advice("Correct the cause, or the rule of failurePolicy that the message names.", FAILED),
    Reason.RESTARTS_EXCEEDED: Advice("Correct the cause of the restarts, or raise runPolicy.maxRestarts.", FAILED),
    Reason.TOO_FEW_WORKERS: Advice("Correct the workers' failures, or lower worker.minReplicas.", FAILED),
    Reason.DEADLINE_EXCEEDED: Advice("Raise runPolicy.activeDeadlineSeconds, and create the job again.", FAILED),
    Reason.NO_CHECKPOINT_VOLUME: Advice("Set spec.checkpoint if the parameters must survive their pods.", CHECKPOINTS),
    Reason.CHECKPOINT_VOLUME_NOT_DURABLE: Advice(
        "Use a claim instead of an emptyDir, an ephemeral volume or a hostPath.", CHECKPOINTS
    ),
    Reason.WORKER_TEMPLATE_COPIED: Advice("Set the fields that the message names.", GPUS),
    Reason.OTHER_FIELDS_PREVAIL: Advice("Change or remove the fields that the message names.", NO_EFFECT),
    Reason.SUSPENDED: Advice(f"Resume the job when it should run: kubectl pstraining resume{NAMESPACE}.", STOPS),
    Reason.STOPPING: Advice("Wait for the remaining pods, which end within their grace period.", STOPS),
    Reason.CHECKPOINTING: Advice("Wait: the chief saves the state, or prepares the next parameter servers.", STOPS),
    Reason.RESHARDING: Advice("Wait: the pods are deleted and created again.", STOPS),
    Reason.RESUMING: Advice("Wait: training resumes with the new number of parameter servers.", STOPS),
    Reason.STARTING_SERVERS: Advice("Wait, or correct what keeps the new servers from starting.", STOPS),
    Reason.REPLACING_SERVERS: Advice("Wait: parameter servers are replaced one at a time.", SIZES),
    Reason.UPDATE_REFUSED: Advice("Correct the template that the API server rejected.", SIZES),
}
"""Advice by the reason of a condition."""

OF_FAILURES: Final[Mapping[str, Advice]] = {
    FailureReason.ERROR: Advice("Read its log.", RESTARTS),
    FailureReason.OOM_KILLED: Advice(
        "Raise the memory: resources of the role, or the limit of its template.", RESTARTS
    ),
    FailureReason.START_TIMEOUT: Advice("Find out why the parameter servers do not answer.", RESTARTS),
    FailureReason.BAD_SETTINGS: Advice("Change the argument or field that the message names.", RESTARTS),
    FailureReason.INIT_FAILED: Advice(f"Read the init container's log: kubectl logs POD -c NAME{NAMESPACE}.", RESTARTS),
    **dict.fromkeys(
        (FailureReason.EVICTED, FailureReason.PREEMPTED, FailureReason.DELETED, FailureReason.NODE_LOST),
        Advice("Check the cluster: node pressure, drains and priorities.", RESTARTS),
    ),
}
"""Advice by the reason of a replica's last failure."""

OF_EVENTS: Final[Mapping[str, Advice]] = {
    "waiting": Advice("Check what it waits for.", STANDS_STILL),
    "silent": Advice("Check the network to that server, and the load of its node.", STANDS_STILL),
    "stuck": Advice("No action for one event. Report repeated ones, with the logs.", STANDS_STILL),
    "non_finite": Advice("Lower the learning rate, clip gradients, or check the data.", STANDS_STILL),
    "state_lost": Advice("No action: training resumes from the newest checkpoint.", STANDS_STILL),
    "checkpoint_failed": Advice("Free space on the checkpoint volume, or check access to the bucket.", CHECKPOINTS),
    "not_saved": Advice("Free space on the checkpoint volume, or check access to the bucket.", CHECKPOINTS),
    "checkpoint_unreadable": Advice("Check the storage of the checkpoints.", CHECKPOINTS),
}
"""Advice by the name of an event in the log of a program that uses pstraining.runtime."""

LAUNCHER_WAITS: Final = re.compile(r"waiting for PS (?P<what>.+?), since \d+ s")
"""The launcher's line about parameter servers that it waits for."""
_UNREACHABLE: Final = "Check the server's node, and NetworkPolicies that drop its packets."
_NO_NAME: Final = "Check the server's Service, and the cluster's DNS."
_OF_WAITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("timed out", "No route to host", "Network is unreachable"), _UNREACHABLE),
    "port 2223": "Check for a service mesh's proxy, and NetworkPolicies that drop port 2223.",
    "chief's attempt": "Wait: the server restarts for a new chief.",
    "it runs for layout": "Wait: the server restarts for another number of parameter servers.",
    "Terminating": "Wait: the server's pod is being deleted.",
    # glibc's messages, and musl's
    **dict.fromkeys(("Name or service", "name resolution", "No address associated", "does not resolve"), _NO_NAME),
}
"""The action by words of the reason for which a launcher waits."""


def of_waiting(line: str) -> Advice:
    """Return the advice for a launcher that waits for parameter servers, by the reason in its line."""
    found = (todo for words, todo in _OF_WAITS.items() if words in line)
    return Advice(next(found, "Read the log of the parameter server."), WAITS_FOR_SERVERS)
