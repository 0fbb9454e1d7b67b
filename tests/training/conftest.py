"""Real parameter servers for the tests of the runtime's parts.

One client and four servers serve the whole run, because a process can connect to a cluster only once. Every test has
its own container on the servers.
"""

import gc
import inspect
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pstraining.runtime import local
from tests.support.placement import computing_on, divide_cpu, sees_gpu
from tests.support.servers import Rig, connected
from tests.support.soak_marks import ALL
from tests.support.warm import Parents

PS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files for `--dist loadfile`: the last file runs alone, and so a long one must not be the last."""
    sizes = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("minutes")}
    items.sort(key=lambda item: (item.path not in long, -sizes[item.path], str(item.path)))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    with connected(PS) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Fork the chiefs and workers of local jobs from processes that have imported TensorFlow.

    Not on a GPU: CUDA's libraries start threads, which a fork does not copy.
    """
    if sees_gpu():
        yield
        return
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "spawn", Parents(stack, local.spawn).spawn)
        yield


@pytest.fixture(scope="session", autouse=True)
def divided() -> None:
    """Divide the CPU into several logical devices, which is possible only before TensorFlow's first tensor.

    On a GPU, arithmetic is that of float32, and sums have one order; otherwise comparisons would measure the card's
    rounding. The garbage collector does not scan TensorFlow's modules while functions are traced.
    """
    if sees_gpu():
        os.environ |= {"NVIDIA_TF32_OVERRIDE": "0", "TF_DETERMINISTIC_OPS": "1"}
    divide_cpu()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def without_tracebacks(divided: None) -> None:
    """Do not record where operations were created: errors then name the operations, and no lines of Python.

    Recording takes a tenth of the tracing time, because a test's stack is deep. Jobs' processes do record it.
    """
    _record_tracebacks(False)


@pytest.fixture
def tracebacks(without_tracebacks: None) -> Iterator[None]:
    """Record where operations are created, as in jobs' processes."""
    _record_tracebacks(True)
    yield
    _record_tracebacks(False)


def _record_tracebacks(record: bool) -> None:
    from tensorflow.python.framework import ops

    create: Any = inspect.unwrap(ops._create_c_op)
    assert list(inspect.signature(create).parameters)[-2:] == ["op_def", "extract_traceback"]
    create.__defaults__ = (None, record)


@pytest.fixture(scope="session", autouse=True)
def without_rewriting(divided: None) -> None:
    """In `make test`, this process runs graphs as they were traced; in `make test-all` Grappler rewrites them.

    Rewriting takes a sixth of this layer's processor time. Jobs' processes, here and end to end, always rewrite.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not ALL})


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> None:
    """Derive the seeds that Keras takes from `random`, of initial values and of dropout, from the test's name.

    So the result of a comparison within rounding does not change between runs. `PSTRAINING_SEED` gives other values;
    `make test-all` and `make soak` draw it.
    """
    drawn = zlib.crc32(request.node.nodeid.encode()) if not ALL else random.SystemRandom().randrange(2**32)
    chosen = int(os.environ.get("PSTRAINING_SEED", drawn))
    print(f"PSTRAINING_SEED={chosen}")  # pytest shows it with a failure
    random.seed(chosen)


@pytest.fixture
def client(cluster: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the run's client, with a clean container and long timeouts.

    Its workers are threads of one process, and block each other while they trace functions. On a busy machine that
    takes longer than a heartbeat or a probe may. Tests of these limits set them themselves, and tests that stop a
    server have the mark `silence`.
    """
    from pstraining.runtime.ps import worker_registry

    monkeypatch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
    if not request.node.get_closest_marker("silence"):
        monkeypatch.setattr(cluster._watchdog, "_answer_patience", 60.0)
        monkeypatch.setattr(cluster._watchdog, "_ask_after", 30.0)
    cluster.container = "test." + "".join(c if c.isalnum() else "." for c in request.node.nodeid)
    return cluster


@pytest.fixture(scope="module")
def _traced() -> dict[str, Any]:
    return {}


@pytest.fixture
def shared(client: Any, _traced: dict[str, Any]) -> Callable[..., Any]:
    """Create rigs that the tests of a file share, because most of a rig's cost is tracing.

    A test gets the rig as after a restore of the initial state. The rig keeps its processes' identities, its session's
    term, and the constants with which functions were traced.
    """

    def begun(optimizer: Callable[[], Any], **options: Any) -> Any:
        key = repr((optimizer, sorted(options.items())))
        if key not in _traced:
            _traced[key] = Rig(client, optimizer, **options)
        _traced[key].start()
        return _traced[key]

    return begun


@pytest.fixture
def device(cluster: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """Let this device compute, such as CPU:1, or USUAL; a test names it with `indirect`."""
    with computing_on(cluster, request.param):
        yield request.param


@pytest.fixture
def rewriting() -> Iterator[None]:
    """Grappler rewrites graphs, as in jobs' processes: for tests that count messages."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not ALL})


@pytest.fixture
def plain_arithmetic(rewriting: None) -> Iterator[None]:
    """Rewrite graphs with the program's arithmetic, without approximate reciprocals, whose error exceeds 1e-9."""
    import tensorflow as tf

    from pstraining.runtime.model import determinism

    before = tf.config.optimizer.get_experimental_options()
    determinism.plain_arithmetic()
    yield
    rewritten = {"arithmetic_optimization": True, "remapping": True, "constant_folding": True}
    tf.config.optimizer.set_experimental_options({**rewritten, **before})
