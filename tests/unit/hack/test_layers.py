"""A layer of many tests runs in groups of files, each with new processes, above the level `quick`."""

import re
from collections import Counter
from pathlib import Path

import pytest

from hack.layers import LAYERS, ROOT, Layer, Part
from hack.level import Level
from localcluster.tools import DEFAULT_TOOLS, tool_named

ASKED = re.compile(r'"tool", "([\w-]+)"|"(kueue|kwok|gang)", "up"')
"""The commands of localcluster that build a program."""
GROUPED = [layer for layer in LAYERS if any(part.groups > 1 for part in layer.parts)]


def files_of(layer: Layer) -> Counter[str]:
    """Return how often each test file runs."""
    found = Counter[str]()
    for part in layer.parts:
        for path in part.paths:
            files = [ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("test_*.py")
            found.update(str(file.relative_to(ROOT)) for file in files)
    return found


@pytest.mark.parametrize("layer", GROUPED, ids=lambda layer: layer.name)
def test_every_file_is_in_one_group(layer: Layer) -> None:
    whole, grouped = files_of(layer), layer.at(Level.ALL)
    assert len(grouped.parts) == sum(part.groups for part in layer.parts)
    assert files_of(grouped) == whole == Counter(set(whole))
    sizes = [len(part.paths) for part in grouped.parts]
    assert max(sizes) - min(sizes) <= 1
    assert len({grouped.report_name(part) for part in grouped.parts}) == len(grouped.parts)
    assert layer.at(Level.QUICK) is layer


def test_a_group_keeps_the_options_and_a_small_layer_has_no_empty_group(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").touch()
    part = Part("a", (str(tmp_path),), ("-n", "2"), groups=3)
    (only,) = part.split()
    assert (only.name, only.paths, only.options) == ("a 1 of 3", (str(tmp_path / "test_one.py"),), ("-n", "2"))
    assert Part("a", (str(tmp_path),)).split() == (Part("a", (str(tmp_path),)),)


def test_the_training_tests_do_not_share_one_process() -> None:
    """TensorFlow releases no traced function: in one run of all of them, the machine ran out of memory."""
    assert [layer.name for layer in GROUPED] == ["training"]


@pytest.mark.parametrize(
    "layer", [layer for layer in LAYERS if layer.cluster or layer.helm], ids=lambda layer: layer.name
)
def test_programs_are_built_before_the_tests_that_ask_for_them(layer: Layer) -> None:
    """A build takes minutes, and on a busy machine more than the time of a test."""
    files = [ROOT / file for file in files_of(layer)] + [ROOT / path / "conftest.py" for path in layer.folders]
    names = {name for file in files for found in ASKED.findall(file.read_text()) for name in found if name}
    asked = {"scheduler-plugins" if name == "gang" else tool_named(name).name for name in names}
    soak = {"kube-score"}
    assert asked <= {*DEFAULT_TOOLS, *layer.at(Level.ALL).tools, *soak}
