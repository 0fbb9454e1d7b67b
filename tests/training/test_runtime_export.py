"""The model that training leaves: plain Keras loads it, where nobody has heard of this project."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.support.exporting import KEYS, SEEN

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

LOAD: Final = """
import json, sys
import keras, numpy
model = keras.models.load_model(sys.argv[1])
inputs = [numpy.asarray(one) for one in json.load(open(sys.argv[2]))]
predicted = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
assert not [name for name in sys.modules if name.startswith("pstraining")]
print(json.dumps(predicted.tolist()))
"""


def printed(*command: str) -> Any:
    """The JSON on the last line that a Python process prints."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def loaded(folder: Path) -> Any:
    """What plain Keras predicts."""
    return printed("-c", LOAD, str(folder / "final.keras"), str(folder / "inputs.json"))


def test_tables_become_layers_of_keras(tmp_path: Path) -> None:
    expected = printed("-m", "tests.support.exporting", "clicks", str(tmp_path))
    (tmp_path / "inputs.json").write_text(json.dumps(SEEN))
    np.testing.assert_allclose(loaded(tmp_path), expected, rtol=1e-6)


def test_rows_by_key_become_a_lookup_of_keras(tmp_path: Path) -> None:
    trained, empty = printed("-m", "tests.support.exporting", "keys", str(tmp_path))
    (tmp_path / "inputs.json").write_text(json.dumps([KEYS]))
    np.testing.assert_allclose(loaded(tmp_path), trained, rtol=1e-6)
    (tmp_path / "empty.keras").rename(tmp_path / "final.keras")
    np.testing.assert_allclose(loaded(tmp_path), empty, rtol=1e-6)


def test_an_export_failure_of_the_model_is_distinguished_from_a_disk_failure(tmp_path: Path) -> None:
    errors = printed("-m", "tests.support.exporting", "refused", str(tmp_path))
    assert errors == ["NotExportedError", "FileNotFoundError", "NotExportedError"]
