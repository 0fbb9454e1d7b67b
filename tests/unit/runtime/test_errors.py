"""The exit code of a program that a restart cannot fix, and the place of the reported reason."""

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from pstraining.api import contract
from pstraining.launcher import contract as launcher_contract
from pstraining.runtime.errors import FinalError, _explain
from pstraining.runtime.model.errors import refusing_repeated_errors
from tests.support.forked_programs import Run, forking

WRONG = "from pstraining.runtime import Trainer\nTrainer(None, None, 'mse', lambda w, n: None, validation_every=0)"
CAUGHT = "\nexcept ValueError as error:\n    print('caught', error)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with forking(tmp_path_factory.mktemp("programs"), **{contract.ENV_POD_NAME: ""}) as run:
        yield run


def test_the_launcher_knows_the_exit_code() -> None:
    assert contract.EXIT_BAD_SETTINGS == launcher_contract.EXIT_BAD_SETTINGS


def test_invalid_settings_have_an_exit_code_and_a_last_line() -> None:
    environment = {**os.environ, contract.ENV_POD_NAME: ""}
    command = [sys.executable, "-c", WRONG]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert ended.returncode == contract.EXIT_BAD_SETTINGS
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "validation_every must be at least 1; it is 0"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("Ranges(0, 1, range)", "Ranges: size must be at least 1; it is 0"),
        ("Files([], str)", "Files: there is no path"),
        ("CheckpointSettings(keep=0)", "CheckpointSettings.keep: input should be greater than or equal to 1"),
        ("CheckpointSettings(interval_seconds='60')", "CheckpointSettings.interval_seconds: input should be a"),
        ("CheckpointSettings(folder='/c')", "CheckpointSettings.folder: unknown field"),
        ("TrainingSettings()", "TrainingSettings: one of steps and epochs must be given"),
    ],
)
def test_what_is_refused_before_there_is_a_trainer_has_the_exit_code_too(call: str, sentence: str, run: Run) -> None:
    names = "CheckpointSettings, Files, Ranges, TrainingSettings"
    ended = run(f"from pstraining.runtime import {names}\n{call}")
    assert ended.returncode == contract.EXIT_BAD_SETTINGS, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(sentence)


@pytest.mark.parametrize("error", ["OSError('disk')", "SystemExit(3)", "KeyboardInterrupt()"])
def test_other_errors_keep_theirs(error: str, run: Run) -> None:
    program = f"from pstraining.runtime.errors import install_exit_code\ninstall_exit_code()\nraise {error}"
    assert run(program).returncode == run(f"raise {error}").returncode != contract.EXIT_BAD_SETTINGS


def test_the_cause_of_an_error_counts(run: Run) -> None:
    program = (
        "from pstraining.runtime.errors import FinalError, install_exit_code\n"
        "install_exit_code()\n"
        "try:\n    raise FinalError('the cause')\nexcept FinalError as error:\n    raise OSError('wrapped')"
    )
    ended = run(program)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (contract.EXIT_BAD_SETTINGS, "the cause")


def test_the_reason_has_no_escapes_of_a_terminal(run: Run) -> None:
    """Keras writes the cause of an error in bold."""
    program = (
        "from pstraining.runtime.errors import FinalError, install_exit_code\n"
        "install_exit_code()\n"
        r"raise FinalError('In call().\n\n\x1b[1mInput 0 is \x1b[1;31mincompatible\x1b[0m\n\n  shape=[1m]')"
    )
    assert run(program).stderr.splitlines()[-1] == "In call(). Input 0 is incompatible shape=[1m]"


def test_the_error_can_be_caught(run: Run) -> None:
    program = "try:\n    " + WRONG.replace("\n", "\n    ") + CAUGHT
    ended = run(program)
    assert (ended.returncode, ended.stdout[:6]) == (0, "caught")


def in_module(module: str, code: str, **names: object) -> None:
    """Run code as a module's."""
    exec(code, {"__name__": module, **names})


@pytest.mark.parametrize(
    "code",
    ["Dens(3)", "keras.Dens", "layer()", "layer(1, 2)", "layer(1, unit=2)", "keras.raising(ValueError('rellu'))"],
)
def test_what_another_run_would_meet_ends_the_job(code: str) -> None:
    def layer(units: int) -> None:
        """Do nothing."""

    def raising(error: Exception) -> None:
        in_module("keras.src.layers.core", "raise error", error=error)

    keras = types.ModuleType("keras")
    keras.raising = raising  # type: ignore[attr-defined]
    with (
        pytest.raises(FinalError, match="the model cannot be built: "),
        refusing_repeated_errors("the model cannot be built"),
    ):
        in_module("__main__", code, keras=keras, layer=layer)


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        (["__main__"], ValueError("a server has not answered")),
        (["__main__"], TypeError("a server has answered None")),
        (["__main__"], AttributeError("'NoneType' object has no attribute 'read'")),
        (["keras.src.layers.layer"], OSError("disk")),
        (["keras.src.saving.saving_api"], ValueError("File not found")),
        (["keras.src.saving.saving_api", "keras.src.layers.layer"], ValueError("half of a file")),
        (["keras.src.utils.file_utils"], ValueError("Incomplete file")),
        (["keras.src.layers.preprocessing.index_lookup"], ValueError("Vocabulary file words.txt does not exist.")),
        (["keras.src.utils.image_dataset_utils"], ValueError("No images found in directory data")),
        (["keras.src.utils.dataset_utils"], ValueError("There are fewer files than labels")),
        (["__main__"], UnboundLocalError("cannot access local variable 'words'")),
    ],
)
def test_what_may_pass_keeps_its_type(modules: list[str], error: Exception) -> None:
    def through(rest: list[str]) -> None:
        in_module(rest[0], "through(rest) if rest else raising()", through=through, rest=rest[1:], raising=raising)

    def raising() -> None:
        in_module(modules[-1], "raise error", error=error)

    with pytest.raises(type(error)) as raised, refusing_repeated_errors("the model cannot be built"):
        through(modules)
    assert raised.value is error


def test_the_reason_is_text_whatever_the_message_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's name may have bytes that are no text, and the last character may not fit as a whole."""
    file = tmp_path / "message"
    monkeypatch.setattr(contract, "TERMINATION_MESSAGE_FILE", str(file))
    monkeypatch.setenv(contract.ENV_POD_NAME, "pod")
    for sentence, expected in (("/data/\udcff is missing", "/data/? is missing"), ("a" + "\u00e4" * 4096, None)):
        _explain(sentence)
        text = file.read_bytes().decode()
        assert text == (expected or "a" + "\u00e4" * 2047)
