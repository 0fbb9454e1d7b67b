"""A worker's batches, with iterators that end slowly."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]
DEVICE = "CPU:0"


class Tuned:
    """Datasets of two batches whose iterators take long to end, as those of TensorFlow do while their tuner sleeps."""

    def __init__(self) -> None:
        self.ending, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()

    def open(self, position: int) -> Iterator[Any]:
        """Return the batches of a split."""
        outer = self

        class Batches:
            def __init__(self) -> None:
                self._left = iter((2 * position, 2 * position + 1))

            def __iter__(self) -> Iterator[Any]:
                return self

            def __next__(self) -> int:
                return next(self._left)

            def __del__(self) -> None:
                outer.ending.set()
                outer.may_end.wait(120)
                outer.ended.set()

        return Batches()


def pieces(tuned: Tuned) -> Callable[[], Any]:
    from pstraining.runtime.data.batches import AssignedBatches

    positions = iter(range(10))
    source: Any = SimpleNamespace(open=tuned.open)
    batches = AssignedBatches(source, lambda: (next(positions), 0), DEVICE)
    return lambda: batches.draw(1).batches[0]


def own(tuned: Tuned) -> Callable[[], Any]:
    from pstraining.runtime.data.batches import DatasetBatches

    positions = iter(range(10))
    batches = DatasetBatches(lambda: tuned.open(next(positions)), DEVICE)
    return lambda: batches.draw(1).batches[0]


@pytest.mark.parametrize("make", [pieces, own])
def test_no_worker_waits_for_the_end_of_an_iterator(make: Callable[[Tuned], Callable[[], Any]]) -> None:
    tuned = Tuned()
    draw = make(tuned)
    assert [draw(), draw(), draw()] == [0, 1, 2]
    assert tuned.ending.wait(60), "the first one is given free"
    assert not tuned.ended.is_set(), "training has continued before it was"
    tuned.may_end.set()
    assert tuned.ended.wait(60)


def test_a_different_dataset_starts_at_once(client: Any) -> None:
    """A different dataset starts at once when a job is scaled. Batches that were prefetched for a trial, and the rest
    of the former dataset, are dropped.
    """
    parts = iter(["former", "new"])

    def make() -> Any:
        part = next(parts)
        return [f"{part} {number}" for number in range(3)]

    from pstraining.runtime.data.batches import DatasetBatches

    batches = DatasetBatches(make, DEVICE)
    batches.sample(2)
    assert batches.draw(1).batches == ["former 0"]
    batches.restart()
    assert batches.draw(3).batches == ["new 0", "new 1", "new 2"]


def test_a_seeded_shuffle_has_another_order_in_each_pass(client: Any) -> None:
    """Each pass has another order, as in `fit`, also over a new connection; a cached dataset is read once."""
    import tensorflow as tf

    from pstraining.runtime.data.batches import DatasetBatches

    made, read = list[int](), list[int]()

    def make() -> Any:
        made.append(1)
        source = tf.data.Dataset.from_generator(
            lambda: map(noted, range(8)), output_signature=tf.TensorSpec([], "int64")
        )
        return source.cache().shuffle(8, seed=1).batch(8)

    def noted(number: int) -> int:
        read.append(number)
        return number

    batches, passes = DatasetBatches(make, client.local), []
    for number in range(3):
        if number:
            client.reconnect_available()
        drawn: Any = batches.draw(1).batches[0]
        passes.append(drawn.numpy().tolist())
    assert passes == [batch.numpy().tolist() for _, batch in zip(range(3), make().repeat(), strict=False)]
    assert len({tuple(order) for order in passes}) == 3
    assert (len(made), len(read)) == (2, 16), "once for the passes, and once for the comparison"
    batches.restart()
    batches.draw(1)
    assert len(made) == 3, "the number of workers has changed"


def test_an_infinite_split_is_rejected(client: Any) -> None:
    import tensorflow as tf

    from pstraining.runtime import Files
    from pstraining.runtime.data.batches import AssignedBatches, EndlessSplitError

    files = Files(["a"], lambda path: tf.data.Dataset.range(3).repeat())
    batches = AssignedBatches(files, lambda: (0, 0), DEVICE)
    for use in (batches.draw, batches.sample):
        with pytest.raises(EndlessSplitError, match=r"never ends .*leave out repeat"):
            use(1)


def test_a_split_that_has_become_shorter_is_not_called_empty(client: Any) -> None:
    """With a larger batch size than before, a split may have fewer batches than were trained of it."""
    import tensorflow as tf

    from pstraining.runtime import Ranges
    from pstraining.runtime.data.batches import AssignedBatches, NoBatchError
    from pstraining.runtime.errors import FinalError

    source = Ranges(64, 64, lambda begin, end: tf.data.Dataset.range(begin, end).batch(32))
    with pytest.raises(
        NoBatchError, match=r"at most 5 batches for position 0.*another batch size.*change the seed"
    ) as raised:
        AssignedBatches(source, lambda: (0, 5), DEVICE).draw(1)
    assert not isinstance(raised.value, FinalError), "the function may return enough batches the next time"
    empty = Ranges(64, 64, lambda begin, end: tf.data.Dataset.range(0).batch(32))
    for use in (AssignedBatches.draw, AssignedBatches.sample):
        with pytest.raises(FinalError, match=r"an empty dataset for position 0.*leave out empty files"):
            use(AssignedBatches(empty, lambda: (0, 0), DEVICE), 1)


def test_an_empty_dataset_is_refused(client: Any) -> None:
    """Another run would get the same one. The chief's datasets are refused before training."""
    import tensorflow as tf

    from pstraining.runtime.chief.refusals import check_all
    from pstraining.runtime.data.batches import DatasetBatches
    from pstraining.runtime.data.validation import Validation
    from pstraining.runtime.errors import FinalError

    def few() -> Any:
        return tf.data.Dataset.range(3).batch(4, drop_remainder=True)

    with pytest.raises(FinalError, match=r"data: the function returned an empty dataset\. .*drop_remainder=True"):
        DatasetBatches(few, DEVICE).draw(1)
    for steps in (None, 3):
        with pytest.raises(FinalError, match=r"validation: the dataset is empty.*drop_remainder=True"):
            check_all([], Validation(few, steps=steps), None)
    with pytest.raises(FinalError, match="evaluate: the dataset is empty"):
        check_all([], None, few)


@pytest.mark.parametrize(("worker", "parts"), [(1, [[]]), (0, [["a batch"], []])])
def test_an_empty_dataset_of_one_worker_does_not_fail_the_job_at_once(
    client: Any, worker: int, parts: list[list[str]]
) -> None:
    """There may be more workers than files, or a data service may have no batch for the moment."""
    from pstraining.runtime.data.batches import DatasetBatches, NoBatchError
    from pstraining.runtime.errors import FinalError

    batches = DatasetBatches(iter(parts).__next__, DEVICE, worker=worker)
    with pytest.raises(NoBatchError, match="use fewer workers") as raised:
        batches.draw(2)
    assert not isinstance(raised.value, FinalError)


def test_arrays_are_no_batches(client: Any) -> None:
    """Arrays are rejected as batches, because `iter` would return samples; a PyDataset is rejected because its epochs
    would go unnoticed.
    """
    import keras
    import numpy as np

    from pstraining.runtime.data.batches import DataError, DatasetBatches

    class Sequence(keras.utils.PyDataset):  # type: ignore[misc]
        num_batches = 2

        def __getitem__(self, index: int) -> Any:
            return index

    class Shuffled(Sequence):
        def on_epoch_end(self) -> None: ...

    assert DatasetBatches(Sequence, DEVICE).draw(3).batches == [0, 1, 0]
    array = np.zeros((4, 2))
    wrong: Any
    for wrong in (array, (array, array), {"x": array}, 7):
        with pytest.raises(DataError, match=r"data: the function returned \w+; return a tf\.data\.Dataset"):
            DatasetBatches(iter([wrong]).__next__, DEVICE).draw(1)
    with pytest.raises(DataError, match=r"Shuffled\.on_epoch_end would not be called"):
        DatasetBatches(Shuffled, DEVICE).draw(1)


def test_texts_in_place_of_numbers_are_refused_before_training() -> None:
    """TensorFlow traces their cast, and fails when it runs: each task ended with a traceback, in each run."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.chief.reports.evaluable import check_evaluable
    from pstraining.runtime.model.errors import ModelError
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    def build() -> Any:
        kind, size = keras.Input((2,), dtype="int64", name="kind"), keras.Input((2,), name="size")
        word = keras.Input((1,), dtype="string", name="word")
        found = keras.layers.Flatten()(keras.layers.Embedding(8, 4)(kind))
        hashed = keras.layers.Hashing(8, output_mode="one_hot")(word)
        return keras.Model([kind, size, word], keras.layers.Dense(2)(keras.ops.concatenate([found, size, hashed], -1)))

    texts = tf.constant([["1", "2"]] * 3)
    given = {"kind": tf.ones([3, 2], tf.int32), "size": tf.ones([3, 2]), "word": texts[:, :1]}
    labels = tf.zeros([3], tf.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for batch, words in [
        ((given | {"kind": texts}, labels), r"x\['kind'\] of a batch has texts where the model needs int64"),
        ((given | {"size": texts}, labels), r"x\['size'\] of a batch has texts where the model needs float32"),
        (((given["kind"], texts, given["word"]), labels), r"x\[1\] of a batch has texts"),
        ((given, texts[:, 0]), "y of a batch has texts where"),
        ((given, labels, texts[:, 0]), "sample_weight of a batch has texts where"),
        ((given, labels), ""),
    ]:
        model = Model(build, lambda: keras.optimizers.SGD(0.1), Objective(loss, metrics=["accuracy"]))
        dataset = tf.data.Dataset.from_tensors(batch)

        def trace(model: Any = model, batch: Any = batch) -> None:
            step = tf.function(lambda given: model.loss_and_gradients(given, lambda *_: None), autograph=False)
            step.get_concrete_function(batch)

        def evaluate(model: Any = model, dataset: Any = dataset) -> None:
            check_evaluable(model.keras, {"evaluate": dataset.element_spec}, DEVICE)

        for argument, run in (("data", trace), ("evaluate", evaluate)):
            if not words:
                run()
                continue
            with pytest.raises(ModelError, match=rf"^{argument}: {words}.*in the dataset, with tf.strings.to_number"):
                run()
