"""Programs that run in forks of one process, because importing the runtime takes longer than most programs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PARENT = """
import gc, json, os, sys
from pstraining.runtime import CheckpointSettings, Files, Ranges, Trainer, TrainingSettings

gc.freeze()
for line in sys.stdin:
    program, *files = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, file in enumerate(files, start=1):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
"""
Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@contextmanager
def forking(folder: Path, **environment: str) -> Iterator[Run]:
    """Yield a function that runs a program to its end, as `python -c` does."""
    out, error = folder / "out", folder / "error"
    command, variables = [sys.executable, "-c", _PARENT], {**os.environ, **environment}
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        asked, answers = parent.stdin, parent.stdout

        def run(program: str) -> "subprocess.CompletedProcess[str]":
            print(json.dumps([program, str(out), str(error)]), file=asked)
            code = int(answers.readline())
            return subprocess.CompletedProcess(program, code, out.read_text(), error.read_text())

        yield run
