"""Tests of this layer need nothing but Python."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def without_tensorflow() -> Iterator[None]:
    """Let a test that imports TensorFlow fail, unless tests of another layer have imported it in this process."""
    if "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # an import then raises ModuleNotFoundError
    yield
    del sys.modules["tensorflow"]
