"""Garbage collection is off while TensorFlow is loaded, and its modules' objects are frozen afterwards."""

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from pstraining.runtime import Ranges, Trainer
from pstraining.runtime.config.loading import check_backend, loading
from pstraining.runtime.config.settings import SettingsError


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert gc.isenabled()
    frozen = gc.get_freeze_count() > 0  # objects that pytest has collected: see tests/conftest.py
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()
    if frozen:
        gc.freeze()


def test_loaded_objects_are_not_scanned_by_the_collector() -> None:
    with loading():
        assert not gc.isenabled()
        loaded: list[list[object]] = [[]]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not any(found is loaded for found in gc.get_objects())


def test_a_failure_is_not_kept() -> None:
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_disabled_garbage_collection_stays_disabled() -> None:
    gc.disable()
    with loading():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_objects_are_not_frozen_if_tensorflow_is_already_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    with loading():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_another_backend_of_keras_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that trained with JAX may choose its backend at the top, and an image by its file."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    home = {"KERAS_HOME": str(tmp_path)}
    check_backend(home)
    check_backend(home | {"KERAS_BACKEND": "tensorflow"})
    with pytest.raises(
        SettingsError, match=r"^KERAS_BACKEND: Keras's backend is jax \(in the environment\), but .* set"
    ):
        check_backend(home | {"KERAS_BACKEND": "jax"})
    for text, is_refused in (("nonsense", False), ("[]", False), ('{"backend": "torch"}', True)):
        (tmp_path / "keras.json").write_text(text)
        with pytest.raises(SettingsError, match=rf"is torch \(in {tmp_path}/") if is_refused else nullcontext():
            check_backend(home | {"KERAS_BACKEND": ""})
    check_backend(home | {"KERAS_BACKEND": "tensorflow"})
    loaded = SimpleNamespace(config=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", cast(ModuleType, loaded))
    with pytest.raises(SettingsError, match=r"is jax \(the program has loaded Keras\)"):
        check_backend(home)


def test_another_backend_of_keras_ends_the_program_before_it_loads_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Trainer
    cluster = {"cluster": {"worker": ["a:1", "c:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setenv("KERAS_BACKEND", "absent")
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(SettingsError, match=r"^KERAS_BACKEND: Keras's backend is absent"):
        made(lambda: None, lambda: None, "mse", Ranges(60, 10, range), steps=1).run()
    assert "keras" not in sys.modules
