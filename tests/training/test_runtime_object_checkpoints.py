"""Checkpoints in a served object store: saved by two servers and read by three, and those of whole jobs."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.api import contract
from pstraining.api.summary import SUMMARY_FILE
from pstraining.runtime.checkpoint.errors import NotSavedError
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import SavePlan, State, whole
from pstraining.runtime.config.settings import CheckpointSettings
from pstraining.runtime.local import LocalJob
from tests.support.fake_s3 import DENIED, SLOW_DOWN, FakeS3, Fault, serving
from tests.support.launchers import start_launcher
from tests.support.servers import SPREAD, Rig
from tests.support.soak_marks import in_all
from tests.training import test_runtime_checkpoint_parts as parts
from tests.training import test_runtime_incremental_saves as incremental
from tests.training.test_runtime_checkpoint_pieces import assert_same, batches, pieces, rig_of, wait
from tests.training.test_runtime_faults import DIGITS, finished, transcript

__all__ = ["pieces"]
small_files = parts.small_files
pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
URI = "s3://bucket/jobs/digits"


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with serving() as store:
        yield store


@in_all(
    "tests/training/test_runtime_object_checkpoints.py::test_without_launchers_the_chief_stores_and_reads_tables"
)  # on other numbers of servers, by a store that fails
@pytest.mark.usefixtures("pieces")
def test_two_servers_save_and_three_restore(client: Any, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store throttles, and ends bodies early, while both continue."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    spoiled = iter([SLOW_DOWN, Fault(cut=500), SLOW_DOWN] * 3)
    s3.fault = lambda request: next(spoiled, None) if len(s3.requests) % 5 == 0 else None
    first = rig_of(client, 2)
    first.start()
    first.train(batches(3, seed=0))
    before = first.control.snapshot(fence=1)
    checkpoints = BucketCheckpoints(Bucket.at(URI), keep=2, segment_bytes=4000)
    checkpoints.open()
    with first.control.copied(fence=1, wait=wait) as state:
        first.train(batches(2, seed=1))
        checkpoints.save(state, term=1, layout=first.store.layout)
    client.container += ".after"
    second = rig_of(client, 3)
    stored = checkpoints.newest()
    assert stored is not None
    assert_same(whole(stored), before)
    second.start(stored)
    assert_same(second.control.snapshot(fence=1), before)
    assert len([key for key in s3.objects if "state.npz" in key]) > 2


@pytest.fixture
def launchers(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start a launcher beside each server, and return their addresses; all have one folder."""
    (folder := tmp_path / "run").mkdir()
    monkeypatch.setattr(contract, "RUN_DIR", str(folder))
    monkeypatch.setattr(client, "cluster", replace(client.cluster, in_pod=True))
    return [start_launcher(folder) for _ in client.cluster.ps]


def with_launchers(rig: Rig, launchers: list[str]) -> Rig:
    files = rig.control.copies.files
    files._addresses = [[launchers[shard]] for shard in range(len(files._addresses))]
    return rig


@pytest.mark.usefixtures("pieces", "small_files")
@pytest.mark.parametrize("target", parts.OTHERS)
def test_servers_store_and_read_tables_with_signed_urls(
    client: Any,
    shared: Callable[..., Rig],
    s3: FakeS3,
    launchers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: int,
) -> None:
    """No row passes through the chief, and the servers have no credentials. The store throttles now and then."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    s3.fault = lambda request: SLOW_DOWN if len(s3.requests) % 7 == 0 else None
    first = with_launchers(parts.trained_on(shared, parts.SERVERS), launchers)
    before = first.control.snapshot(fence=1)
    checkpoints = BucketCheckpoints(Bucket.at(URI), keep=2, damaged=first.control.find_damaged)
    checkpoints.open()
    with first.control.copied(fence=1, wait=wait) as state:
        first.train(batches(2, seed=1))
        checkpoints.save(state, term=1, layout=first.store.layout)
    (manifest,) = (json.loads(content) for key, content in s3.objects.items() if key.endswith("metadata.json"))
    assert set(manifest["parts"]) >= parts.TABLES
    stored = {key.rpartition("/")[2]: content for key, content in s3.objects.items() if "/ps-" in key}
    assert set(stored) == {file[0] for own in manifest["parts"].values() for file in own["files"]}
    name, begin, stride, rows, _ = manifest["parts"]["model/items"]["files"][1]
    expected = before.variables["items"][begin : begin + stride * rows : stride]
    np.testing.assert_array_equal(np.load(BytesIO(stored[name])), expected)
    tables = {file[0] for name in parts.TABLES for file in manifest["parts"][name]["files"]}

    def requests_of_tables() -> set[tuple[str, bool]]:
        """Return the methods of requests for rows, and whether the URL was signed."""
        of_tables = [request for request in s3.requests if request.key.rpartition("/")[2] in tables]
        return {(request.method, "X-Amz-Signature" in request.query) for request in of_tables}

    assert requests_of_tables() == {("PUT", True)}
    client.container += ".after"
    second = with_launchers(parts.rig_of(client, target), launchers)
    monkeypatch.setattr(checkpoints, "_damaged", second.control.find_damaged)
    found = checkpoints.newest()
    assert found is not None
    second.start(found)
    assert requests_of_tables() == {("PUT", True), ("GET", True)}, "the chief neither reads nor writes a row"
    assert_same(whole(found), before)
    assert_same(second.control.snapshot(fence=1), before)
    assert parts.ways(capsys) == [("save", "servers"), ("restore", "servers")]


@pytest.mark.usefixtures("pieces", "small_files")
def test_without_launchers_the_chief_stores_and_reads_tables(
    shared: Callable[..., Rig],
    s3: FakeS3,
    launchers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It also reads the objects that servers have stored, when a launcher fails during a restore."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    rig = with_launchers(parts.trained_on(shared, 2), launchers)
    checkpoints = BucketCheckpoints(Bucket.at(URI), keep=3, damaged=rig.control.find_damaged)
    checkpoints.open()
    saved = list[State]()
    for addresses in (launchers, ["127.0.0.1:1"] * 2):
        with_launchers(rig, addresses).train(batches(1, seed=len(saved)))
        saved.append(rig.control.snapshot(fence=1))
        with rig.control.copied(fence=1, wait=wait) as state:
            checkpoints.save(state, term=1, layout=rig.store.layout)
    assert parts.ways(capsys) == [("save", "servers"), ("save", "chief")]
    by_servers, by_chief = (checkpoints.load(step) for step in checkpoints.steps())
    assert by_servers.parts is not None
    assert by_chief.parts is None
    assert_same(whole(by_chief), saved[1])
    rig.control.restore(by_servers, fence=1, generation=9, fresh=False)
    assert_same(rig.control.snapshot(fence=1), saved[0])
    assert parts.ways(capsys) == [("restore", "chief")]
    rig.control.restore(by_chief, fence=1, generation=10, fresh=False)
    assert_same(rig.control.snapshot(fence=1), saved[1])


@in_all(
    "tests/unit/runtime/test_incremental_objects.py::test_rows_that_have_not_changed_are_not_uploaded_again"
)  # by launchers, which store every file in the same way
@pytest.mark.usefixtures("pieces", "small_files")
def test_servers_store_changed_rows_and_the_others_are_copied_in_the_store(
    client: Any, s3: FakeS3, launchers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    rig = with_launchers(parts.rig_of(client, 2, mode="Sync"), launchers)
    rig.start()
    checkpoints = BucketCheckpoints(Bucket.at(URI), keep=1, damaged=rig.control.find_damaged, links=True)
    checkpoints.open()
    rows = incremental.batches_of(range(5, 25), seed=0)
    for is_incremental in (False, True, True):
        rig.train(itertools.islice(rows, 2))
        plan = SavePlan(checkpoints.base, recorded=True)
        assert (plan.base is not None) == is_incremental
        with rig.control.copied(plan, fence=1, wait=wait) as state:
            checkpoints.save(state, term=1, layout=rig.store.layout)
    expected = rig.control.snapshot(fence=1)
    assert len([key for key in s3.objects if "-rows-" in key]) == 4, "two saves of two servers"
    client.container += ".after"
    other = with_launchers(parts.rig_of(client, 3, mode="Sync"), launchers)
    monkeypatch.setattr(checkpoints, "_damaged", other.control.find_damaged)
    found = checkpoints.newest()
    assert found is not None
    other.start(found)
    assert_same(other.control.snapshot(fence=1), expected)


@in_all(
    "tests/training/test_runtime_object_checkpoints.py::test_without_launchers_the_chief_stores_and_reads_tables"
)  # as a job
def test_a_job_keeps_its_checkpoints_and_results_in_an_object_store(s3: FakeS3) -> None:
    """The next job continues from them, although the store fails now and then."""

    def run(steps: int) -> LocalJob:
        s3.fault = lambda request: SLOW_DOWN if len(s3.requests) % 7 == 0 else None
        checkpoint = {"path": URI, "keep": 2, "intervalSeconds": 1}
        training = {"steps": steps, **SPREAD}
        return LocalJob(
            DIGITS, workers=1, restarts=1, training=training, checkpoint=checkpoint, environment=s3.environment()
        )

    with run(30) as first:
        assert finished(first) == 0, transcript(first)
    result = json.loads(s3.objects["jobs/digits/result.json"])
    assert result["step"] == 30
    names = {key.removeprefix("jobs/digits/").partition("/")[0] for key in s3.objects}
    assert {"final.keras", "final.weights.h5", SUMMARY_FILE, "terms", "ckpt-0000000030-term-1"} <= names
    assert not first.leader.events("no_summaries")
    (summaries,) = (content for key, content in s3.objects.items() if key.startswith("jobs/digits/tensorboard/"))
    assert b"scalars" in summaries
    with run(40) as second:
        assert finished(second) == 0, transcript(second)
    assert second.leader.events("restored")[0]["step"] == 30
    assert json.loads(s3.objects["jobs/digits/result.json"])["step"] == 40


def test_a_store_that_refuses_the_model_fails_the_chief(
    client: Any, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of an earlier run would stay beside the new weights, in a job that succeeds."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    from pstraining.runtime.chief.conclusion import conclude

    rig = rig_of(client, 1)
    saver = Saver(CheckpointSettings(path=URI), rig.store.layout, term=lambda: 1)
    model, final = rig.model, State(1, rig.model.values(), {}, {})
    s3.fault = lambda request: DENIED if request.key.endswith("final.keras") and request.method != "GET" else None
    with pytest.raises(NotSavedError, match=rf"{URI} .*AccessDenied.*Check that {URI} can be written to"):
        conclude(model, None, final, saver)
    s3.fault = lambda _: None
    conclude(model, None, final, saver)
    assert {"jobs/digits/final.keras", "jobs/digits/result.json"} <= s3.objects.keys()
