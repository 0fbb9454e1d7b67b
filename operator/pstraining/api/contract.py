"""The contract between the operator, the launcher and the runtime: the environment of a training program.

The operator renders it, the launcher reads it, and the runtime and user programs may depend on it. The launcher has its
own copy of the literals, because it only uses the standard library; tests/contract compares both. A change here changes
a public interface.
"""

from typing import Final

TF_PORT: Final = 2222
"""Port of TensorFlow's server on every task."""
TF_PORT_NAME: Final = "tf"
STATUS_PORT: Final = 2223
"""Port of the launcher's read-only HTTP server."""
STATUS_PORT_NAME: Final = "status"
RING_PORTS: Final = range(2224, 2239)
"""Ports reserved for all-reduce among workers."""
WITNESS_PORT: Final = 2239
"""Port of a worker's witness, which votes on the members in sync of parameter servers with hot standbys. The ports up
to this one are the training ports, a range that only the job's own pods reach."""
WITNESS_PORT_NAME: Final = "pst-witness"
METRICS_PORT: Final = 2240
"""Port of the runtime's metrics on a chief and on workers. It is not a training port, so other pods may reach it."""
METRICS_PORT_NAME: Final = "pst-metrics"
PORTS: Final = {
    TF_PORT_NAME: TF_PORT,
    STATUS_PORT_NAME: STATUS_PORT,
    WITNESS_PORT_NAME: WITNESS_PORT,
    METRICS_PORT_NAME: METRICS_PORT,
}
"""The operator's ports in the training container, by name. Each task has some of them."""
RESERVED_PORTS: Final = range(TF_PORT, METRICS_PORT + 1)
"""TCP ports of a pod that no other program may use."""

METRICS_MAX: Final = 256
"""Maximum number of metrics in a report of progress, as in Kubeflow's KEP-2779. The operator refuses a report with
more, and with it the step."""
METRIC_NAME_MAX: Final = 253
"""Maximum characters of a metric's name in a report."""
STALL_MAX: Final = 1024
"""Maximum characters in a report of the reason why training makes no steps."""
INTEGER_MAX: Final = 2**63 - 1
"""Largest whole number in a report: the API server stores no larger one."""

MOUNT_DIR: Final = "/pstraining"
"""Folder in which the launcher and the cluster map are mounted, read-only, as one projected volume."""
LAUNCHER_FILE: Final = "launch.py"
CLUSTER_FILE: Final = "cluster.json"
"""The cluster map: job, namespace, cluster (task type to addresses), training and checkpoint settings, as JSON. With
hot standbys also `members`, the number of servers per shard (with n shards, task i + m n is member m of shard i), and
`witnesses`, the addresses of the workers that vote."""
WITNESSES_KEYS: Final = ("witnesses", "seats")
"""Keys of the witnesses in the cluster map. The operator writes both, and the runtime reads the first that exists: the
runtime in a task's image may be older or newer than the operator, and may know only one of them."""
RUN_DIR: Final = "/run/pstraining"
"""A writable emptyDir that lives as long as the pod, with markers of the task's state."""
SUCCESS_MARKER: Final = "succeeded"
"""File in RUN_DIR: the program has ended with 0 and must not run again in this pod."""
FAILED_MARKER: Final = "failed"
"""File in RUN_DIR: the program has failed for good and must not run again in this pod; it holds the exit code."""
OWNED_MARKERS: Final = ("runtime-owned", "owned")
"""Files in RUN_DIR of a PS that pstraining.runtime's chief writes through the PS's own device. They show that the
runtime owns the server's state and fences it by the chief's term, so the launcher keeps the state when a new attempt of
the chief starts. The second name is that of former versions. The launcher comes with the operator and the runtime with
the job's image, so their versions may differ: the chief writes both files, and the launcher accepts either."""
NODE_FILE: Final = "node"
"""File in RUN_DIR of a PS with hot standbys, and of such a standby: the name of its node. Workers read it through the
PS's own device: members on one node may be lost together."""
IDLES: Final = "it does not run again in this pod, which idles until it is removed"
"""The end of the last line that a launcher logs when it no longer runs its program. The program's own log is that of
the container's previous run."""
IN_SYNC_MARKER: Final = "in-sync"
"""File in RUN_DIR of a PS with hot standbys, and of such a standby. The chief writes to it, through the PS's own
device, the term and epoch since which the server is in sync; it is empty if the server is not in sync. The launcher
serves it. Such a PS is ready only while it is in sync, or while no member is in sync."""
DRAINING_MARKERS: Final = ("draining", "leaving")
"""Files in RUN_DIR of such a PS: its pod is being terminated. The launcher writes both, and the chief accepts either,
as with OWNED_MARKERS. The chief reads them through the PS's own device, switches over to the other members, and empties
IN_SYNC_MARKER. The launcher waits some seconds for this, and longer while no other member has the shard's state."""

LAYOUT_FILE: Final = "layout"
"""File in RUN_DIR with the number of the layout that a process uses. The launcher writes it at the start of a process.
The runtime writes it when training continues in another layout without a restart: the chief through each PS's own
device, and every program for itself. A launcher whose cluster map has the number in this file restarts nothing."""
TRANSFER_FILE: Final = "transfer-"
"""Beginning of the names of files in RUN_DIR of a PS that the PS's launcher uploads to an object store, or downloads.
The chief writes them, and each request beside its file (`<name>.json`), through the PS's own device."""
TRANSFERS_PATH: Final = "/v1/transfers/"
"""Path at which a PS's launcher starts a transfer; the file's name follows."""

LAUNCH_COMMAND: Final = ("python3", f"{MOUNT_DIR}/{LAUNCHER_FILE}", "--")

ENV_JOB: Final = "PSTRAINING_JOB"
ENV_JOB_UID: Final = "PSTRAINING_JOB_UID"
"""On the chief: the job's uid. A job that is created again has another uid, and its terms start again."""
ENV_NAMESPACE: Final = "PSTRAINING_NAMESPACE"
ENV_TASK_TYPE: Final = "PSTRAINING_TASK_TYPE"
"""TensorFlow's task type: chief, worker, ps or evaluator."""
ENV_TASK_INDEX: Final = "PSTRAINING_TASK_INDEX"
ENV_TERM: Final = "PSTRAINING_TERM"
"""On the chief: the attempt's number, from 1 and unique in a job, which is its fencing token."""
ENV_POD_NAME: Final = "PSTRAINING_POD_NAME"
ENV_POD_UID: Final = "PSTRAINING_POD_UID"
ENV_POD_IP: Final = "PSTRAINING_POD_IP"
ENV_NODE: Final = "PSTRAINING_NODE"
"""On parameter servers with hot standbys: the pod's node."""
ENV_SERVER: Final = "PSTRAINING_SERVER"
"""On a PS: Program (the user's command is the server) or Builtin (the launcher runs TensorFlow's)."""
ENV_STATUS_PORT: Final = "PSTRAINING_STATUS_PORT"
"""On every task except a PS: the port of the launcher's status. On a PS, it is the port after its server's."""
ENV_MEMBER: Final = "PSTRAINING_MEMBER"
"""On a PS whose shards have standbys: the number of the member in its shard. With warm standbys, a dead server ends its
container, so that Kubernetes detects it at once."""
ENV_RESTART_POLICY: Final = "PSTRAINING_RESTART_POLICY"
"""On every task: its role's restartPolicy: Always, OnFailure, Never or ExitCode."""
ENV_CHECKPOINT_DIR: Final = "PSTRAINING_CHECKPOINT_DIR"
"""Folder or URI of checkpoints, set on every task if the job has `spec.checkpoint`. Only the chief may write there."""
ENV_GPUS: Final = "PSTRAINING_GPUS"
"""On a task whose container has GPUs: their number. The runtime compares it with the GPUs that TensorFlow finds."""
GRACE_SECONDS: Final = 30
"""The grace period of a pod whose template has none, as in Kubernetes."""
ENV_GRACE: Final = "PSTRAINING_GRACE_SECONDS"
"""On the task that does the chief's work, if its template has a grace period: these seconds."""
ENV_PROGRESS_URL: Final = "PSTRAINING_PROGRESS_URL"
"""On the task that does the chief's work: the URL for its program's progress reports. The launcher passes it to the
program in the variables of Kubeflow's KEP-2779, with the paths of the two files that a client needs."""
ENV_PROGRESS_AUTHORITY: Final = "PSTRAINING_PROGRESS_AUTHORITY"
"""On the same task: the certificate of the authority that signs the endpoint's certificate, in PEM."""
PROGRESS_AUTHORITY_FILE: Final = "progress-authority.crt"
"""File in RUN_DIR of the same task: the launcher writes this certificate there for the program."""
PROGRESS_TOKEN_FILE: Final = "progress-token"  # noqa: S105 - a file's name
"""File in MOUNT_DIR of the same task: its token for reports of progress, which the kubelet renews."""
ENV_SERVER_URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
ENV_SERVER_CERTIFICATE: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
ENV_SERVER_TOKEN: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - a variable's name
"""The variables of KEP-2779, which the launcher sets for the program."""
ENV_START_TIMEOUT: Final = "PSTRAINING_START_TIMEOUT_SECONDS"
"""Seconds that the launcher waits for the PSs before the program starts."""
START_TIMEOUT_SECONDS: Final = 1800
"""The same by default."""
ENV_METRICS_PORT: Final = "PSTRAINING_METRICS_PORT"
"""Set by templates: another port for the runtime's metrics, or 0 for any."""
ENV_OF_TEMPLATES: Final = (ENV_METRICS_PORT, ENV_START_TIMEOUT)
"""Variables with the operator's prefix that a template may set."""

EXIT_START_TIMEOUT: Final = 75
"""Exit code of the launcher if the PSs do not respond in time, and of the runtime if TensorFlow does not return from
connecting to them (EX_TEMPFAIL)."""
EXIT_BAD_CONTRACT: Final = 72
"""The launcher's exit code if the pod violates this contract (EX_OSFILE)."""
EXIT_BAD_SETTINGS: Final = 78
"""A program's exit code for errors in its code or settings, which another run would repeat (EX_CONFIG)."""
EXIT_SAVED: Final = 79
"""A chief's exit code once the whole state is saved for another layout, and the servers accept no more updates."""
TERMINATION_MESSAGE_FILE: Final = "/dev/termination-log"
"""Kubernetes' default file for a container's message. The runtime writes the reason why it refuses the program."""
PS_LOSS_GRACE_SECONDS: Final = 10
"""Seconds after a program's failure. A PS that is unreachable for this time counts as the cause."""
