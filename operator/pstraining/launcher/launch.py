"""The launcher: runs the training program, or the parameter server (PS), of a PSTrainingJob's pod.

    python3 launch.py -- COMMAND [ARGS...]   run the command as the pod's task
    python3 launch.py serve                  be the TensorFlow server that TF_CONFIG names

docs/concepts/job-contract.md is its contract. This file and those beside it run in users' images, with Python 3.8's
standard library only. The main thread handles signals and children. Python 3.6 can compile this file, to refuse it.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from . import contract, members, probe, status_port, supervisor, terms, transfers, usage
    from . import serve as server
else:
    if sys.version_info < (3, 8):  # noqa: UP036 - the image's
        sys.stderr.write("pstraining-launcher: python3 in the image is older than 3.8; use an image with a newer one\n")
        sys.exit(78)
    if sys.argv[1:2] == ["--"]:
        # The kernel drops a signal without a handler for the first process of a container. A blocked one waits for the
        # supervisor, whose imports and preparations take a while. 37 is SIGRTMIN+3, as images with systemd stop.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, 37))
    # Python would import from the folder that this file's link pointed to, which the kubelet removes whenever the
    # cluster map changes.
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))
    import contract
    import members
    import probe
    import serve as server
    import status_port
    import supervisor
    import terms
    import transfers
    import usage

POLL_SECONDS, FIRST_LOG_SECONDS = 0.2, 2.0
"""Seconds between two probes, and after which the log names a PS that is not available."""
CRASH_SECONDS = 10
"""A server that ends within this time has crashed."""
START_SECONDS = 300
"""The same time for a server that has not served."""
CRASH_LIMIT = 3
"""After this many crashes in a row, Kubernetes restarts the container."""
STOP_SECONDS = 10
"""Seconds between SIGTERM and SIGKILL for a program that restarts for another layout."""
IDLE_SECONDS = 60
"""Seconds for which the container of a program that has succeeded idles until it ends with exit code 0 once more."""


class Launcher:
    """The main program of a pod."""

    job_ended = False
    """Whether the job has ended, by the cluster map; `cluster` updates it."""
    shard_members: members.ShardMembers
    """The members of each shard; `cluster` updates it."""
    layout = terms.FIRST_LAYOUT
    """The layout of the cluster map; `cluster` updates it."""

    def __init__(self, env: Mapping[str, str], command: "list[str]") -> None:
        """Check the pod's contract and prepare the task.

        Args:
            env: the container's environment.
            command: the user's command and its arguments.

        Raises:
            ExitError: the contract is not met.
        """
        self.env = env
        self.replica = self.task = contract.read_task(env)
        is_builtin = self.task[0] == "ps" and env[contract.ENV_SERVER] == "Builtin"
        self.command = [sys.executable, __file__, "serve"] if is_builtin else command
        self.policy = env.get(contract.ENV_RESTART_POLICY, "")
        self.success_marker, self.failed_marker = map(_in_run_dir, (contract.SUCCESS_MARKER, contract.FAILED_MARKER))
        self.in_sync_marker = _in_run_dir(contract.IN_SYNC_MARKER)
        self.terms = terms.Terms(map_file(), *map(_in_run_dir, (contract.LAYOUT_FILE, *contract.OWNED_MARKERS)))
        self.terms.require(int(env.get(contract.ENV_TERM) or 1) if self.task[0] == "chief" else 1)
        self.draining = members.Draining(contract.RUN_DIR, self.in_sync_marker)
        self.boot_id, self.restarts, self.began, self.served, self.port = "", -1, 0.0, "", 0
        self.meter = usage.Meter(env.get(contract.ENV_POD_NAME, ""))
        with suppress(contract.NotAMemberError):
            self.cluster()  # a bad map ends the container at once
        if not self.command:
            raise contract.ExitError(contract.EXIT_BAD_CONTRACT, "there is no command after --")
        if not os.access(contract.RUN_DIR, os.W_OK | os.X_OK):
            message = f"{contract.RUN_DIR} is not a folder to which this user may write"
            raise contract.ExitError(contract.EXIT_BAD_CONTRACT, message)
        members.write_node(contract.RUN_DIR, env)
        contract.write_authority(env)
        self.supervisor = supervisor.Supervisor()
        cluster = self.await_membership()
        if self.task[0] == "ps":
            self.port = contract.host_and_port(cluster["ps"][self.task[1]])[1]

    def cluster(self) -> contract.Cluster:
        """Return the cluster from the current cluster map, which changes when the job is scaled or ends.

        Raises:
            NotAMemberError: the map has no address for this parameter server.
            ExitError: the map cannot be read, or is invalid.
        """
        path = map_file()
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            text = terms.for_server(text, *self.replica)
            cluster, content = contract.read_cluster(text, path, *self.replica), json.loads(text)
            shard_members = members.ShardMembers(content)
            if self.replica[0] == "ps":
                task = shard_members.task(self.replica[1], self.env.get(contract.ENV_MEMBER, ""))
                self.task = ("ps", task)  # with hot standbys, it depends on the number of shards
            self.job_ended, self.shard_members = bool(content.get("ended")), shard_members
            self.layout = terms.layout_of(content)
            return cluster
        except ValueError as error:
            message = f"the cluster map {path}: {error}"
            raise contract.ExitError(contract.EXIT_BAD_CONTRACT, message) from None
        except OSError as error:
            message = f"the cluster map {path} cannot be read: {error.strerror}"
            raise contract.ExitError(contract.EXIT_BAD_CONTRACT, message) from None

    def await_membership(self) -> contract.Cluster:
        """Return the cluster; a parameter server waits until it is a member, because it may start before its layout.

        Raises:
            ExitError: the map cannot be read or is invalid, or the launcher is stopped.
        """
        is_logged = False
        while True:
            try:
                return self.cluster()
            except contract.NotAMemberError as absence:
                if not is_logged:
                    contract.log(f"{absence.args[1]}; the server starts when the cluster map has its address")
                is_logged = True
            self.supervisor.wait(POLL_SECONDS)

    def run_program(self) -> int:
        """Run the program until it succeeds, fails by itself or is stopped; return the exit code."""
        delay = 0.0
        self.serve_program_status()
        usage.Reporter(self.env, map_file()).start()
        while not self.must_idle():
            cluster, before = self.await_ps()
            env = contract.program_env(self.env, cluster, *self.task)
            self.terms.note_layout(self.layout)
            is_over = partial(self.terms.is_layout_over, self.layout)
            code, lived = self.supervisor.run(contract.filled_in(self.command, env), env, is_over, STOP_SECONDS)
            if self.supervisor.was_cut_short and not self.supervisor.stopped_by:
                contract.log("the program restarts for another number of parameter servers")
                continue
            if code == 0 and not self.supervisor.stopped_by:
                if self.policy != "Always":
                    contract.mark(self.success_marker)
                return 0
            if self.supervisor.stopped_by or not self.was_ps_lost(before, code):
                return self.exit_code(code)
            delay = supervisor.next_delay(delay, lived)
            self.supervisor.wait(delay)
        return self.idle(self.must_idle())

    def serve_program_status(self) -> None:
        """Serve whether the program runs, for the container's readiness probe, if the pod's contract requires it."""
        port = int(self.env.get(contract.ENV_STATUS_PORT) or 0)
        if not port:
            return
        try:
            status_port.serve_status(
                port, self.report_program, lambda status: status["state"] == "Running", self.meter.report
            )
        except OSError as error:
            contract.log(f"port {port} is taken ({error.strerror}): the pod stays unready; leave 2222 to 2240 free")

    def report_program(self) -> "dict[str, object]":
        """Return the answer to GET /v1/status in a pod that is not a PS."""
        state = "Running" if self.supervisor.is_running else "Waiting"
        return {"state": "Terminating" if self.supervisor.stopped_by else state}

    def must_idle(self) -> str:
        """Return why the program must no longer run in this pod; empty if it may run."""
        if os.path.exists(self.success_marker):
            return "the program has ended with 0"
        if os.path.exists(self.failed_marker):
            return f"the program has failed for good, by its exit code and restartPolicy {self.policy}"
        return "the job has ended" if self.job_ended else ""

    def idle(self, reason: str) -> int:
        """Run nothing until the pod is stopped, so that the pod can be inspected; return the exit code.

        After a success, return it again after IDLE_SECONDS: the kubelet may have removed the container that ended with
        exit code 0 before the operator has seen that.
        """
        contract.log(f"{reason}; {contract.IDLES}")
        has_succeeded = os.path.exists(self.success_marker)
        again = time.monotonic() + IDLE_SECONDS
        with suppress(contract.ExitError):
            while not has_succeeded or time.monotonic() < again:
                self.supervisor.wait(max(0.0, again - time.monotonic()) if has_succeeded else None)
        # Without the marker, exit code 0 would mean success.
        return 0 if has_succeeded else 128 + self.supervisor.stopped_by

    def await_ps(self) -> "tuple[contract.Cluster, probe.Probes]":
        """Wait until every shard has an available PS; return the cluster and the available PSs.

        Raises:
            ExitError: a shard had no available PS within the start timeout.
        """
        started, next_log = time.monotonic(), FIRST_LOG_SECONDS
        timeout = int(self.env.get(contract.ENV_START_TIMEOUT) or contract.START_TIMEOUT_SECONDS)
        while True:
            cluster = self.cluster()
            servers = cluster.get("ps", [])
            probes = probe.probe_all(servers, partial(self.can_start, servers))
            unavailable = self.unavailable(servers, probes)
            if not unavailable:
                return cluster, {ps: result for ps, result in probes.items() if not self.why_unavailable(result)}
            waited = time.monotonic() - started
            names = ", ".join(f"{ps} ({reason})" for ps, reason in unavailable.items())
            if waited >= timeout:
                pod, _ = contract.host_and_port(min(unavailable))
                hint = f"kubectl -n {self.env.get(contract.ENV_NAMESPACE, 'default')} describe pod {pod}"
                message = f"gave up after {timeout} s without PS {names}; see {hint}"
                raise contract.ExitError(contract.EXIT_START_TIMEOUT, message)
            if waited >= next_log:
                contract.log(f"waiting for PS {names}, since {waited:.0f} s")
                next_log = waited + min(waited, 60)
            self.supervisor.wait(POLL_SECONDS if waited < 10 else 5 * POLL_SECONDS)

    def can_start(self, servers: "list[str]", probes: probe.Probes) -> bool:
        """Whether the program can start with the PSs that have been probed so far, or the launcher must stop."""
        return self.supervisor.must_stop or not self.unavailable(servers, probes)

    def unavailable(self, servers: "list[str]", probes: probe.Probes) -> "dict[str, str]":
        """Return the unavailable PSs without which the program cannot start, each with the reason."""
        reasons = {ps: self.why_unavailable(probes.get(ps, probe.PsProbe())) for ps in servers}
        return {ps: reasons[ps] for ps in self.shard_members.required([ps for ps, reason in reasons.items() if reason])}

    def why_unavailable(self, result: probe.PsProbe) -> str:
        """Return why the program cannot start with a PS; empty if it can."""
        return self.terms.why_unavailable(result, self.layout)

    def was_ps_lost(self, before: probe.Probes, code: int) -> bool:
        """Whether the program failed because a PS was lost, by the PSs' state before and after."""
        if self.terms.is_layout_over(self.layout):
            return True
        if code in (contract.EXIT_BAD_SETTINGS, contract.EXIT_SAVED):
            return False
        started = time.monotonic()
        while True:
            after = probe.probe_all(before, lambda _: self.supervisor.must_stop)
            verdict = probe.judge(before, after, time.monotonic() - started, contract.PS_LOSS_GRACE_SECONDS)
            if verdict is not probe.LossVerdict.ASK_AGAIN:
                break
            self.supervisor.wait(POLL_SECONDS)
        if verdict is not probe.LossVerdict.PS_LOST:
            return False
        lost = [ps for ps in before if probe.judge_ps(before[ps], after[ps]) is not probe.LossVerdict.OWN_FAILURE]
        cause = f"PS {', '.join(lost)} was lost"
        contract.log(f"the program ended with {code} because {cause}; it runs again when every PS is up")
        return True

    def run_server(self) -> int:
        """Keep this PS's server running until it is stopped, crashes repeatedly or fails over; return the exit code."""
        if self.must_idle():
            return self.idle(self.must_idle())
        self.start_boot()  # before the status port answers
        transfer = partial(transfers.transfer, contract.RUN_DIR)
        port = probe.status_port(self.port)
        try:
            status_port.serve_status(port, self.report, self.is_ready, self.meter.report, transfer)
        except OSError as error:
            message = f"port {port} is taken ({error.strerror}): leave 2222 to 2240 free in this pod"
            raise contract.ExitError(contract.EXIT_BAD_CONTRACT, message) from None
        if self.shard_members.hot:
            self.supervisor.before_stop = lambda: self.draining.announce(self.port, self.shard_members, self.task[1])
        elif contract.ENV_MEMBER in self.env:
            members.await_failover(_in_run_dir(members.STARTED), self.supervisor.wait)
        crashes = 0
        while True:
            env = contract.program_env(self.env, self.await_membership(), *self.task)
            code, lived = self.supervisor.run(contract.filled_in(self.command, env), env, self.terms.is_over)
            if self.terms.is_over() and not self.supervisor.stopped_by:
                contract.log("the server is started again, empty: for the chief's next attempt, or for another layout")
                self.start_boot()
                continue
            crashes = crashes + 1 if lived < (CRASH_SECONDS if self.served == self.boot_id else START_SECONDS) else 0
            if contract.ENV_MEMBER in self.env and not self.shard_members.hot:
                crashes = CRASH_LIMIT  # the failover to a warm standby begins when the container has ended
            if self.supervisor.stopped_by and self.shard_members.hot:
                time.sleep(members.LINGER_SECONDS)
            if self.supervisor.stopped_by or crashes == CRASH_LIMIT or contract.is_final(self.policy, code or 1):
                return self.exit_code(code)
            contract.log(f"the server ended with {code} after {lived:.1f} s and is started again")
            self.start_boot()

    def start_boot(self) -> None:
        """Give a new identity to the server that is about to start. Status requests may arrive between these steps."""
        self.draining.reset()  # first: the new identity must never appear in sync
        self.restarts, self.boot_id, self.began = self.restarts + 1, os.urandom(8).hex(), time.monotonic()
        self.terms.server_started()  # last: the new term must never appear with the former identity

    def exit_code(self, code: int) -> int:
        """Return the launcher's exit code for a program's; never 0: a stopped program or server has not succeeded.

        The exit codes of EXIT_MEANINGS are logged, because their programs cannot log a reason.
        """
        if self.supervisor.stopped_by:
            return code or 128 + self.supervisor.stopped_by
        if code in contract.EXIT_MEANINGS:
            contract.log(f"the program ended with {code}: {contract.EXIT_MEANINGS[code]}")
        if contract.is_final(self.policy, code or 1):
            contract.mark(self.failed_marker, str(code or 1))
        return code or 1

    def report(self) -> "dict[str, object]":
        """Return the answer to GET /v1/status.

        The server may restart meanwhile. The term is read first, so that the other fields are not older: a chief that
        reads its own term connects to the server that was started for this term.
        """
        term, layout, boot_id = self.terms.term, self.terms.layout, self.boot_id
        state = "Serving" if probe.is_open("127.0.0.1", self.port) else "Starting"
        self.served = boot_id if state == "Serving" else self.served
        return {
            "bootId": boot_id,
            "state": "Terminating" if self.supervisor.stopped_by else state,
            "restarts": self.restarts,
            **members.sync_status(self.in_sync_marker),
            "term": term,
            "layout": layout,
        }

    def is_ready(self, status: Mapping[str, object]) -> bool:
        """Return the answer to GET /readyz: the PS serves, and has its shard's state if it has hot standbys."""
        if status["state"] != "Serving" or not self.shard_members.hot:
            return status["state"] == "Serving"
        if self.restarts and time.monotonic() < self.began + members.NOT_READY_SECONDS:
            return False
        if status["inSync"]:
            return True
        return members.may_start_first(probe.probe_all(self.shard_members.peers(self.task[1])).values())


def map_file() -> str:
    """Return the path of the cluster map, which is beside this file."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), contract.CLUSTER_FILE)


def _in_run_dir(name: str) -> str:
    return os.path.join(contract.RUN_DIR, name)


def serve(env: Mapping[str, str]) -> None:
    """Be the server that TF_CONFIG names.

    Raises:
        ExitError: TF_CONFIG is invalid, or the server does not start.
    """
    text = env.get("TF_CONFIG", "")
    try:
        kind, index = json.loads(text)["task"]["type"], int(json.loads(text)["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise contract.ExitError(contract.EXIT_BAD_CONTRACT, f"TF_CONFIG names no task ({error!r})") from None
    cluster = contract.read_cluster(text, "TF_CONFIG", kind, index)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for the server's end
    try:
        server.serve(cluster, kind, index)
    except RuntimeError as error:
        raise contract.ExitError(1, str(error)) from None


def main(argv: "list[str]", env: Mapping[str, str]) -> int:
    """Run the command line; return the exit code."""
    try:
        if argv[:1] == ["--"]:
            launcher = Launcher(env, argv[1:])
            return launcher.run_server() if launcher.task[0] == "ps" else launcher.run_program()
        if argv == ["serve"]:
            serve(env)
            return 0
    except contract.ExitError as error:
        code, message = error.args
        if message:
            hint = "; job-contract.md describes what a pod needs" if code == contract.EXIT_BAD_CONTRACT else ""
            contract.log(message + hint)
        return int(code)
    os.write(1, __doc__.encode())
    return 0 if argv in (["-h"], ["--help"]) else contract.EXIT_BAD_CONTRACT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
