"""The launcher: runs the training program, or the parameter server (PS), of a PSTrainingJob's pod.

    python3 launch.py -- COMMAND [ARGS...]   run the command as the pod's task
    python3 launch.py serve                  be the TensorFlow server that TF_CONFIG names

docs/concepts/job-contract.md is its contract. It runs in users' images: this file and those beside it, on Python 3.8's
standard library. Signals and children are the main thread's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, Callable, List, Mapping  # noqa: UP035 - Python 3.8

CLUSTER_FILE, RUN_DIR, SUCCESS_MARKER, IN_SYNC_MARKER = "cluster.json", "/run/pstraining", "succeeded", "in-sync"
OWNED_MARKERS, ENV_TERM = ("runtime-owned", "owned"), "PSTRAINING_TERM"
ENV_NAMESPACE, ENV_TASK_TYPE, ENV_TASK_INDEX = "PSTRAINING_NAMESPACE", "PSTRAINING_TASK_TYPE", "PSTRAINING_TASK_INDEX"
ENV_SERVER, ENV_START_TIMEOUT = "PSTRAINING_SERVER", "PSTRAINING_START_TIMEOUT_SECONDS"
ENV_RESTART_POLICY, ENV_MEMBER, FAILED_MARKER = "PSTRAINING_RESTART_POLICY", "PSTRAINING_MEMBER", "failed"
EXIT_START_TIMEOUT, EXIT_BAD_CONTRACT = 75, 78
PS_LOSS_GRACE_SECONDS, POLL_SECONDS, TERM_SECONDS = 10, 0.2, 0.5
CRASH_SECONDS, CRASH_LIMIT = 10, 3  # a server that ends so soon, so often in a row, is left to Kubernetes
# Without keepalive one silent peer stops a whole job; without the short back-off a returned peer is found late.
# GRPC_FAIL_FAST, measured: "true" fails the chief when a worker starts late, "false" hangs it when a PS stays away.
KEEPALIVE = "grpc.keepalive_time_ms=2000,grpc.keepalive_timeout_ms=2000,grpc.keepalive_permit_without_calls=1"
BACK_OFF = "grpc.min_reconnect_backoff_ms=100,grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=500"
NETWORK_SETTINGS = {"TF_GRPC_DEFAULT_OPTIONS": f"{KEEPALIVE},{BACK_OFF}", "GRPC_FAIL_FAST": "use_caller"}
# glibc gives large blocks back at once, and TensorFlow asks for every gradient's anew: of a step of 100 MB, half of the
# system's time went into clearing pages. A server has one arena, too: blocks in others are of less than 64 MB.
KEEP_PAGES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"
ONE_ARENA = "glibc.malloc.arena_max=1"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
SIGNALS = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
Cluster = Mapping[str, List[str]]  # noqa: UP006
LAST_WORDS = {0: "a PS's program must not end", 137: "killed, most often for want of memory", 139: "segmentation fault"}


class ExitError(Exception):
    """Ends the launcher. Its arguments: the exit code and, where it adds knowledge, a line for people."""


def read_task(env: Mapping[str, str]) -> tuple[str, int]:
    """The pod's task type and index, from its environment, whose other variables are checked too."""
    rules = {ENV_TASK_TYPE: "chief|worker|ps|evaluator", ENV_TASK_INDEX: "[0-9]+", ENV_START_TIMEOUT: "[0-9]*"}
    rules[ENV_RESTART_POLICY] = "(Always|OnFailure|Never|ExitCode)?"
    rules[ENV_TERM] = "[0-9]*"
    rules.update({ENV_SERVER: "Program|Builtin"} if env.get(ENV_TASK_TYPE) == "ps" else {})
    for name, rule in rules.items():
        if not re.fullmatch(rule, env.get(name, "")):
            raise ExitError(EXIT_BAD_CONTRACT, f"the environment variable {name} is {env.get(name)!r}, not {rule}")
    return env[ENV_TASK_TYPE], int(env[ENV_TASK_INDEX])


def read_cluster(text: str, source: str, kind: str, index: int) -> Cluster:
    """The cluster of a map or of TF_CONFIG, checked as far as this task needs it."""
    try:
        cluster: Cluster = json.loads(text)["cluster"]
        own = [] if kind == "evaluator" else [cluster[kind][index]]
        for address in own + [address for tasks in cluster.values() for address in tasks]:
            beside("sights").host_and_port(address)
        return cluster
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        wrong = f"field 'cluster' of {source} has no list of addresses with a {kind} {index} ({error!r})"
        raise ExitError(EXIT_BAD_CONTRACT, wrong) from None


def memory_settings(kind: str) -> dict[str, str]:
    """How a task's process keeps memory."""
    return {"GLIBC_TUNABLES": f"{KEEP_PAGES}:{ONE_ARENA}" if kind == "ps" else KEEP_PAGES}


def program_env(env: Mapping[str, str], cluster: Cluster, kind: str, index: int) -> dict[str, str]:
    """The program's environment: what the pod template sets itself stays, except TF_CONFIG."""
    config = {"cluster": cluster, "task": {"type": kind, "index": index}}
    settings = {**NETWORK_SETTINGS, **memory_settings(kind), "TF_CPP_MIN_LOG_LEVEL": "1"}
    return {**settings, **env, "TF_CONFIG": json.dumps(config)}


def is_final(policy: str, code: int) -> bool:
    """Whether a role's restartPolicy takes this exit code as the program's last."""
    return policy == "Never" or (policy == "ExitCode" and 0 < code < 128 and code != EXIT_START_TIMEOUT)


def next_delay(delay: float, lived: float) -> float:
    """The pause before a program runs again: none, unless it died at once; then 0.1 s, doubling to 5 s."""
    return 0 if lived >= 2 else min(5, max(0.1, delay * 2))


def beside(name: str) -> Any:
    """The file of that name beside this one, as a module."""
    if __package__:
        return import_module(f".{name}", __package__)
    # Python looks where this file's link led to; the kubelet removes that folder whenever the cluster map changes.
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))
    return import_module(name)


def log(message: str) -> None:
    """One line for people."""
    os.write(2, f"pstraining-launcher: {message}\n".encode())


class Supervisor:
    """Runs one command at a time. In `wait` the main thread sleeps; there signals are passed on and children reaped."""

    def __init__(self) -> None:
        self.stopped_by, self._pid, self._code = 0, 0, -1
        self.before_stop: Callable[[], object] = lambda: None
        self._inbox, outbox = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(outbox, warn_on_full_buffer=False)  # Python writes each signal's number there, a byte
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        self._in_child: Callable[[], object] | None = None
        with suppress(OSError, AttributeError):  # adopt orphans, and die together: for pid 1 the kernel does both
            prctl = ctypes.CDLL(None).prctl
            if os.getpid() != 1 and prctl(36, 1, 0, 0, 0) == 0:  # PR_SET_CHILD_SUBREAPER
                self._in_child = lambda: prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG

    def wait(self, seconds: float | None = None) -> None:
        """Sleep until a signal comes or the time is over; a launcher that runs nothing ends when told to stop."""
        for number in os.read(self._inbox, 4096) if select.select([self._inbox], [], [], seconds)[0] else b"":
            if number == signal.SIGCHLD:
                self._reap()
            else:
                if number in STOP_SIGNALS:
                    self.stopped_by = number
                    self.before_stop()
                self._signal_group(number)
        if self.stopped_by and not self._pid:
            raise ExitError(128 + self.stopped_by, "")

    def run(
        self, command: list[str], env: Mapping[str, str], is_over: Callable[[], bool] | None = None
    ) -> tuple[int, float]:
        """Run a command in a process group, of which nothing is left then, or until is_over: its code, its seconds."""
        started = time.monotonic()
        try:
            child = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=self._in_child)  # noqa: PLW1509
        except OSError as error:
            message = f"cannot run {command[0]!r}: {error.strerror}; look at the container's command and image"
            raise ExitError(127 if isinstance(error, FileNotFoundError) else 126, message) from None
        self._pid, self._code = child.pid, -1
        while self._code < 0:
            self.wait(TERM_SECONDS if is_over else None)
            if self._code < 0 and is_over and is_over():
                self._signal_group(signal.SIGKILL)
        child.returncode, ended = self._code, time.monotonic()  # reaped here, not by Popen
        while self._signal_group(signal.SIGKILL) and time.monotonic() < ended + 5:
            self.wait(0.02)
        self._pid = 0
        return self._code, ended - started

    def _signal_group(self, number: int) -> bool:
        with suppress(ProcessLookupError, PermissionError):
            if self._pid:
                os.killpg(self._pid, number)
                return True
        return False

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    self._code = 128 + os.WTERMSIG(ended[1]) if os.WIFSIGNALED(ended[1]) else os.WEXITSTATUS(ended[1])


class Launcher:
    """A pod's main program."""

    members: Any
    """As the map has them now."""

    def __init__(self, env: Mapping[str, str], command: list[str]) -> None:
        self.env, self.task = env, read_task(env)
        builtin = self.task[0] == "ps" and env[ENV_SERVER] == "Builtin"
        self.command = [sys.executable, __file__, "serve"] if builtin else command
        self.hot_standbys: Any = beside("members")
        self.sights: Any = beside("sights")
        self.terms = beside("terms").Terms(self.map_file(), *(os.path.join(RUN_DIR, m) for m in OWNED_MARKERS))
        self.terms.wait_for(int(env.get(ENV_TERM) or 1) if self.task[0] == "chief" else 1)
        self.marker, self.in_sync = os.path.join(RUN_DIR, SUCCESS_MARKER), os.path.join(RUN_DIR, IN_SYNC_MARKER)
        self.leave = self.hot_standbys.Leave(RUN_DIR, self.in_sync)
        self.failed, self.policy = os.path.join(RUN_DIR, FAILED_MARKER), env.get(ENV_RESTART_POLICY, "")
        self.boot_id, self.restarts, self.began, cluster = "", -1, 0.0, self.cluster()
        if self.task[0] == "ps":
            self.task = ("ps", self.members.task(self.task[1], env.get(ENV_MEMBER, "")))
        self.port = self.sights.host_and_port(cluster["ps"][self.task[1]])[1] if self.task[0] == "ps" else 0
        if not self.command:
            raise ExitError(EXIT_BAD_CONTRACT, "there is no command after --")
        if not os.access(RUN_DIR, os.W_OK | os.X_OK):
            raise ExitError(EXIT_BAD_CONTRACT, f"{RUN_DIR} is no folder that this user may write")
        self.hot_standbys.note_node(RUN_DIR, env)
        self.supervisor = Supervisor()

    @staticmethod
    def map_file() -> str:
        """The cluster map, beside this file."""
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), CLUSTER_FILE)

    def cluster(self) -> Cluster:
        """The cluster as the map beside this file has it now: scaling changes it, and the job's end is noted there."""
        path = self.map_file()
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            cluster, told = read_cluster(text, path, *self.task), json.loads(text)
            self.job_ended, self.members = bool(told.get("ended")), self.hot_standbys.Members(told)
            return cluster
        except ValueError as error:
            raise ExitError(EXIT_BAD_CONTRACT, f"the cluster map {path}: {error}") from None
        except OSError as error:
            raise ExitError(EXIT_BAD_CONTRACT, f"the cluster map {path} cannot be read: {error.strerror}") from None

    def run_program(self) -> int:
        """Run the program until it has ended with 0, failed by itself or was stopped; then never again."""
        delay = 0.0
        while not (why := self.must_idle()):
            cluster, before = self.await_ps()
            code, lived = self.supervisor.run(self.command, program_env(self.env, cluster, *self.task))
            if code == 0 and not self.supervisor.stopped_by:
                if self.policy != "Always":
                    open(self.marker, "w", encoding="utf-8").close()
                return 0
            if self.supervisor.stopped_by or not self.was_ps_lost(before, code):
                return self.ended(code)
            delay = next_delay(delay, lived)
            self.supervisor.wait(delay)
        return self.idle(why)

    def must_idle(self) -> str:
        """Why the program must not run in this pod any more; empty if it may."""
        if os.path.exists(self.marker):
            return "the program has ended with 0"
        if os.path.exists(self.failed):
            return f"the program has failed for good, as restartPolicy {self.policy} says"
        return "the job has ended" if self.job_ended else ""

    def idle(self, why: str) -> int:
        """Do nothing, so that the pod stays to be looked at."""
        log(f"{why}; it does not run again in this pod, which idles until it is removed")
        with suppress(ExitError):
            while True:
                self.supervisor.wait()
        return 0 if os.path.exists(self.marker) else 128 + self.supervisor.stopped_by  # 0 would mean success

    def await_ps(self) -> tuple[Cluster, Mapping[str, Any]]:
        """Wait until every PS is up, or of each shard a member: the cluster to run in, and its PSs as they are now."""
        started, next_word, timeout = time.monotonic(), 2.0, int(self.env.get(ENV_START_TIMEOUT) or 1800)
        while True:
            servers = (cluster := self.cluster()).get("ps", [])
            seen = self.sights.look_at(servers, lambda seen, servers=servers: not self.awaited(servers, seen))
            if not (away := self.awaited(servers, seen)):
                return cluster, {ps: sight for ps, sight in seen.items() if not self.terms.why_away(sight)}
            waited = time.monotonic() - started
            names = ", ".join(f"{ps} ({why})" for ps, why in away.items())
            if waited >= timeout:
                pod, _ = self.sights.host_and_port(min(away))
                hint = f"kubectl -n {self.env.get(ENV_NAMESPACE, 'default')} describe pod {pod}"
                raise ExitError(EXIT_START_TIMEOUT, f"gave up after {timeout} s without PS {names}; see {hint}")
            if waited >= next_word:
                log(f"waiting for PS {names}, since {waited:.0f} s")
                next_word = waited + min(waited, 60)
            self.supervisor.wait(POLL_SECONDS if waited < 10 else 5 * POLL_SECONDS)

    def awaited(self, servers: list[str], seen: Mapping[str, Any]) -> dict[str, str]:
        """Of the PSs those without which the program cannot start, by what was seen so far, and why they are away."""
        away = {ps: self.terms.why_away(seen[ps]) if ps in seen else self.sights.Sight().why for ps in servers}
        return {ps: away[ps] for ps in self.members.awaited([ps for ps, why in away.items() if why])}

    def was_ps_lost(self, before: Mapping[str, Any], code: int) -> bool:
        """Ask the PSs why the program failed."""
        started, of = time.monotonic(), self.sights
        while True:
            after = of.look_at(before)
            why = of.judge(before, after, time.monotonic() - started, PS_LOSS_GRACE_SECONDS)
            if why is not of.Verdict.ASK_AGAIN:
                break
            self.supervisor.wait(POLL_SECONDS)
        if why is of.Verdict.PS_LOST:
            lost = ", ".join(ps for ps in before if of.judge_ps(before[ps], after[ps]) is not of.Verdict.OWN_FAILURE)
            log(f"the program ended with {code} because PS {lost} was lost; it runs again when every PS is up")
        return bool(why is of.Verdict.PS_LOST)

    def run_server(self) -> int:
        """Keep this PS's server running; give up when it crashes again and again, or when a standby can take over."""
        if why := self.must_idle():
            return self.idle(why)
        self.next_life()  # before the port answers
        beside("status_port").serve_status(
            beside("listener").Listener, self.sights.status_port(self.port), self.report, self.is_ready
        )
        if self.members.hot:
            self.supervisor.before_stop = self.leave.take
        crashes = 0
        while True:
            env = program_env(self.env, self.cluster(), *self.task)
            code, lived = self.supervisor.run(self.command, env, self.terms.is_over)
            if self.terms.is_over() and not self.supervisor.stopped_by:
                log("the server is started again without the variables of the chief's former attempt")
                self.next_life()
                continue
            crashes = crashes + 1 if lived < CRASH_SECONDS else 0
            if ENV_MEMBER in self.env and not self.members.hot:
                crashes = CRASH_LIMIT
            if self.supervisor.stopped_by and self.members.hot:
                time.sleep(self.hot_standbys.LINGER_SECONDS)
            if self.supervisor.stopped_by or crashes == CRASH_LIMIT or is_final(self.policy, code or 1):
                return self.ended(code)
            log(f"the server ended with {code} after {lived:.1f} s and is started again")
            self.next_life()

    def next_life(self) -> None:
        """Give the server that is about to start an identity of its own."""
        self.terms.started()
        self.leave.begin_anew()  # first: the new identity is never seen in sync
        self.restarts, self.boot_id, self.began = self.restarts + 1, os.urandom(8).hex(), time.monotonic()

    def ended(self, code: int) -> int:
        """The exit code, never 0: what was told to stop has not finished. A word only where no program can have one."""
        if self.supervisor.stopped_by:
            return code or 128 + self.supervisor.stopped_by
        if code in LAST_WORDS:
            log(f"the program ended with {code}: {LAST_WORDS[code]}")
        if is_final(self.policy, code or 1):
            with open(self.failed, "w", encoding="utf-8") as file:
                file.write(str(code or 1))
        return code or 1

    def report(self) -> dict[str, object]:
        """The answer to GET /v1/status."""
        state = "Serving" if self.sights.is_open("127.0.0.1", self.port) else "Starting"
        state = "Terminating" if self.supervisor.stopped_by else state
        in_sync = self.hot_standbys.is_in_sync(self.in_sync)
        found = {"bootId": self.boot_id, "state": state, "restarts": self.restarts, "inSync": in_sync}
        return {**found, "term": self.terms.term}

    def is_ready(self, status: Mapping[str, object]) -> bool:
        """The answer to GET /readyz: whether it serves; with hot standbys, and has the state that its shard has."""
        if status["state"] != "Serving" or not self.members.hot:
            return status["state"] == "Serving"
        if self.restarts and time.monotonic() < self.began + self.hot_standbys.SEEN_SECONDS:
            return False
        others = self.sights.look_at(self.members.others(self.task[1])) if not status["inSync"] else {}
        return bool(status["inSync"] or self.hot_standbys.may_be_first(others.values()))


def serve(env: Mapping[str, str]) -> None:
    """Be the server that TF_CONFIG names."""
    text = env.get("TF_CONFIG", "")
    try:
        kind, index = json.loads(text)["task"]["type"], int(json.loads(text)["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise ExitError(EXIT_BAD_CONTRACT, f"TF_CONFIG names no task ({error!r})") from None
    cluster = read_cluster(text, "TF_CONFIG", kind, index)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for the server's end
    try:
        beside("serve").serve(cluster, kind, index)
    except RuntimeError as error:
        raise ExitError(1, str(error)) from None


def main(argv: list[str], env: Mapping[str, str]) -> int:
    """The command line: the exit code."""
    try:
        if argv[:1] == ["--"]:
            launcher = Launcher(env, argv[1:])
            return launcher.run_server() if launcher.task[0] == "ps" else launcher.run_program()
        if argv == ["serve"]:
            serve(env)
            return 0
    except ExitError as error:
        code, message = error.args
        if message:
            log(message + "; job-contract.md says what a pod needs" * (code == EXIT_BAD_CONTRACT))
        return int(code)
    os.write(1, __doc__.encode())
    return 0 if argv in (["-h"], ["--help"]) else EXIT_BAD_CONTRACT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
