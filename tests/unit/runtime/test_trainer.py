"""The arguments that `Trainer` rejects at the start, and the folder of its summaries."""

import ast
import inspect
import json
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from pstraining.runtime import Files, Ranges, Trainer, TrainingSettings
from pstraining.runtime.config.arguments import OF_KERAS
from pstraining.runtime.config.settings import SettingsError


def trainer(data: Any = lambda worker, workers: None, **options: Any) -> Trainer:
    return Trainer(lambda: None, lambda: None, "mse", data, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps_per_epoch": 0}, "at least 1"),
        ({"validation_every": 0}, "at least 1"),
        ({"validation_every": 2}, "^validation_every: there is no validation: give validation, .* or leave validation"),
        ({"validation_steps": 9}, "^validation_steps: there is no validation: give validation, .* or leave validation"),
        ({"steps_per_epoch": 60_000 / 32}, r"steps_per_epoch must be a whole number; it is 1875\.0"),
        ({"validation_steps": "10"}, "validation_steps must be a whole number; it is '10'"),
        (
            {"data": Ranges(10, 5, lambda begin, end: []), "steps_per_epoch": 5},
            "an epoch of Ranges or Files is one pass",
        ),
    ],
)
def test_an_impossible_epoch_is_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        trainer(**options)


class Built:
    """An object with the attribute by which a model or an optimizer is known."""

    trainable_variables = ()

    def __call__(self) -> None:
        """Models can be called."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": Built()}, "model: give a function that creates it; it is a Built"),
        ({"optimizer": "adam"}, "optimizer: give a function that creates it; it is a str"),
        ({"optimizer": Built()}, "optimizer: give a function that creates it; it is a Built"),
        ({"callbacks": []}, "callbacks: give a function that creates it; it is a list"),
        ({"validation": ([1], [2])}, "validation: give a function that creates it; it is a tuple"),
        ({"evaluate": ([1], [2])}, "evaluate: give a function that creates it; it is a tuple"),
        ({"data": ([1], [2])}, "data: give a function of a worker's index .*; it is a tuple"),
        ({"data": Path("/data/a.tfrecord")}, "data: give a function of a worker's index .*; it is a PosixPath"),
    ],
)
def test_objects_in_place_of_functions_are_rejected(arguments: dict[str, Any], words: str) -> None:
    usual = {"model": lambda: None, "optimizer": lambda: None, "loss": "mse", "data": lambda worker, workers: None}
    with pytest.raises(SettingsError, match=words):
        Trainer(**{**usual, **arguments})


def two(first: object, second: object) -> None:
    """A function of two arguments."""


any_trainer: Any = Trainer
any_ranges: Any = Ranges
any_files: Any = Files


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: trainer(lambda: []), "data: .* called with a worker's index and the number of workers, and"),
        (
            lambda: trainer(lambda worker: []),
            r"data: .*\(too many positional arguments\); functools.partial",
        ),
        (
            lambda: any_trainer(two, lambda: None, "mse", two),
            r"model: .* without arguments, .*required argument: 'first'",
        ),
        (lambda: any_trainer(lambda: None, two, "mse", two), "optimizer: the function is called without arguments"),
        (lambda: trainer(callbacks=two), "callbacks: the function is called without arguments"),
        (lambda: trainer(validation=two), "validation: the function is called without arguments"),
        (lambda: trainer(evaluate=two), "evaluate: the function is called without arguments"),
        (
            lambda: trainer(train_step=lambda batch: 0.0),
            "train_step: the function is called with the model and a batch",
        ),
        (lambda: trainer(train_step="mse"), "train_step: give a function; it is a str"),
        (lambda: any_ranges(10, 5, lambda begin: []), "Ranges: read: the function is called with the first index and"),
        (lambda: any_files(["a"], two), "Files: read: the function is called with a path"),
    ],
)
def test_functions_that_cannot_be_called_as_they_will_be_are_refused(make: Any, words: str) -> None:
    """A restart would meet the same error, until the job's budget is spent."""
    with pytest.raises(SettingsError, match=words):
        make()


class Metric:
    """An object with the methods of a metric of Keras."""

    def __call__(self, *args: object) -> None:
        """Metrics can be called with any arguments."""

    def update_state(self) -> None:
        """Metrics add a batch to their state."""


@pytest.mark.parametrize(("given", "kind"), [(two, "two"), (Metric(), "Metric"), (Metric, "Metric")])
@pytest.mark.parametrize("name", ["metrics", "weighted_metrics"])
def test_a_metric_in_place_of_a_list_is_refused(given: Any, kind: str, name: str) -> None:
    words = rf"{name}: give a list, such as \[{kind}\], or a function without arguments; it is {kind}"
    with pytest.raises(SettingsError, match=words):
        trainer(**{name: given})
    for accepted in ([given], {"a": given}, ["mae"], "mae", None, lambda: [given], list):
        trainer(**{name: accepted})


def of_keras() -> dict[str, list[str]]:
    """Return the parameters of `fit` and `compile` of the installed Keras by method, without importing it."""
    spec = find_spec("keras")
    source = Path(str(spec and spec.origin)).parent / "src"
    files = (source / "backend" / "tensorflow" / "trainer.py", source / "trainers" / "trainer.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in ("fit", "compile")]
    return {node.name: [own.arg for own in (*node.args.args, *node.args.kwonlyargs)][1:] for node in found}


def test_each_argument_of_keras_is_accepted_or_refused_with_the_way_out() -> None:
    """A TypeError of Python would not say where an argument of `fit` is here, and would be tried again."""
    accepted, found = [*inspect.signature(Trainer).parameters], of_keras()
    assert "validation_split" in found["fit"]
    assert "run_eagerly" in found["compile"]
    for name in {*found["fit"], *found["compile"]} - {*accepted}:
        with pytest.raises(SettingsError, match=rf"^{name}: Trainer has no such argument: (?!it has)"):
            trainer(**{name: None})
    assert not {*OF_KERAS} & {*accepted}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: trainer(step=5), "^step: Trainer has no such argument: it has model, optimizer, loss, data, steps,"),
        (
            lambda: any_trainer(two, two, "mse"),
            "^Trainer: missing a required argument: 'data'; its arguments are model",
        ),
        (lambda: any_trainer(two, two, "mse", two, two, 100), "^Trainer: too many positional arguments; its arguments"),
        (lambda: any_trainer.run(trainer(), epochs=3), "^epochs: Trainer.run has no such argument: give Trainer"),
        (lambda: any_trainer.run(trainer(), 3), "^Trainer.run: too many positional arguments; its arguments are none"),
        (
            lambda: any_trainer.total_updates(trainer(), steps=3),
            "^steps: Trainer.total_updates has no such argument: it has batch_size, samples, workers, drop_remainder",
        ),
        (lambda: any_ranges(10, 5, range, step=2), "^step: Ranges has no such argument: it has size, block, read"),
        (lambda: any_ranges(10, 5), "^Ranges: missing a required argument: 'read'; its arguments are size, block,"),
        (lambda: any_files(["a"], str, shuffle=True), "^shuffle: Files has no such argument: .*Files have a seed"),
    ],
)
def test_a_call_with_other_arguments_is_a_wrong_setting(make: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()


def test_functions_may_accept_more_and_those_without_a_signature_are_accepted() -> None:
    optional = partial(two, second=1)
    trainer(lambda worker, workers, batch=32: [], evaluate=partial(two, 1, 2), train_step=two)
    trainer(lambda *_: [], callbacks=list, validation=dict)
    for read in (optional, str):
        any_files(["a"], read)
    any_ranges(10, 5, range)


def test_a_decorator_may_supply_arguments_of_the_decorated_function() -> None:
    """As gin.configurable and mock.patch do: `functools.wraps` shows the decorated function's parameters."""

    @wraps(two)
    def supplied(*given: object) -> None:
        two(*given, *["units"] * (2 - len(given)))

    @wraps(two)
    def alone() -> None:
        two(1, 2)

    for function in (supplied, alone):
        any_trainer(function, function, "mse", two)
        trainer(callbacks=function, validation=function, evaluate=function)
    any_files(["a"], supplied)
    with pytest.raises(SettingsError, match="data: the function is called with a worker's index"):
        trainer(alone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint": "s3://bucket/a"}, r"checkpoint: give CheckpointSettings, such as .*\(path=.*; it is a str"),
        ({"checkpoint": {"path": "/c"}}, "checkpoint: give CheckpointSettings, .*; it is a dict"),
        ({"training": TrainingSettings(steps=1)}, "training: give a mapping .*; it is a TrainingSettings"),
        ({"jit_compile": 1}, 'jit_compile must be True, False or "auto"; it is 1'),
        ({"class_weight": np.ones(2)}, "class_weight: give a mapping from a class .*; it is a ndarray"),
    ],
)
def test_arguments_of_other_types_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        trainer(**options)


@pytest.mark.parametrize("weights", [{"0": 1.0}, {0: 1.0, 0.5: 2.0}, {0: "one"}, {0: None}, {float("nan"): 1.0}])
def test_class_weights_that_no_label_has_are_rejected(weights: Any) -> None:
    """A class of a text, as JSON has it, or a fraction would have the weight 1 without a word."""
    with pytest.raises(SettingsError, match=r"^class_weight: give the weight of a class by its number, .*; it "):
        trainer(class_weight=weights)


def test_class_weights_may_be_numbers_of_numpy() -> None:
    weights = trainer(class_weight={np.int64(-1): np.float32(2), 1.0: 3})._objective.class_weight
    assert weights is not None
    assert [(type(number), number, weight) for number, weight in weights.items()] == [(int, -1, 2.0), (int, 1, 3.0)]


@pytest.mark.parametrize("folder", ["gs://bucket/logs", Path("s3://bucket/logs"), "file:///logs"])
def test_a_uri_of_summaries_is_rejected(folder: str | Path) -> None:
    """As a path, it would be a folder in the pod, which is deleted with it."""
    with pytest.raises(SettingsError, match=r"tensorboard: .* is not a folder"):
        trainer(tensorboard=folder)
    trainer(tensorboard="/logs")


@pytest.mark.parametrize("folder", [0, np.bool_(False), PurePosixPath("/logs"), b"/logs"])
def test_summaries_that_would_be_elsewhere_without_a_word_are_rejected(folder: Any) -> None:
    with pytest.raises(SettingsError, match=r"^tensorboard: give a folder, as a text or a Path, or False; it is "):
        trainer(tensorboard=folder)


@pytest.mark.parametrize("name", ["steps", "epochs"])
def test_a_limit_that_is_given_twice_is_rejected(name: str) -> None:
    """One of the two would be ignored without a word."""
    with pytest.raises(SettingsError, match=rf"^{name}: it is 100, and in training 50; leave one of them out"):
        trainer(training={name: 50}, **{name: 100})
    assert trainer(training={name: 100}, **{name: 100})._training == {name: 100}


def test_a_class_is_a_function_that_creates_a_model() -> None:
    any_trainer(Built, Built, "mse", two)

    class Sized(Built):
        def __init__(self, size: int) -> None:
            """As a model whose size is an argument."""

    with pytest.raises(SettingsError, match=r"model: the function is called without arguments, .*'size'"):
        any_trainer(Sized, Built, "mse", two)


@pytest.mark.parametrize("workers", [0, -2, 1.5])
def test_the_number_of_workers_of_a_schedule_is_checked(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(SettingsError, match=r"^total_updates: workers must be "):
        trainer(steps=10, training={"local_steps": 2}).total_updates(workers=workers)
    some: Any = np.int64(4)
    assert trainer(steps=10, training={"local_steps": 2}).total_updates(workers=some) == 5


def test_whole_numbers_may_be_those_of_numpy() -> None:
    made = trainer(steps=np.int64(100), training={"accumulation_steps": np.int32(2), "ordered_sums": True})
    assert json.dumps(made._training) == '{"steps": 100, "accumulation_steps": 2, "ordered_sums": true}'
    inner = trainer(steps=1, training={"compression": {"top_k_permille": np.int64(5)}})._training
    assert json.dumps(inner) == '{"steps": 1, "compression": {"top_k_permille": 5}}'
    epoch = trainer(steps=1, steps_per_epoch=np.int64(1875))._steps_per_epoch
    assert type(epoch) is int, "the events of epochs are JSON"


def test_epochs_need_a_finite_source(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(SettingsError, match="give steps, or steps_per_epoch"):
        trainer(epochs=3).run()
    with pytest.raises(SettingsError, match="one of steps and epochs"):
        trainer(steps_per_epoch=10).run()
