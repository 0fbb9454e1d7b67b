"""A process is killed in every phase of a change of the layout, and no step is lost."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from pstraining.runtime.config.cluster import Task
from tests.support.elastic_job import ElasticJob
from tests.support.layout_phases import PAUSE, Phase
from tests.support.soak_marks import THOROUGH, in_all
from tests.training.test_runtime_faults import finished, transcript, until
from tests.training.test_runtime_hot import LONG, assert_same, last, step, views, whole
from tests.training.test_runtime_live_layout import elastic, haste, shortly_undisturbed

__all__ = ["haste", "shortly_undisturbed"]

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(3600)]
SECONDS: Final = 600.0
SOME: Final = 3
"""Number of phases in `make test-all`; all of them take eight minutes."""


def label(run: ElasticJob, address: str) -> str:
    """Return the name of the server at an address."""
    return Task("ps", run.cluster["ps"].index(address)).label


def member(run: ElasticJob, number: int) -> str:
    """Return a member of the first shard of the current layout: the primary, or its standby."""
    task = views(run)[-1][0][number]
    return label(run, run.servers[int(task.removeprefix("ps-"))])


VICTIMS: Final[dict[str, Callable[[ElasticJob], str]]] = {
    "primary": lambda run: member(run, 0),
    "standby": lambda run: member(run, 1),
    "next": lambda run: label(run, run.next[-1]),
    "chief": lambda run: "chief",
    "worker": lambda run: "worker-1",
}
"""Functions that return the process to kill. `next` is a server of the last shard of the next layout."""


@in_all("tests/property/test_layout_exploration.py::test_no_interleaving_loses_an_acknowledged_step")
@pytest.mark.parametrize("turn", range(len(VICTIMS)) if THOROUGH else [None])
def test_a_kill_in_any_phase_costs_no_step(
    tmp_path: Path, shortly_undisturbed: Any, haste: Path, monkeypatch: pytest.MonkeyPatch, turn: int | None
) -> None:
    """In three phases, another process each is killed; `make soak` kills each of them in each phase."""
    dice = random.Random(seed := random.randrange(10**6))
    first = dice.randrange(len(VICTIMS)) if turn is None else turn
    phases = sorted(dice.sample(list(Phase), SOME), key=list(Phase).index) if turn is None else list(Phase)
    print(f"seed {seed}, first victim {first}, {', '.join(phases)}")
    monkeypatch.setenv("ORDERED_PAUSE", "10")
    monkeypatch.setenv("ORDERED_PHASES", str(tmp_path))
    names, pause = list(VICTIMS), tmp_path / PAUSE
    with elastic(tmp_path / "run") as run:
        chief = run.processes["chief"]
        until(run, lambda: step(run) > 0 and whole(run), "training")
        for number, phase in enumerate(phases):
            victim, shards = names[(first + number) % len(names)], 2 + (number + 1) % 2
            what = f"{shards} shards after a kill of the {victim}, {phase}"
            reached = len(chief.events("layout_phase"))
            pause.write_text(phase)
            run.change(shards)
            until(run, lambda: len(chief.events("layout_phase")) > reached, what, SECONDS)  # noqa: B023 - waited for here
            run.kill(VICTIMS[victim](run))
            pause.unlink()
            until(run, lambda: len(views(run)[-1]) == shards, what, SECONDS)  # noqa: B023
            run.settle()
            at = step(run)
            until(run, lambda: whole(run) and step(run) > at, f"training with {what}", SECONDS)  # noqa: B023
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        assert not chief.events("restored")
    assert_same(last(tmp_path / "run"), shortly_undisturbed)
