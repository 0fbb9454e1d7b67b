"""Hybrid jobs whose shards have hot standbys lose no step of tables or dense parameters when servers are killed."""

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import THOROUGH, in_all, in_soak
from tests.training.test_runtime_faults import finished, transcript, until
from tests.training.test_runtime_hot import LONG, assert_same, last, ready, standstills, step, transfers, views, whole

pytestmark = [pytest.mark.training, pytest.mark.timeout(1100)]
STEPS, PAUSE = 300, 0.2
"""Steps of a disturbed job, and its pause per batch until the disturbance is over."""


def job(folder: Path, *, standbys: int, steps: int) -> LocalJob:
    return LocalJob(
        ["-m", "tests.support.rows"],
        ps=2,
        standbys=standbys,
        workers=2,
        restarts=10_000,
        training={"mode": "Hybrid", "steps": steps, "minShardBytes": 0},
        checkpoint={"path": str(folder), "intervalSeconds": 5},
    )


@contextmanager
def beside_undisturbed(folder: Path, *, steps: int, seconds: float) -> Iterator[LocalJob]:
    """Run a job with standbys, which is compared at its end with an undisturbed job without standbys."""
    hurry = folder / "hurry"
    with job(folder / "undisturbed", standbys=0, steps=steps) as run, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROWS_PAUSE", str(PAUSE))
        patch.setenv("ROWS_HURRY", str(hurry))
        with job(folder / "disturbed", standbys=1, steps=steps) as disturbed:
            yield disturbed
            hurry.touch()
            assert finished(disturbed, seconds) == 0, transcript(disturbed)
        assert finished(run, seconds) == 0, transcript(run)
    assert not disturbed.processes["chief"].events("restored")
    assert_all_the_same(last(folder / "disturbed"), last(folder / "undisturbed"))


def assert_all_the_same(found: Any, expected: Any) -> None:
    """Demand equal parameters, dense ones and rows of tables, with their optimizer slots."""
    assert_same(found, expected)
    assert any(path.startswith("rows") for path in found.variables), "there is a table"
    for slot, values in expected.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(found.slots[slot][path], value, err_msg=f"{slot} of {path}")


@in_all("tests/training/test_runtime_hybrid_pairs.py::test_no_step_is_lost_torn_or_applied_twice_after_any_loss")
def test_killed_servers_cost_no_step_of_tables_or_dense_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed servers cost no step of tables or dense parameters. Workers compute on a device that stands in for an
    accelerator.
    """
    monkeypatch.setenv("PSTRAINING_TEST_DEVICES", "CPU:1")
    with beside_undisturbed(tmp_path, steps=STEPS, seconds=LONG) as run:
        until(run, lambda: step(run) > 0, "training", LONG)  # two jobs start
        for shard in (0, 1) if THOROUGH else (0,):
            before = len(views(run))
            run.kill(views(run)[-1][shard][0])
            until(run, lambda: len(views(run)) > before, "a view without it")  # noqa: B023 - it is waited for here
            assert len(views(run)[before][shard]) == 1
            until(run, lambda: whole(run), "all members in sync again", LONG)
            at = step(run)
            until(run, lambda: step(run) > at, "more steps")  # noqa: B023
        assert transfers(run, "whole"), "a returning member receives the state"
        assert run.processes["chief"].events("checkpoint"), "checkpoints in between disturb nothing"
        assert run.processes["worker-0"].events("devices")[0]["compute"] == ["CPU:1"]


def test_the_chief_keeps_the_view_while_it_waits_for_the_dense_parameters() -> None:
    """The chief keeps the view active while it waits for the dense parameters. The wait may be long, and servers whose
    lease ends make no steps after ten seconds.
    """
    from pstraining.runtime.chief.errors import FencedError
    from pstraining.runtime.chief.membership import Membership

    class Waiting(Membership):
        def __init__(self) -> None:
            self.view_changer, self._renewed = cast("Any", "the view changer"), -math.inf
            self.admin, self.others = cast("Any", SimpleNamespace()), False
            self.established: list[bool] = []

        def establish(self, *, readmit: bool = False) -> None:
            self.established.append(readmit)
            self.admin = cast("Any", SimpleNamespace()) if self.others else self.admin

    members = Waiting()
    members.hold()
    assert members.established == [False]
    members.others = True
    with pytest.raises(FencedError, match="other members"):
        members.hold()


@in_soak
@pytest.mark.timeout(4 * 3600)
def test_many_kills_cost_no_step_and_little_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PSTRAINING_HOT_KILLS kills, each at a random moment after all workers are prepared, cost no step; the standstills
    are printed.
    """
    kills, seed = int(os.environ.get("PSTRAINING_HOT_KILLS", "20")), random.randrange(10**6)
    dice, costs = random.Random(seed), list[float]()
    with beside_undisturbed(tmp_path, steps=STEPS * kills, seconds=100.0 * kills) as run:
        for number in range(kills):
            until(run, lambda: ready(run), "all is ready for the next loss")
            time.sleep(dice.random())  # a random moment
            run.kill(dice.choice(views(run)[-1][dice.randrange(2)]))
            until(run, lambda: min(map(len, standstills(run))) > number, "workers continue")  # noqa: B023
            costs.append(max(seconds[number] for seconds in standstills(run)))
            until(run, lambda: whole(run), "all members in sync again", LONG)
    said = f"first step after {np.median(costs):.2f} s (median), {max(costs):.2f} s (longest)"
    with capsys.disabled():
        print(f"\n{kills} kills, seed {seed}: {said}")
