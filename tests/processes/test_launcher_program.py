"""The launcher and a training program, as real processes: start, signals, lost PSs, the end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.pods import FakePs, Pod, children, eventually, is_alive, write_whole

MakePod = Callable[..., Pod]
NEVER = 600.0  # a grace period that no test waits for
PYTHON = sys.executable
WAITS = "\nwhile True: time.sleep(0.05)"  # signal.pause() would miss a signal that arrives just before it


def chief_of(*fakes: FakePs) -> dict[str, list[str]]:
    return {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": [ps.address for ps in fakes]}


def is_quiet(pid: int) -> bool:
    """Whether a process does not run even once in a second."""
    switches = []
    for _ in range(2):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        switches.append([line for line in lines if "ctxt_switches" in line])
        time.sleep(1 if len(switches) == 1 else 0)
    return switches[0] == switches[1]


# ---- start


def test_a_program_waits_for_every_ps_and_names_the_missing_ones(pod: MakePod, ps: FakePs) -> None:
    missing = FakePs()
    chief = pod("chief", {"chief": ["127.0.0.1:1"], "ps": [ps.up().address, missing.address]})
    chief.start(*chief.puppet)
    line = eventually(lambda: [line for line in chief.log().splitlines() if "waiting for PS" in line])[0]
    assert missing.address in line
    assert ps.address not in line
    assert chief.starts() == []
    missing.up()
    chief.started()
    missing.down()


def test_a_ps_that_is_being_stopped_is_not_up(pod: MakePod, ps: FakePs) -> None:
    ps.state = "Terminating"
    chief = pod("chief", chief_of(ps.up()))
    chief.start(*chief.puppet)
    eventually(lambda: ps.asked >= 3)
    assert chief.starts() == []
    ps.state = "Serving"
    chief.started()


def test_the_wait_ends_with_75_and_a_next_step(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps), PSTRAINING_START_TIMEOUT_SECONDS="1")
    assert chief.start(*chief.puppet).wait() == 75
    last = chief.log().splitlines()[-1]
    assert f"gave up after 1 s without PS {ps.address} (Connection refused)" in last
    assert last.endswith("see kubectl -n nsp describe pod 127.0.0.1")
    assert chief.starts() == []


def test_a_signal_ends_the_wait(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps))
    chief.start(*chief.puppet)
    eventually(lambda: "waiting for PS" in chief.log())
    chief.kill()
    assert chief.wait() == 143
    assert chief.starts() == []


@pytest.mark.parametrize("kind", ["worker", "evaluator"])
def test_workers_and_evaluators_wait_too(pod: MakePod, ps: FakePs, kind: str) -> None:
    task = pod(kind, chief_of(ps), PSTRAINING_START_TIMEOUT_SECONDS="0")
    assert task.start(*task.puppet).wait() == 75


def test_the_program_finds_its_environment(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()), GRPC_FAIL_FAST="mine")
    script = "import json, os, sys; print(json.dumps({**os.environ, 'argument': sys.argv[1]}))"
    assert chief.start(PYTHON, "-c", script, "--config=$(TF_CONFIG)").wait() == 0
    env = json.loads(chief.log())
    assert env["argument"] == f"--config={env['TF_CONFIG']}", "as the kubelet fills it in under TFJob"
    config = json.loads(env["TF_CONFIG"])
    assert config == {"cluster": chief_of(ps), "task": {"type": "chief", "index": 0}, "environment": "cloud"}
    assert env["GRPC_FAIL_FAST"] == "mine"
    assert "grpc.keepalive_time_ms=2000" in env["TF_GRPC_DEFAULT_OPTIONS"]


def test_a_cluster_map_that_changes_during_the_wait_is_used(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:1"]})
    chief.start(*chief.puppet)
    eventually(lambda: "waiting for PS" in chief.log())
    chief.write_cluster(chief_of(ps.up()))
    chief.started()
    assert json.loads(chief.starts()[0][2])["cluster"] == chief_of(ps)


@pytest.mark.parametrize(("name", "code"), [("no-such-command", 127), ("/etc/passwd", 126), ("/", 126)])
def test_a_command_that_cannot_run(pod: MakePod, ps: FakePs, name: str, code: int) -> None:
    chief = pod("chief", chief_of(ps.up()))
    assert chief.start(name, "x").wait() == code
    (line,) = chief.log().splitlines()
    assert f"cannot run {name!r}" in line


# ---- exit codes and signals


@pytest.mark.parametrize(("order", "code"), [(3, 3), (-signal.SIGABRT, 134), (-signal.SIGUSR1, 138)])
def test_the_programs_exit_code_is_kept_without_a_message(pod: MakePod, ps: FakePs, order: int, code: int) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    chief.order(order)
    assert chief.wait() == code
    assert chief.log() == ""
    assert len(chief.starts()) == 1


def test_a_killed_program_gets_a_termination_message(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    chief.order(-signal.SIGKILL)
    assert chief.wait() == 137
    assert chief.log().splitlines()[-1] == (
        "pstraining-launcher: the program ended with 137: killed, most often for lack of memory"
    )


@pytest.mark.parametrize(
    ("trap", "code"),
    [
        pytest.param("signal.SIG_DFL", 143, id="dies by it"),
        pytest.param("lambda *_: sys.exit(7)", 7, id="ends with a code"),
        pytest.param("lambda *_: sys.exit(0)", 143, id="ends with 0: stopped, not finished"),
    ],
)
def test_a_stopped_program_is_not_restarted(pod: MakePod, ps: FakePs, trap: str, code: int) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=0)
    script = f"import signal, sys, time; signal.signal(signal.SIGTERM, {trap}); print('ready', flush=True){WAITS}"
    chief.start(PYTHON, "-c", script)
    eventually(lambda: "ready" in chief.log())
    ps.down()  # even though a PS is away
    chief.kill()
    assert chief.wait() == code
    assert chief.log().count("ready") == 1
    assert os.listdir(chief.run_dir) == ["layout"], "no marker says that it has succeeded or failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_signals_reach_the_program(pod: MakePod, ps: FakePs, number: signal.Signals) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    trap = "lambda number, _: (print('got', number, flush=True), sys.exit(9))"
    ready = "os.write(1, b'ready')"  # `print` is not reentrant: the signal may arrive before it has returned
    script = f"import os, signal, sys, time; signal.signal({int(number)}, {trap}); {ready}{WAITS}"
    chief.start(PYTHON, "-c", script)
    eventually(lambda: "ready" in chief.log())
    chief.kill(number)
    assert chief.wait() == 9
    assert f"got {int(number)}" in chief.log()


def test_signals_reach_a_program_behind_a_shell(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.start("sh", "-c", " ".join(chief.puppet) + "; exit 5")
    inner = chief.started()
    chief.kill()
    assert chief.wait() == 143
    assert not is_alive(inner)


def test_processes_left_by_a_program_are_killed_before_its_restart(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    sleeper = f"{PYTHON} -c 'import time; time.sleep(600)' & echo left $!;"
    chief.start("sh", "-c", sleeper + " ".join(chief.puppet))
    chief.started()
    left = int(chief.log().split()[1])
    ps.boot_id = "boot-2"
    chief.order(1)
    chief.started(2)
    assert not is_alive(left)


def test_orphans_are_reaped(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    orphan = "import os, time\nif os.fork() == 0:\n  os.setsid(); print('orphan', os.getpid(), flush=True)\n"
    chief.start("sh", "-c", f'{PYTHON} -c "{orphan}"; exec ' + " ".join(chief.puppet))
    program = chief.started()
    number = int(eventually(lambda: re.findall(r"orphan (\d+)\n", chief.log()))[0])
    eventually(lambda: not Path(f"/proc/{number}").exists())
    assert eventually(lambda: children(chief.pid) == [program])


def test_orphans_are_adopted(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    orphan = (
        "import os, time\nif os.fork() == 0:\n  os.setsid(); print('orphan', os.getpid(), flush=True); time.sleep(60)"
    )
    chief.start("sh", "-c", f'{PYTHON} -c "{orphan}"; exec ' + " ".join(chief.puppet))
    program = chief.started()
    number = int(eventually(lambda: re.findall(r"orphan (\d+)\n", chief.log()))[0])
    try:
        assert eventually(lambda: set(children(chief.pid)) == {program, number})
    finally:
        os.kill(number, signal.SIGKILL)
    assert eventually(lambda: children(chief.pid) == [program])


def test_the_program_dies_with_its_launcher(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.start(*chief.puppet)
    program = chief.started()
    chief.kill(signal.SIGKILL)
    eventually(lambda: not is_alive(program))


def can_be_pid_1() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-pf", "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_be_pid_1(), reason="needs the right to make a process id namespace")
def test_as_pid_1_the_launcher_forwards_signals_and_reaps(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0:\n"
        "    os.write(write, str(os.getpid()).encode())\n"
        "    time.sleep(0.2)\n"
        "  os._exit(0)\n"
        "os.wait()\n"
        "orphan = os.read(read, 20).decode()\n"
        "while os.path.exists('/proc/' + orphan): time.sleep(0.02)\n"  # a zombie has its folder until it is reaped
        "print('reaped; parent', os.getppid(), flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    chief.start(PYTHON, "-c", script)
    eventually(lambda: "reaped; parent 1" in chief.log())
    (launcher,) = children(chief.pid)
    os.kill(launcher, signal.SIGTERM)
    assert chief.wait() == 7


# ---- lost PSs


def test_a_ps_that_returns_with_another_id_is_a_lost_ps(pod: MakePod, ps: FakePs) -> None:
    other = FakePs().up()
    cluster = chief_of(ps.up(), other)
    chief = pod("chief", cluster, PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    chief.started()
    chief.write_cluster({**cluster, "worker": ["127.0.0.1:2", "127.0.0.1:3"]})
    ps.boot_id = "boot-2"
    chief.order(1)
    chief.started(2)
    assert f"the program ended with 1 because PS {ps.address} was lost" in chief.log()
    assert len(json.loads(chief.starts()[1][2])["cluster"]["worker"]) == 2  # the map is read again
    chief.order(1)  # and the verdict uses the record from before the second run
    assert chief.wait() == 1
    other.down()


def test_its_own_failure_ends_the_container_at_once(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    chief.started()
    chief.order(1)
    assert chief.wait() == 1
    assert len(chief.starts()) == 1


def test_a_ps_that_stays_away_is_a_lost_ps(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=1)
    chief.start(*chief.puppet)
    chief.started()
    ps.down()
    chief.order(1)
    eventually(lambda: "was lost; it runs again when every PS is up" in chief.log())
    eventually(lambda: "waiting for PS" in chief.log())
    assert len(chief.starts()) == 1
    ps.up("boot-2")
    chief.started(2)


def failed_without_its_ps(pod: MakePod, ps: FakePs) -> Pod:
    """Return a chief whose program has failed while its PS was down, and which polls the PS for as long as needed."""
    chief = pod("chief", chief_of(ps.up()), PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    chief.started()
    ps.down()
    chief.order(1)
    program = Path(f"/proc/{chief.starts()[0][0]}")
    eventually(lambda: not program.exists())  # reaped: an earlier signal would count as one at the program's end
    return chief


def test_a_ps_that_returns_with_a_new_id_ends_the_polling(pod: MakePod, ps: FakePs) -> None:
    chief = failed_without_its_ps(pod, ps)
    ps.up("boot-2")
    chief.started(2)


def test_a_ps_that_returns_with_its_old_id_was_not_lost(pod: MakePod, ps: FakePs) -> None:
    chief = failed_without_its_ps(pod, ps)
    assert chief.runs()
    ps.up()
    assert chief.wait() == 1


def test_a_signal_ends_the_polling(pod: MakePod, ps: FakePs) -> None:
    chief = failed_without_its_ps(pod, ps)
    chief.kill()
    assert chief.wait() == 143


def test_a_port_without_a_launcher_is_no_ps(pod: MakePod, ps: FakePs) -> None:
    """A port without a launcher is not a PS: behind a service mesh every connection succeeds, also one to a missing
    server.
    """
    chief = pod("chief", chief_of(ps.up(launcher=False)), PS_LOSS_GRACE_SECONDS=NEVER)
    chief.start(*chief.puppet)
    eventually(lambda: "its launcher does not answer on port 2223" in chief.log())
    assert chief.starts() == []
    ps.up(tensorflow=False)
    chief.started()


def test_a_program_that_fails_at_once_is_restarted_with_backoff(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up("boot-*")), PS_LOSS_GRACE_SECONDS=NEVER)  # another server at every poll
    chief.start("sh", "-c", f"date +%s.%N >> {chief.folder}/times; exit 1")
    eventually((chief.folder / "times").exists)
    times = eventually(lambda: found if len(found := (chief.folder / "times").read_text().split()) >= 5 else [])
    assert float(times[4]) - float(times[3]) >= 0.8


# ---- the end


def test_a_finished_program_is_never_restarted(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.start(*chief.puppet)
    chief.order(0)
    assert chief.wait() == 0
    assert set(os.listdir(chief.run_dir)) == {"layout", "succeeded"}
    ps.down()  # a finished pod does not wait
    chief.start(*chief.puppet)
    eventually(lambda: "which idles until it is removed" in chief.log())
    assert any(is_quiet(chief.pid) for _ in range(10))
    chief.kill()
    assert chief.wait() == 0
    assert len(chief.starts()) == 1


def test_a_failed_program_is_restarted_in_the_next_container(pod: MakePod, ps: FakePs) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.start(*chief.puppet)
    chief.order(1)
    assert chief.wait() == 1
    chief.start(*chief.puppet)
    chief.started(2)


def other_pythons() -> list[str]:
    found = [path for minor in (8, 9, 10, 12, 13, 14) if (path := shutil.which(f"python3.{minor}"))]
    works = [p for p in found if not subprocess.run([p, "-c", ""], check=False, capture_output=True).returncode]
    return [sys.executable, *works]


@pytest.mark.parametrize("python", other_pythons())
def test_other_pythons(pod: MakePod, ps: FakePs, python: str) -> None:
    chief = pod("chief", chief_of(ps.up()))
    chief.python = python
    chief.start(*chief.puppet)
    chief.started()
    ps.boot_id = "boot-2"
    chief.order(1)
    chief.started(2)
    write_whole(chief.folder / "order", "0")
    assert chief.wait() == 0
    assert "Warning" not in chief.log()
    assert "Traceback" not in chief.log()
