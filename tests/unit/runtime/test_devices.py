"""The choice of a task's computing devices."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pstraining.runtime.config.devices import GpuMissingError, by_type, check_gpus, choose
from pstraining.runtime.config.settings import SettingsError

TWO = ("CPU:0", "GPU:0", "GPU:1")


@pytest.mark.parametrize(
    ("visible", "wanted", "expected"),
    [
        (TWO, None, ("GPU:0", "GPU:1")),
        (("CPU:0", "TPU_SYSTEM:0", "TPU:0", "XLA_GPU:0"), None, ("TPU:0",)),
        (("CPU:0", "CPU:1"), None, ("CPU:0",)),
        (TWO, ["/device:gpu:1"], ("GPU:1",)),
        (TWO, ["GPU:1", "/GPU:0"], ("GPU:1", "GPU:0")),
        (TWO, ["GPU"], ("GPU:0",)),
        (TWO, ["CPU:0"], ("CPU:0",)),
    ],
)
def test_accelerators_compute_unless_the_program_chooses(
    visible: Sequence[str], wanted: Sequence[str] | None, expected: tuple[str, ...]
) -> None:
    assert choose(visible, wanted, strict=True) == expected


@pytest.mark.parametrize(
    ("wanted", "words"),
    [(["GPU:0", "GPU:2"], "GPU:2 not visible"), ([], "no device is named"), (["GPU:0", "gpu:0"], "twice")],
)
def test_an_impossible_choice_is_rejected_with_the_available_devices(wanted: Sequence[str], words: str) -> None:
    with pytest.raises(SettingsError, match=f"devices: .*{words}.*CPU:0, GPU:0, GPU:1"):
        choose(TWO, wanted, strict=True)


def test_a_text_is_no_list_of_devices() -> None:
    with pytest.raises(SettingsError, match=re.escape("devices: 'GPU:0' is a text, not a list; use devices=['GPU:0']")):
        choose(("CPU:0", "GPU:0"), "GPU:0", strict=False)


@pytest.mark.parametrize("wanted", [0, [0], [SimpleNamespace(name="/device:GPU:0")], (name for name in ["GPU:0"])])
def test_what_is_no_list_of_names_is_rejected_with_an_example(wanted: Any) -> None:
    with pytest.raises(SettingsError, match=r"^devices: give a list of names, such as \['GPU:0'\]; it is .*"):
        choose(TWO, wanted, strict=False)


@pytest.mark.parametrize(("visible", "expected"), [(("CPU:0",), ("CPU:0",)), (("CPU:0", "GPU:0"), ("GPU:0",))])
def test_a_chief_has_its_visible_devices(visible: Sequence[str], expected: tuple[str, ...]) -> None:
    assert choose(visible, ["GPU:0", "GPU:1"], strict=False) == expected


def test_missing_requested_gpus_are_an_error() -> None:
    check_gpus(requested=0, visible=0, is_built_for_gpus=False)
    check_gpus(requested=1, visible=2, is_built_for_gpus=True)
    with pytest.raises(SettingsError, match="request 2 GPUs, but TensorFlow sees 0, because the image's TensorFlow"):
        check_gpus(requested=2, visible=0, is_built_for_gpus=False)
    with pytest.raises(GpuMissingError, match="request 2 GPUs, but TensorFlow sees 1: check the node's driver"):
        check_gpus(requested=2, visible=1, is_built_for_gpus=True)


def test_devices_are_counted_by_type() -> None:
    names = [f"/job:worker/replica:0/task:0/device:{name}" for name in ("GPU:0", "GPU:1", "CPU:0")]
    assert by_type(names) == {"GPU": 2, "CPU": 1}
