"""Garbage collection is off while TensorFlow is loaded, and its modules' objects are frozen afterwards."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from pstraining.runtime.config.loading import loading


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
