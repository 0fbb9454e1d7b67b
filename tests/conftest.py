"""What holds for all tests."""

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.costs import processor_seconds
from tests.support.fake_s3 import FakeS3, serving
from tests.support.soak_marks import ALL, examples

# The time of an example depends on the machine more than on the code: bench/ measures time. `make test` draws the same
# examples in each run, because a change must not be refused for a fault that it did not cause; `examples` has their
# number. `make test-all` draws new ones.
settings.register_profile(
    "steady",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not ALL,
    max_examples=examples(),
)
settings.load_profile("steady")

_SPENT = pytest.StashKey[float]()


# The garbage collector never visits modules and collected tests, which stay to the end. A test leaves few objects, and
# a rare collection costs little.
gc.disable()
_COLLECTION_THRESHOLDS = (50_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_SPENT] = processor_seconds()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Each test's processor time is a property in the JUnit report, which hack/run_tests.py reads."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("processor_s", round(processor_seconds() - item.stash[_SPENT], 2)))
    return report


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """Serve an object store, which the environment names."""
    with serving() as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        yield store
