"""Rows by key beside hashed tables, in the area under the ROC curve: `python -m bench.training.key_accuracy`.

The samples are the synthetic clicks of `tasks`; each of the 400 ids becomes a random key. A hashed table has the row of
a key at the remainder of its division by the number of rows, so that keys share rows. One hashed table has as many rows
as there are keys; the other one as many as fit into the memory of rows by key. Every seed has other keys, initial
values and batches, and another fifth of the samples for testing. Exits with 1 if hashing is better on average.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.training.accuracy import PS, Course, Variant
from bench.training.pairs import loss
from bench.training.tasks import FIELDS, IDS, TASKS, WIDTH, Task, clicks
from pstraining.runtime import Embedding
from tests.support.servers import connected

CLICKS: Final = "clicks (synthetic)"
SEEDS: Final = 5
ROW_BYTES: Final = 4 * WIDTH
KEY_BYTES: Final = 8 + 50
"""Bytes of a key beside its row; see `docs/users/updates.md`."""
BY_KEY: Final = "by key"
HASHED: Final = {
    "hashed, as many rows": IDS,
    "hashed, as many bytes": IDS * (ROW_BYTES + KEY_BYTES) // ROW_BYTES,
}
"""Numbers of rows of the hashed tables."""


def task(rows: int | None, seed: int) -> Task:
    """Return the clicks by key, or by the rows of a hashed table."""

    def load() -> tuple[Any, Any]:
        x, y = clicks()
        keys = np.random.default_rng([7, seed]).integers(0, 2**62, IDS)[x]
        return (keys if rows is None else keys % rows), y

    return replace(TASKS[CLICKS], load=load, build=model(rows))


def model(rows: int | None) -> Callable[[], Any]:
    """Return the model of the clicks, with a table of this kind."""

    def build() -> Any:
        import keras

        keys = keras.Input((FIELDS,), dtype="int64")
        found = keras.layers.Flatten()(Embedding(rows, WIDTH, name="table")(keys))
        hidden = keras.layers.Dense(64, activation="relu")(found)
        return keras.Model(keys, keras.layers.Dense(1, activation="sigmoid")(hidden))

    return build


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with connected(PS) as client:
        for name, rows in {BY_KEY: None, **HASHED}.items():
            course = Course(client, task(rows, 0), Variant({"mode": "Sync"}), name)
            found[name] = {}
            for seed in range(options.seeds):
                course.sample(task(rows, seed))
                found[name][str(seed)] = course.run(seed % 5, seed)
            sys.stdout.write(f"{name}, {rows} rows: {[round(score, 3) for score in found[name].values()]}\n")
            sys.stdout.flush()
    # The hashed table's deficit, computed by `loss` with the other table as the plain variant.
    behind = {name: loss(found[BY_KEY], found[name]) for name in HASHED}
    document = {"scores": found, "behind": {name: asdict(lost) for name, lost in behind.items()}}
    sys.stdout.write(json.dumps(document["behind"], indent=1) + "\n")
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(lost.mean < 0 for lost in behind.values()))


if __name__ == "__main__":
    sys.exit(main())
