"""Real parameter servers for the tests of the runtime's parts.

One client and four servers serve the whole run: a process connects to a cluster once. Every test has a container of
its own on the servers.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers import connected

PS = 4


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    with connected(PS) as client:
        yield client


@pytest.fixture
def client(cluster: Any, request: pytest.FixtureRequest) -> Any:
    """The run's client, on a clean container."""
    cluster.container = "test." + "".join(c if c.isalnum() else "." for c in request.node.nodeid)
    return cluster


@pytest.fixture
def plain_arithmetic() -> Iterator[None]:
    """Arithmetic as the program has written it, so that 1e-9 is not lost to approximate reciprocals."""
    import tensorflow as tf

    from pstraining.runtime import repeatable

    before = tf.config.optimizer.get_experimental_options()
    repeatable.plain_arithmetic()
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True, "remapping": True, **before})
