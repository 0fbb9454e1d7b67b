"""Commands that the launcher cannot run, and how the error names the way out."""

import ast
import os
import subprocess
import sys

import pytest

from pstraining.launcher import contract, launch, launcher_files
from pstraining.launcher.contract import ExitError
from pstraining.launcher.supervisor import Supervisor


def test_a_cluster_beyond_the_kernels_limit_is_named_and_not_the_command() -> None:
    """Linux takes variables of up to 128 KB: TF_CONFIG has the addresses of about 3,000 workers."""
    with pytest.raises(ExitError) as refused:
        Supervisor().run(["true"], {"PATH": "/usr/bin:/bin", "TF_CONFIG": "x" * 140_000})
    code, message = refused.value.args
    assert code == 126
    assert message == (
        "cannot run 'true': TF_CONFIG has 140,000 bytes, and Linux takes at most 131,072 in one variable or argument; "
        "use fewer tasks, or a shorter name of the job"
    )


def test_a_long_argument_of_the_command_itself() -> None:
    with pytest.raises(ExitError) as refused:
        Supervisor().run(["true", "x" * 140_000], {"PATH": "/usr/bin:/bin", "TF_CONFIG": "{}"})
    assert refused.value.args[1].endswith("Argument list too long; check the container's command and image")


def test_a_log_that_takes_no_line_does_not_end_the_launcher() -> None:
    """A program shares the launcher's stderr, and frameworks for asynchronous programs make it non-blocking."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    kept = os.dup(2)
    try:
        while os.write(writing, b"." * 4096) == 4096:
            pass
    except BlockingIOError:
        os.dup2(writing, 2)
        contract.log("this line is lost")
    finally:
        os.dup2(kept, 2)
        for descriptor in (reading, writing, kept):
            os.close(descriptor)


OLD_PYTHON = """
import runpy, sys

sys.version_info = (3, 7, 16)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_an_image_with_an_old_python_is_refused_by_a_sentence() -> None:
    """Images of TensorFlow 1 have Python 3.6, which does not know `from __future__ import annotations`."""
    text = launcher_files()["launch.py"]
    assert "annotations" not in {
        name.name
        for node in ast.walk(ast.parse(text, feature_version=(3, 6)))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    command = [sys.executable, "-c", OLD_PYTHON, launch.__file__, "--", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == contract.EXIT_BAD_SETTINGS
    assert done.stderr == (
        "pstraining-launcher: python3 in the image is older than 3.8; use an image with a newer one\n"
    )
