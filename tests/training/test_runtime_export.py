"""Plain Keras, without this project's modules, loads the model that training has exported."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from pstraining.runtime import local
from pstraining.runtime.config.cluster import Task

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]

LOAD: Final = """
import json, sys
import keras, tensorflow
found = []
for folder in sys.argv[1:]:
    model = keras.models.load_model(folder + "/final.keras")
    inputs = [tensorflow.constant(one) for one in json.load(open(folder + "/inputs.json"))]
    found.append(model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0).tolist())
assert not [name for name in sys.modules if name.startswith("pstraining")]
print(json.dumps(found))
"""


def printed(*command: str) -> Any:
    """Return the last line of JSON that a Python process prints; it is forked from a parent without this project's
    modules.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = local.spawn(Task("worker", 0), (), command, environment)
    assert run.stdout is not None
    lines = run.stdout.read().splitlines()
    assert run.wait() == 0, lines
    return json.loads(next(line for line in reversed(lines) if line.startswith(("{", "["))))


def loaded(folder: Path) -> Any:
    """Return plain Keras's predictions with the model of a folder."""
    return all_loaded(folder)[0]


def all_loaded(*folders: Path) -> Any:
    """Return plain Keras's predictions with the models of folders, in one process."""
    return printed("-c", LOAD, *map(str, folders))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the predictions of the models with tables by name, where they are exported and where plain Keras loads
    them.
    """
    folder = tmp_path_factory.mktemp("exported")
    expected = printed("-m", "tests.support.exporting", "tables", str(folder))
    names = ["clicks", "words", "towers", "keys", "empty"]
    return expected, dict(zip(names, all_loaded(*(folder / name for name in names)), strict=True))


def test_tables_become_layers_of_keras(exported: Any) -> None:
    expected, found = exported
    np.testing.assert_allclose(found["clicks"], expected["clicks"], rtol=1e-6)


def test_layers_keep_the_vocabularies_that_they_have_learnt(exported: Any) -> None:
    expected, found = exported
    np.testing.assert_allclose(found["words"], expected["words"], rtol=1e-6)


def test_rows_by_key_become_a_lookup_of_keras(exported: Any) -> None:
    expected, found = exported
    for name in ("keys", "empty", "towers"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_an_export_failure_of_the_model_is_distinguished_from_a_disk_failure(exported: Any) -> None:
    expected, _ = exported
    assert expected["refused"] == ["NotExportedError", "FileNotFoundError", "NotExportedError", "NotExportedError"]


def test_classes_of_the_program_are_exported(exported: Any) -> None:
    """Keras saves them without a word, and looks for those that are not registered only where it loads the file."""
    assert exported[0]["own"]
