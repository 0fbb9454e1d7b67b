"""Pods and parameter servers, stopped at the end of each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes.pods import FakePs, Pod, closing, is_constant


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ps(cleanup: ExitStack) -> FakePs:
    """Return a PS that does not run yet."""
    fake = FakePs()
    cleanup.enter_context(closing(fake))
    return fake


@pytest.fixture
def pod(tmp_path: Path, cleanup: ExitStack) -> Callable[..., Pod]:
    """Create pods: pod("chief", {"ps": [...]}, CONSTANT_OF_THE_LAUNCHER=value, VARIABLE_OF_ITS_ENVIRONMENT="value")."""

    def make(kind: str, cluster: dict[str, list[str]], index: int = 0, **settings: Any) -> Pod:
        constants = {name: value for name, value in settings.items() if is_constant(name)}
        env = {name: value for name, value in settings.items() if name not in constants}
        made = Pod(tmp_path / f"{kind}-{index}", kind, cluster, index, **env)
        made.constants.update(constants)
        cleanup.enter_context(closing(made))
        return made

    return make
