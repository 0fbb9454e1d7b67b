"""The exit code of a program that a restart cannot fix, and the place of the reported reason."""

import os
import subprocess
import sys

import pytest

from pstraining.api import contract
from pstraining.launcher import contract as launcher_contract

WRONG = "from pstraining.runtime import Trainer\nTrainer(None, None, 'mse', lambda w, n: None, validation_every=0)"
CAUGHT = "\nexcept ValueError as error:\n    print('caught', error)"


def run(program: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, contract.ENV_POD_NAME: ""}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
    )


def test_the_launcher_knows_the_exit_code() -> None:
    assert contract.EXIT_BAD_SETTINGS == launcher_contract.EXIT_BAD_SETTINGS


def test_invalid_settings_have_an_exit_code_and_a_last_line() -> None:
    ended = run(WRONG)
    assert ended.returncode == contract.EXIT_BAD_SETTINGS
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "validation_every must be at least 1; it is 0"


@pytest.mark.parametrize("error", ["OSError('disk')", "SystemExit(3)", "KeyboardInterrupt()"])
def test_other_errors_keep_theirs(error: str) -> None:
    program = f"from pstraining.runtime.errors import install_exit_code\ninstall_exit_code()\nraise {error}"
    assert run(program).returncode == run(f"raise {error}").returncode != contract.EXIT_BAD_SETTINGS


def test_the_cause_of_an_error_counts() -> None:
    program = (
        "from pstraining.runtime.errors import FinalError, install_exit_code\n"
        "install_exit_code()\n"
        "try:\n    raise FinalError('the cause')\nexcept FinalError as error:\n    raise OSError('wrapped')"
    )
    ended = run(program)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (contract.EXIT_BAD_SETTINGS, "the cause")


def test_the_reason_has_no_escapes_of_a_terminal() -> None:
    """Keras writes the cause of an error in bold."""
    program = (
        "from pstraining.runtime.errors import FinalError, install_exit_code\n"
        "install_exit_code()\n"
        r"raise FinalError('In call().\n\n\x1b[1mInput 0 is \x1b[1;31mincompatible\x1b[0m\n\n  shape=[1m]')"
    )
    assert run(program).stderr.splitlines()[-1] == "In call(). Input 0 is incompatible shape=[1m]"


def test_the_error_can_be_caught() -> None:
    program = "try:\n    " + WRONG.replace("\n", "\n    ") + CAUGHT
    ended = run(program)
    assert (ended.returncode, ended.stdout[:6]) == (0, "caught")
