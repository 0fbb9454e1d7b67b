"""The addresses and the output of a job on this machine."""

import io
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from pstraining.runtime import local
from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE, Task
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.local import LocalJob
from pstraining.runtime.transport import sockets


@pytest.fixture
def port() -> Iterator[int]:
    """Return the address of a server that has not started yet."""
    with LocalJob(["-c", "import time; time.sleep(60)"], ps=1, workers=0, chief=False) as job:
        (address,) = job.cluster["ps"]
        yield int(address.rpartition(":")[2])


def test_a_jobs_port_is_reserved_until_its_process_listens(port: int) -> None:
    """A job's port is reserved until its process listens. Otherwise another job or an outgoing connection may take the
    port, and the job waits in vain.
    """
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_jobs_own_server_gets_it(port: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        server.bind(("", port))
        server.listen()
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_a_tasks_process_does_not_inherit_variables_that_this_process_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "GRPC_FAIL_FAST": "use_caller"})
    sockets.set_environment()
    with LocalJob(["-c", ""], ps=1, workers=0, chief=False) as job:
        found = job._environment_of(Task("ps", 0), 1)
    assert found["GRPC_FAIL_FAST"] == "use_caller", "set by the parent of this process"
    assert "TF_GRPC_DEFAULT_OPTIONS" not in found


def test_modules_are_found_in_the_folders_of_both_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    with LocalJob(["-c", ""], ps=1, workers=0, chief=False, environment={"PYTHONPATH": "/mine:/also"}) as job:
        found = job._environment_of(Task("ps", 0), 1)
    assert found["PYTHONPATH"].split(os.pathsep)[-3:] == ["/mine", "/also", "/theirs"]


def test_settings_may_be_paths_and_numbers_of_numpy(tmp_path: Path) -> None:
    one: Any = np.int64(1)
    settings: Any = {"training": {"steps": np.int32(5)}, "checkpoint": {"path": tmp_path, "keep": one}}
    variables: Any = {"DATA": tmp_path, "SHARDS": 2}
    with LocalJob(["-c", ""], ps=one, workers=0, standbys=one, environment=variables, **settings) as job:
        found = job._environment_of(Task("ps", 0), 1)
        written = json.loads(Path(found[ENV_CLUSTER_FILE]).read_text())
    assert (written["training"], written["members"]) == ({"steps": 5}, 2)
    assert written["checkpoint"] == {"path": str(tmp_path), "keep": 1}
    assert (found["DATA"], found["SHARDS"]) == (str(tmp_path), "2")


def test_a_setting_of_another_type_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^training\.steps: give one of Python's values, .* of the type float32$"):
        LocalJob(["-c", ""], training={"steps": np.float32(5)})


@pytest.mark.parametrize(("code", "starts"), [(78, 1), (1, 3)])
def test_a_program_with_invalid_settings_is_not_restarted(code: int, starts: int) -> None:
    with LocalJob(["-c", f"raise SystemExit({code})"], ps=0, workers=0, restarts=2) as job:
        assert job.wait() == code
        assert job.leader.starts == starts


def test_a_job_fails_whose_parameter_server_ends_again_and_again_with_0() -> None:
    """The other tasks wait for it, with a program that forgets this role."""
    program = "import os, sys, time; 'ps' == os.environ['PSTRAINING_TASK_TYPE'] and sys.exit() or time.sleep(600)"
    with LocalJob(["-c", program], ps=1, workers=0, restarts=2) as job:
        while (code := job.supervise()) is None and job.processes["ps-0"].popen.wait() == 0:
            pass
        assert (code, job.failed, job.processes["ps-0"].starts) == (1, job.processes["ps-0"], 3)
    assert job.processes["ps-0"].lines == ["the program has ended with 0: a PS's program must not end"]


@pytest.mark.parametrize("roles", [{"ps": 0, "workers": 0}, {"ps": 0, "workers": 1, "chief": False}])
def test_a_program_that_a_signal_ends_has_the_exit_code_of_a_shell(roles: dict[str, Any]) -> None:
    with LocalJob(["-c", "import os; os.kill(os.getpid(), 9)"], **roles) as job:
        job.leader.popen.wait()
        assert job.supervise() == 137
        assert job.failed is job.leader


def test_the_end_of_a_process_is_known_once_its_output_is_read() -> None:
    """The end of a process is known once its output is read: its last lines are its result, or why it failed."""

    class Slow(io.StringIO):
        """A terminal that shows each line only after the process has ended."""

        def write(self, text: str) -> int:
            job.leader.popen.wait()
            time.sleep(0.2)
            return super().write(text)

    shown = Slow()
    job = LocalJob(["-c", "print('one'); print('{\"event\": \"two\"}')"], ps=0, workers=0, echo=shown)
    with job:
        assert job.wait() == 0
        assert job.leader.events("two")
    assert shown.getvalue() == '[chief] one\n[chief] {"event": "two"}\n'


def test_each_line_of_the_output_begins_with_the_name_of_its_task() -> None:
    shown = io.StringIO()
    with LocalJob(["-c", "print('one', end='')"], ps=0, workers=0, chief=True, restarts=0, echo=shown) as job:
        assert job.wait() == 0
    assert (shown.getvalue(), job.leader.lines) == ("[chief] one\n", ["one"])


def test_a_child_that_keeps_the_output_open_does_not_hide_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OUTPUT_SECONDS", 0.2)
    with LocalJob(["-c", "import os, time; print(os.fork() or time.sleep(600))"], ps=0, workers=0) as job:
        assert job.wait() == 0
        while not job.leader.lines:
            time.sleep(0.01)
        os.kill(int(job.leader.lines[0]), signal.SIGKILL)


def test_only_whole_lines_are_events() -> None:
    """Two threads of a program may write into the same line, and a program may print JSON of its own."""
    lines = ['{"event": "step", "step": 1}', '{"event": "st{"other": 2}', "[1]", '{"step": 3}', "event", ""]
    with LocalJob(["-c", "import time; time.sleep(60)"], ps=0, workers=0) as job:
        job.leader.lines += lines
        assert job.leader.events("step") == [{"event": "step", "step": 1}]


def ascii_only() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [ascii_only, closed])
def test_a_stream_that_takes_no_line_ends_the_job(make: Callable[[], TextIO]) -> None:
    """Otherwise the processes would wait until their output is read."""
    program = "import time; print('\\u00e4', flush=True); time.sleep(3)"
    environment = {"PYTHONIOENCODING": "utf-8"}
    job = LocalJob(["-c", program], ps=0, workers=0, echo=make(), environment=environment)
    with job, pytest.raises(ValueError, match=r"codec|closed file"):
        job.wait()


class JobWasMadeError(Exception):
    """Takes the place of a local job: its arguments are those of the job."""


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--ps", "2", "-m", "train", "--steps", "5", "--rate=1"], ["-m", "train", "--steps", "5", "--rate=1"]),
        (["--ps", "2", "-m", "train", "data", "-m", "x"], ["-m", "train", "data", "-m", "x"]),
        (["--ps", "2", "train.py", "--steps", "5", "-m", "x"], ["train.py", "--steps", "5", "-m", "x"]),
    ],
)
def test_what_follows_the_program_is_its_own(
    arguments: list[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(command: list[str], **options: Any) -> None:
        raise JobWasMadeError(command, options["ps"], options["training"])

    monkeypatch.setattr(local, "LocalJob", make)
    with pytest.raises(JobWasMadeError) as made:
        local.main(arguments)
    assert made.value.args == (command, 2, {})


def test_an_empty_folder_of_checkpoints_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as that of a variable that is not set: the job would have no checkpoints."""
    with pytest.raises(SystemExit):
        local.main(["--checkpoint-dir", "", "-m", "train"])
    assert "--checkpoint-dir is empty" in capsys.readouterr().err
