"""Fixtures of several files."""

from collections.abc import Iterator

import pytest

from tests.support.fake_s3 import FakeS3, serving


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """Serve an object store, which the environment names."""
    with serving() as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        yield store
