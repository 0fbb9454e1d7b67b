"""The reference of the library: its text from docstrings, and the rejection of members without one."""

import copy
from pathlib import Path
from typing import Any

import pytest

from hack.docs.library import UndocumentedError, library
from pstraining.api.crd import custom_resource_definition

SOURCE = '''
class {name}:
    """Trains.

    Args:
        model: builds val_<metric>, `<kept>`
            on two lines.
{more}
    """

    def __init__(self, model: "Callable[[], int | str]", *, steps: int | None = None) -> None: ...

    def run(self) -> None:
        """Run it.

        Returns:
            The result: a number.

        Raises:
            ValueError: it is wrong.
        """

    def _inner(self) -> None: ...
'''
SETTINGS = '''
class {name}:
    """Settings of a job's training."""
'''


def page(folder: Path, definition: dict[str, Any] | None = None, source: str = SOURCE, **given: str) -> str:
    runtime = folder / "pstraining" / "runtime"
    runtime.mkdir(parents=True)
    (folder / "pstraining" / "__init__.py").touch()
    words: dict[str, Any] = {"name": "Trainer", "more": "        steps: how many.", **given}
    (runtime / "__init__.py").write_text(source.format_map(words) + f"\n__all__ = ['{words['name']}']\n")
    return library(definition or custom_resource_definition(), folder)


def test_a_class(tmp_path: Path) -> None:
    found = page(tmp_path)
    for line in (
        "Trainer(model, *, steps=None)",
        r"| `model` | `Callable[[], int \| str]` | builds val_\<metric>, `<kept>` on two lines. |",
        "### Trainer.run",
        "Returns: The result: a number.",
        "- Raises `ValueError`: it is wrong.",
    ):
        assert line in found.splitlines()
    assert "_inner" not in found


def test_an_undocumented_argument_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(UndocumentedError, match="Trainer: no description of steps"):
        page(tmp_path, more="")


def test_a_setting_that_jobs_lack_is_rejected_by_name(tmp_path: Path) -> None:
    definition = copy.deepcopy(custom_resource_definition())  # it is cached for all tests
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["training"]["properties"]["compression"]["properties"]["topKPermille"]
    with pytest.raises(UndocumentedError, match=r"compression.top_k_permille: the job's spec.training"):
        page(tmp_path, definition, SETTINGS, name="TrainingSettings")
