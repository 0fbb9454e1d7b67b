"""The accuracy of modes and codecs: `python -m bench.training.accuracy`.

Every variant trains on real parameter servers with as many samples as plain synchronous training, over 5 folds and 5
seeds. It is compared with that training in pairs (`pairs`). All runs use the same servers and workers; each run starts
from new values. The exit status is 1 if a variant loses more than its limit, or if the control does not.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.training import pairs
from bench.training.tasks import FOLDS, TASKS, Task
from pstraining.runtime.ps.record import Session
from tests.support.servers import Rig, connected, warm_up
from tests.support.worker_threads import Crew

PS: Final = 2
WORKERS: Final = 2
SEEDS: Final = 5
KEPT: Final = {"top_k_permille": 50}
"""In small models TopK keeps more than its usual 10 in a thousand, which would be 48 values of the digits' model."""


@dataclass(frozen=True)
class Variant:
    """A way to train."""

    training: Mapping[str, Any] = field(default_factory=dict)
    workers: int = WORKERS
    doubles: bool = False
    """Whether an update has twice the batch, with the task's learning rate for it."""

    def updates(self, steps: int) -> int:
        """Return the number of updates for the samples of plain training."""
        return steps // self.batches if self.in_step else steps * self.workers

    @property
    def in_step(self) -> bool:
        """Whether an update has the gradients of all workers."""
        return self.training.get("mode") in ("Sync", "Hybrid")

    @property
    def batches(self) -> int:
        """Number of a worker's batches for one update."""
        return int(max(self.training.get("accumulation_steps", 1), self.training.get("local_steps", 1)))


def _sync(**more: Any) -> dict[str, Any]:
    return {"mode": "Sync", **more}


def _both(codec: str, **more: Any) -> Variant:
    return Variant(_sync(compression={"push": codec, "pull": codec, **more}))


VARIANTS: Final = {
    pairs.PLAIN: Variant(_sync()),
    "Async": Variant(),
    "Hybrid": Variant({"mode": "Hybrid"}),
    "a backup worker": Variant(_sync(backup_workers=1), workers=WORKERS + 1),
    "2 accumulated": Variant(_sync(accumulation_steps=2), doubles=True),
    "4 local steps": Variant(_sync(local_steps=4)),
    "Bf16 both ways": _both("Bf16"),
    "Int8 both ways": _both("Int8"),
    "OneBit both ways": _both("OneBit"),
    "TopK both ways": _both("TopK", **KEPT),
    "Async, Int8 push, Bf16 pull": Variant({"compression": {"push": "Int8", "pull": "Bf16"}}),
    f"TopK push {pairs.CONTROL}": Variant(_sync(compression={"push": "TopK", "error_feedback": False, **KEPT})),
}


class Course:
    """One variant of one task on the servers, for any number of runs."""

    def __init__(self, client: Any, task: Task, variant: Variant, name: str, *, steps: int | None = None) -> None:
        client.container = "".join(c if c.isalnum() else "." for c in name)
        self._task, self._variant, self._steps = task, variant, steps or task.steps
        self._updates = variant.updates(self._steps)
        self._rig = Rig(
            client,
            self._optimizer,
            ps=PS,
            build=task.build,
            workers=variant.workers,
            loss=task.loss,
            **variant.training,
        )
        own = [updates._store.model.optimizer.variables for updates in self._rig.workers]
        self._own = [(variable, variable.numpy()) for variables in own for variable in variables]
        self._prepared = False

    def sample(self, task: Task) -> None:
        """Use the samples of a task with the same model from now on."""
        self._task = task

    def run(self, fold: int, seed: int) -> float:
        """Train from new values, and return the score of the test, from 0 to 100."""
        import tensorflow as tf

        x, y = self._task.load()
        train, test = self._task.fold(fold)
        with tf.device(self._rig.workers[0]._client.local):
            shares = self._shares(x, y, train, seed)
            self._restart(seed, shares[0])
            until = self._updates if self._variant.in_step else None
            Crew(self._rig, shares, accumulation=self._variant.batches, until=until).join()
            state = self._rig.snapshot()
            self._rig.model.assign(state.variables.items())
            predicted = self._rig.model.keras(tf.constant(x[test]), training=False).numpy()
        assert state.step == self._updates, f"{state.step} updates, not as many as plain training's {self._updates}"
        return self._task.score(y[test], predicted)

    def _optimizer(self) -> Any:
        import keras

        steps = self._steps if self._variant.training.get("local_steps") else self._updates
        rate = self._task.rate * (self._task.doubled if self._variant.doubles else 1.0)
        return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(rate, steps))

    def _shares(self, x: Any, y: Any, train: Any, seed: int) -> list[list[Any]]:
        """Return each worker's batches: equal for every variant, with more for variants that drop some."""
        import tensorflow as tf

        shares: list[list[Any]] = []
        for worker in range(self._variant.workers):
            drawn, size = np.random.default_rng([seed, worker]), self._task.batch
            order = np.concatenate([drawn.permutation(train) for _ in range(1 + self._steps * size // len(train))])
            cut = [order[begin : begin + size] for begin in range(0, self._steps * size, size)]
            shares.append([(tf.constant(x[each]), tf.constant(y[each])) for each in cut])
        return shares

    def _restart(self, seed: int, share: list[Any]) -> None:
        """Restore a seed's initial values on the servers, and reset residuals and local optimizers of workers."""
        import keras
        import tensorflow as tf

        from pstraining.runtime.compression.push import Residual
        from pstraining.runtime.model.keras_model import Model
        from pstraining.runtime.model.training.objective import Objective

        keras.utils.set_random_seed(seed)
        self._rig.initial = Model(self._task.build, self._optimizer, Objective(self._task.loss)).values()
        for updates in self._rig.workers:
            if self._variant.training.get("mode") == "Hybrid":
                updates.start_session(Session(0, 0))  # workers hold parameters of the last run
            else:
                owed = [[tf.zeros(left.shape) for left in row] for row in updates._compressor._residuals]
                updates._compressor.commit_residual(Residual(owed, has_residual=False, store=updates._store))
                if self._variant.in_step:
                    updates._worker_progress.residual = None  # of the last batches of the last run
        for variable, value in self._own:
            variable.assign(value)
        self._rig.start()
        if not self._prepared:
            warm_up(self._rig, share[: self._variant.batches])
            self._prepared = True


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--only", default="", help="variants whose names contain this")
    parser.add_argument("--folds", type=int, default=FOLDS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path("docs/project/benchmarks/training-accuracy.json"))
    parser.add_argument("--go-on", action="store_true", help="keep what the file has, and add what it lacks")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    if options.go_on and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    wanted = [f"{fold}/{seed}" for fold in range(options.folds) for seed in range(options.seeds)]
    if len(options.tasks) > 1:
        return each_in_its_own_process(options)
    with connected(PS) as client:
        for task in options.tasks:
            for name, variant in VARIANTS.items():
                scores = found.setdefault(task, {}).setdefault(name, {})
                missing = [key for key in wanted if key not in scores]
                if not missing or options.only not in name or not fits(TASKS[task], variant):
                    continue
                began = time.monotonic()
                course = Course(client, TASKS[task], variant, f"{task} {name}")
                for key in missing:
                    fold, seed = (int(part) for part in key.split("/"))
                    scores[key] = round(course.run(fold, seed), 4)
                took = time.monotonic() - began
                sys.stdout.write(f"{task}, {name}: {np.mean(list(scores.values())):.2f}, {took:.0f} s\n")
                sys.stdout.flush()
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return report(found)


def each_in_its_own_process(options: argparse.Namespace) -> int:
    """Run the tasks in sequence, each on new servers, which keep every variant's functions: 10 GB per task."""
    if not options.go_on:
        options.out.unlink(missing_ok=True)
    own = ["--only", options.only, "--folds", str(options.folds), "--seeds", str(options.seeds)]
    for task in options.tasks:
        command = [sys.executable, "-m", "bench.training.accuracy", "--tasks", task, "--go-on", *own]
        subprocess.run([*command, "--out", str(options.out)], check=False)  # the messages about one task are repeated
    return report(json.loads(options.out.read_text(encoding="utf-8")))


def fits(task: Task, variant: Variant) -> bool:
    """Return whether a variant supports a task: local optimizers do not support tables."""
    return not (task.has_tables and variant.training.get("local_steps"))


def report(found: Mapping[str, Mapping[str, pairs.Scores]]) -> int:
    """Print a table and the exceeded limits, and return the exit status."""
    found = {task: {name: scores for name, scores in each.items() if scores} for task, each in found.items()}
    limits = {name: task.limit for name, task in TASKS.items()}
    wrong = pairs.failures(found, limits)
    sys.stdout.write(pairs.table(found, limits) + "".join(f"FAILS: {line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
