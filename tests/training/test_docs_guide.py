"""The tutorial's programs run as the page shows them, and print what it shows, except for numbers.

The programs of the pages that follow it run as well, with definitions of the reader's own model and data.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from examples.tfrecords.write import write
from hack.docs.pages import ROOT, pages
from pstraining.runtime import local
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalJob
from tests.support.documented import documents, job_of, shell_lines
from tests.support.soak_marks import THOROUGH, in_all
from tests.training.test_runtime_faults import finished, transcript

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
USERS = ROOT / "docs" / "users"
TUTORIAL = ROOT / "docs" / "start" / "train-a-keras-model.md"
ALSO = in_all("tests/training/test_docs_guide.py::test_the_pages_examples_run")  # data and steps as other tests have
SHORT = ("Files(", "total_updates(")
"""What an example that trains has in `make test`; each of them is a job of three processes."""
SNIPPETS = [
    pytest.param(
        block.text,
        id=f"{page}:{block.line}",
        marks=ALSO if ".run()" in block.text and not any(name in block.text for name in SHORT) else (),
    )
    for page in ("callbacks-and-metrics.md", "training-data.md", "updates.md")
    for block in pages()[USERS / page].blocks
    if block.language == "python"
]
THE_READERS = """
from pathlib import Path

from pstraining.runtime import Ranges, Trainer

loss = "sparse_categorical_crossentropy"
paths = sorted(map(str, Path(__file__).parent.glob("train-*.tfrecord")))


def load():
    import numpy as np

    return np.random.default_rng(1).random((60_000, 8), "float32"), np.zeros(60_000, "int32")


def model():
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, activation="softmax")])


def optimizer():
    import keras

    return keras.optimizers.SGD(0.1)


def read(begin, end):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(tuple(part[begin:end] for part in load())).batch(32)


def parse(record):
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([64], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
    sample = tf.io.parse_single_example(record, features)
    return sample["image"][:8], sample["label"] % 2


def data(worker, workers):
    import tensorflow as tf

    x, _ = load()
    return tf.data.Dataset.from_tensor_slices(((x[:512], x[512:1024]), x[:512, 0])).batch(32)
"""
"""Definitions that pages leave to the reader; `data` has pairs, for a custom training step."""
LOCAL = "python -m pstraining.runtime.local "


def blocks(language: str) -> list[str]:
    return [block.text for block in pages()[TUTORIAL].blocks if block.language == language]


def one(words: str) -> str:
    """Return the block of Python that contains these words."""
    (found,) = (text for text in blocks("python") if words in text)
    return found


def python(code: str, folder: Path) -> str:
    """Return the output of a program that is started like a worker, with TensorFlow imported."""
    apart = "import os; os.dup2(os.open('errors.txt', os.O_WRONLY | os.O_CREAT), 2)\n"
    (folder / "shown.py").write_text(apart + code)
    with chdir(folder):
        run = local.spawn(Task("worker", 0), (), ["shown.py"], {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert run.stdout
    printed = run.stdout.read()
    assert run.wait(120) == 0, printed + (folder / "errors.txt").read_text()
    return printed


def shape(text: str) -> str:
    """Return a text without its numbers, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "0", text).strip()


def shown_events() -> Iterator[tuple[str, dict[str, Any]]]:
    for process, event in re.findall(r"^\[(.+)\] (\{.*\})$", "".join(blocks("text")), re.MULTILINE):
        yield process, json.loads(event)


def test_the_tutorial(tmp_path: Path) -> None:
    """The tutorial's commands and programs give the output that the page shows.

    In `make test` the job has one worker, which also acts as the chief, so that two processes fewer trace.
    """
    plain, train, load = (one(words) for words in ("# plain.py", "# train.py", "load_model("))
    text = {shape(line) for line in python(plain, tmp_path).splitlines()}
    (shown,) = (block for block in blocks("text") if block.startswith("Epoch"))
    assert {shape(line) for line in shown.splitlines()} <= text

    (typed,) = (line.strip() for _, line in shell_lines(pages()[TUTORIAL]) if line.strip().startswith(LOCAL))
    *options, program = shlex.split(typed.removeprefix(LOCAL))
    given = dict(zip(options[::2], options[1::2], strict=True))
    (tmp_path / program).write_text(train)
    settings, folder = json.loads(given["--training"]), tmp_path / given["--checkpoint-dir"]
    ps, workers, checkpoint = int(given["--ps"]), int(given["--workers"]), {"path": str(folder)}
    command = [str(tmp_path / program)]
    started = workers if THOROUGH else 1
    with LocalJob(command, ps=ps, workers=started, chief=THOROUGH, training=settings, checkpoint=checkpoint) as run:
        assert finished(run) == 0, transcript(run)
        for process, event in shown_events():
            (found, *_) = run.processes.get(process, run.leader).events(event["event"])
            assert found.keys() - {"time", "monotonic"} == event.keys()
        steps = {event["step"] * workers / started for _, event in shown_events() if event["event"] == "result"}
        assert steps == {run.leader.events("result")[0]["step"]}
    assert shape((folder / "log.csv").read_text()) == shape(next(b for b in blocks("text") if b.startswith("epoch,")))
    assert shape(python(load, folder)).count("0") == 20

    page = str(TUTORIAL.relative_to(ROOT))
    (job,) = filter(None, (job_of(document) for place, _, document in documents() if place.startswith(page)))
    assert job["spec"]["training"] == settings
    assert (job["spec"]["ps"]["replicas"], job["spec"]["worker"]["replicas"]) == (ps, workers)


@pytest.mark.parametrize("shown", SNIPPETS)
def test_the_pages_examples_run(shown: str, tmp_path: Path) -> None:
    if ".run()" in shown:
        (tmp_path / "train.py").write_text(THE_READERS + shown)
        if "Files(" in shown:
            write(tmp_path)
        with LocalJob([str(tmp_path / "train.py")], chief=False, training={"steps": 2}) as run:
            assert finished(run) == 0, transcript(run)
    else:
        import keras

        from pstraining.runtime.model.embeddings.embedding import remote_tables

        with remote_tables():  # the readers' are larger than this machine
            exec(shown, {"ids": keras.Input((4,), dtype="int32")})


@in_all(
    "tests/e2e/test_client.py::test_a_function_trains_and_reports_the_progress_that_top_shows"
)  # the same calls, on a cluster
def test_the_script_of_the_client_trains_on_this_machine(tmp_path: Path) -> None:
    (shown,) = (b.text for b in pages()[USERS / "train-from-python.md"].blocks if b.language == "python")
    here = shown.replace("Client()", "Client(local=True)")
    assert here != shown
    assert '"event": "result"' in python(here, tmp_path)
