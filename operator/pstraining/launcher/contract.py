"""The launcher's view of the pod's contract: variables, files, exit codes, and the program's environment.

docs/concepts/job-contract.md describes it; pstraining/api/contract.py has the same literals. This is one of the
launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import List, Mapping, MutableMapping  # noqa: UP035 - Python 3.8

CLUSTER_FILE = "cluster.json"
RUN_DIR = "/run/pstraining"
MOUNT_DIR = "/pstraining"
SUCCESS_MARKER = "succeeded"
FAILED_MARKER = "failed"
IDLES = "it does not run again in this pod, which idles until it is removed"
IN_SYNC_MARKER = "in-sync"
DRAINING_MARKERS = ("draining", "leaving")
OWNED_MARKERS = ("runtime-owned", "owned")
NODE_FILE = "node"
LAYOUT_FILE = "layout"
TRANSFER_FILE = "transfer-"
TRANSFERS_PATH = "/v1/transfers/"
PROGRESS_TOKEN_FILE = "progress-token"  # noqa: S105 - a file's name
PROGRESS_AUTHORITY_FILE = "progress-authority.crt"

ENV_NAMESPACE = "PSTRAINING_NAMESPACE"
ENV_TASK_TYPE = "PSTRAINING_TASK_TYPE"
ENV_TASK_INDEX = "PSTRAINING_TASK_INDEX"
ENV_TERM = "PSTRAINING_TERM"
ENV_SERVER = "PSTRAINING_SERVER"
ENV_POD_NAME = "PSTRAINING_POD_NAME"
ENV_STATUS_PORT = "PSTRAINING_STATUS_PORT"
ENV_MEMBER = "PSTRAINING_MEMBER"
ENV_NODE = "PSTRAINING_NODE"
ENV_RESTART_POLICY = "PSTRAINING_RESTART_POLICY"
ENV_PROGRESS_URL = "PSTRAINING_PROGRESS_URL"
ENV_PROGRESS_AUTHORITY = "PSTRAINING_PROGRESS_AUTHORITY"
ENV_SERVER_URL = "KUBEFLOW_TRAINER_SERVER_URL"
ENV_SERVER_CERTIFICATE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
ENV_SERVER_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - a variable's name
ENV_START_TIMEOUT = "PSTRAINING_START_TIMEOUT_SECONDS"

START_TIMEOUT_SECONDS = 1800
TF_PORT = 2222
STATUS_PORT = 2223

EXIT_START_TIMEOUT = 75
EXIT_BAD_CONTRACT = 72
EXIT_BAD_SETTINGS = 78
EXIT_SAVED = 79
EXIT_MEANINGS = {
    0: "a PS's program must not end",
    137: "killed, most often for lack of memory",
    139: "segmentation fault",
}
"""Explanations in the log of exit codes whose programs cannot log a reason themselves."""
PS_LOSS_GRACE_SECONDS = 10

# Without keepalive one silent peer stops a whole job. Without the short back-off, a peer that returns is noticed late.
# The runtime and the builtin servers have TCP's keepalive instead of gRPC's, see keepalive.py.
# With fewer pings per request than the usual two, a silent peer would be noticed up to a minute later.
KEEPALIVE = "grpc.keepalive_time_ms=2000,grpc.keepalive_timeout_ms=2000,grpc.keepalive_permit_without_calls=1"
BACK_OFF = "grpc.min_reconnect_backoff_ms=100,grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=500"
OPTIONS = "TF_GRPC_DEFAULT_OPTIONS"
NETWORK_SETTINGS = {
    OPTIONS: f"{KEEPALIVE},{BACK_OFF}",
    # Measured: "true" fails the chief when a worker starts late, "false" hangs it when a PS stays unreachable.
    "GRPC_FAIL_FAST": "use_caller",
}
# glibc returns large blocks to the system at once, and TensorFlow allocates new ones for every gradient. In a step of
# 100 MB, clearing their pages took half of the system time.
KEEP_PAGES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
# A server has one arena, because the blocks of further arenas are smaller than 64 MB. A chief also has one arena:
# several of its threads move a state in pieces, and each arena would keep the memory of its largest pieces.
ONE_ARENA = "glibc.malloc.arena_max=1"

Cluster = Mapping[str, List[str]]  # noqa: UP006 - Python 3.8


class ExitError(Exception):
    """Ends the launcher. Its arguments are the exit code and a message for the log, which may be empty."""


class NotAMemberError(ExitError):
    """The cluster has no address for this parameter server, because the job has fewer servers, perhaps only so far."""


def log(message: str) -> None:
    """Write one line to stderr, if it can be written: the program may have made it non-blocking, and filled it."""
    with suppress(OSError):
        os.write(2, f"pstraining-launcher: {message}\n".encode())


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def read_task(env: Mapping[str, str]) -> tuple[str, int]:
    """Return the pod's task type and index from its environment.

    Raises:
        ExitError: one of the contract's variables is invalid.
    """
    patterns = {
        ENV_TASK_TYPE: "chief|worker|ps|evaluator",
        ENV_TASK_INDEX: "[0-9]+",
        ENV_START_TIMEOUT: "[0-9]{0,18}",  # Python parses no more than 4,300
        ENV_RESTART_POLICY: "(Always|OnFailure|Never|ExitCode)?",
        ENV_TERM: "[0-9]*",
        ENV_STATUS_PORT: "[0-9]*",
    }
    if env.get(ENV_TASK_TYPE) == "ps":
        patterns[ENV_SERVER] = "Program|Builtin"
    for name, pattern in patterns.items():
        if not re.fullmatch(pattern, env.get(name, "")):
            message = f"the environment variable {name} is {env.get(name)!r}, not {pattern}"
            raise ExitError(EXIT_BAD_CONTRACT, message)
    return env[ENV_TASK_TYPE], int(env[ENV_TASK_INDEX])


def read_cluster(text: str, source: str, kind: str, index: int) -> Cluster:
    """Return the cluster of a cluster map or of TF_CONFIG.

    Raises:
        NotAMemberError: the cluster has no address for this parameter server.
        ExitError: the cluster has an invalid address, or none for this task.
    """
    try:
        cluster: Cluster = json.loads(text)["cluster"]
        if kind == "ps" and index >= len(cluster["ps"]):
            message = f"field 'cluster' of {source} has {len(cluster['ps'])} parameter servers, and no ps {index}"
            raise NotAMemberError(EXIT_BAD_CONTRACT, message)
        own = [] if kind == "evaluator" else [cluster[kind][index]]
        for address in own + [address for tasks in cluster.values() for address in tasks]:
            host_and_port(address)
        return cluster
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        message = f"field 'cluster' of {source} has no list of addresses with a {kind} {index} ({error!r})"
        raise ExitError(EXIT_BAD_CONTRACT, message) from None


def memory_settings(kind: str) -> dict[str, str]:
    """Return the allocator's settings for a task's process."""
    return {"GLIBC_TUNABLES": f"{KEEP_PAGES}:{ONE_ARENA}" if kind in ("ps", "chief") else KEEP_PAGES}


def tf_config(cluster: Cluster, kind: str, index: int) -> str:
    """Return TF_CONFIG, with the environment of TFJobs, by which TensorFlow 1 recognizes a distributed program."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"})


def filled_in(command: list[str], env: Mapping[str, str]) -> list[str]:
    """Return the command with $(TF_CONFIG) filled in, which the kubelet cannot do because the container lacks it.

    As with the kubelet, $$ is an escaped $.
    """

    def fill(found: re.Match[str]) -> str:
        dollars = len(found[1])
        return "$" * (dollars // 2) + (env["TF_CONFIG"] if dollars % 2 else "(TF_CONFIG)")

    return [re.sub(r"(\$+)\(TF_CONFIG\)", fill, word) for word in command]


def program_env(env: Mapping[str, str], cluster: Cluster, kind: str, index: int) -> dict[str, str]:
    """Return the program's environment. The pod template's own variables win, except for TF_CONFIG."""
    settings = {**NETWORK_SETTINGS, **memory_settings(kind), "TF_CPP_MIN_LOG_LEVEL": "1"}
    return {**settings, **progress_env(env), **env, "TF_CONFIG": tf_config(cluster, kind, index)}


def drop_grpc_keepalive(env: MutableMapping[str, str]) -> None:
    """Remove gRPC's keepalive from the options that the launcher has set. The pod template's own options stay."""
    if env.get(OPTIONS) == NETWORK_SETTINGS[OPTIONS]:
        env[OPTIONS] = BACK_OFF


def progress_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Kubeflow's KEP-2779 for a program that may report its progress; otherwise none."""
    if not env.get(ENV_PROGRESS_URL):
        return {}
    return {
        ENV_SERVER_URL: env[ENV_PROGRESS_URL],
        ENV_SERVER_CERTIFICATE: os.path.join(RUN_DIR, PROGRESS_AUTHORITY_FILE),
        ENV_SERVER_TOKEN: os.path.join(MOUNT_DIR, PROGRESS_TOKEN_FILE),
    }


def write_authority(env: Mapping[str, str]) -> None:
    """Write the certificate with which the program verifies the operator's endpoint, if the task has one."""
    if authority := env.get(ENV_PROGRESS_AUTHORITY):
        mark(os.path.join(RUN_DIR, PROGRESS_AUTHORITY_FILE), authority)


def mark(path: str, text: str = "") -> None:
    """Write a file of the run folder. A full disk is only logged: it must not change how a program runs and ends."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        log(f"{path} cannot be written: {error.strerror}")


def is_final(policy: str, code: int) -> bool:
    """Whether another run of a program that failed with this exit code is forbidden, by its role's restartPolicy or by
    the code itself."""
    return (
        code == EXIT_BAD_SETTINGS
        or policy == "Never"
        or (policy == "ExitCode" and 0 < code < 128 and code != EXIT_START_TIMEOUT)
    )
