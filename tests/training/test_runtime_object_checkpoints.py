"""Checkpoints in a served object store: saved by two servers and read by three, and those of whole jobs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.api.summary import SUMMARY_FILE
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.state import whole
from pstraining.runtime.local import LocalJob
from tests.support.fake_s3 import SLOW_DOWN, FakeS3, Fault, serving
from tests.support.servers import SPREAD
from tests.support.soak_marks import in_all
from tests.training.test_runtime_checkpoint_pieces import assert_same, batches, pieces, rig_of, wait
from tests.training.test_runtime_faults import DIGITS, finished, transcript

__all__ = ["pieces"]
pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
URI = "s3://bucket/jobs/digits"


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with serving() as store:
        yield store


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


@in_all("tests/training/test_runtime_object_checkpoints.py::test_two_servers_save_and_three_restore")
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
