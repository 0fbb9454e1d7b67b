"""Signals that arrive before the launcher is ready. The kernel drops them if they are neither handled nor blocked."""

import subprocess
import sys
from pathlib import Path

from pstraining.launcher import contract, launcher_files

EARLY = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"


def test_a_stop_during_the_imports_waits_for_the_launcher(tmp_path: Path) -> None:
    for name, text in launcher_files().items():
        (tmp_path / name).write_text(text)
    parts = (tmp_path / "contract.py").read_text().partition("from __future__ import annotations\n")
    (tmp_path / "contract.py").write_text("".join((*parts[:2], EARLY, parts[2])))
    done = subprocess.run([sys.executable, str(tmp_path / "launch.py"), "--", "true"], env={}, check=False)
    assert done.returncode == contract.EXIT_BAD_CONTRACT, "the signal ended the process, or it would be lost"


def test_the_signal_to_stop_of_systemd_becomes_one_that_programs_know() -> None:
    """Images with systemd have `STOPSIGNAL SIGRTMIN+3`. Without a handler, the kernel drops it for a container."""
    child = "import os, signal, time; os.kill(os.getppid(), 37); signal.pause()"
    program = f"""
import sys
from pstraining.launcher.supervisor import Supervisor
found = Supervisor()
code, _ = found.run([sys.executable, "-c", {child!r}], {{}})
raise SystemExit(f"{{code}} {{found.stopped_by:d}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert done.stderr.split() == [b"143", b"15"]


def test_a_stop_from_before_the_launcher_was_ready_stops_it() -> None:
    program = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
{EARLY}
from pstraining.launcher.contract import ExitError
from pstraining.launcher.supervisor import Supervisor
try:
    Supervisor().wait(10)
except ExitError as error:
    raise SystemExit(error.args[0])
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 128 + 15
