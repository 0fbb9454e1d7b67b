"""What a step sends: every tensor between two machines is a call, and a chain of them is what a step takes."""

from collections import Counter
from typing import Any

import pytest

from pstraining.runtime.ps import critical_section, variables
from pstraining.runtime.ps.record import RECORD_SIZE, RecordField
from pstraining.runtime.ps.tensors import field, put, with_field
from tests.support.messages import Messages, messages_of
from tests.support.servers import Rig, batches, small
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def step(client: Any, *, mode: str = "Sync", **options: Any) -> list[Messages]:
    """Of the functions of a step, the largest last."""
    import keras

    rig = Rig(client, lambda: keras.optimizers.Adam(1e-2), ps=2, build=small, mode=mode, **options)
    rig.start()
    return sorted(messages_of(lambda: rig.train(batches(1))), key=lambda messages: sum(messages.values()))


def test_a_synchronous_step_pushes_one_gradient_to_each_server_and_pulls_its_parameters(client: Any) -> None:
    *_, whole = step(client)
    assert whole == {
        ("worker-0", "ps-0"): 2,  # the gradient, and what goes with it
        ("worker-0", "ps-1"): 2,
        ("ps-0", "ps-1"): 2,  # the arbiter has it, and has made the step
        ("ps-1", "ps-0"): 1,  # so has the other
        ("ps-0", "worker-0"): 3,  # what it says to the gradient and to the step, and the parameters
        ("ps-1", "worker-0"): 3,
    }


def test_an_asynchronous_step_goes_to_all_servers_at_once(client: Any) -> None:
    *_, whole = step(client, mode="Async")
    assert not [pair for pair in whole if pair[0] != "worker-0" and pair[1] != "worker-0"], "none waits for another"
    assert sum(whole.values()) <= 9


@in_all(
    "tests/training/test_runtime_messages.py"
    "::test_a_synchronous_step_pushes_one_gradient_to_each_server_and_pulls_its_parameters"
)  # with standbys
def test_the_decision_of_a_step_with_standbys_makes_no_detour(client: Any) -> None:
    *_, apply = step(client, members=2)
    assert apply == {
        **{("worker-0", f"ps-{number}"): 1 for number in range(4)},
        ("ps-0", "ps-2"): 2,  # what the step is made of: a vector, and all else together
        ("ps-1", "ps-3"): 2,
        ("ps-3", "ps-2"): 1,  # held; then the arbiter's standby decides
        **{("ps-2", f"ps-{number}"): 1 for number in (0, 1, 3)},
        ("ps-0", "worker-0"): 2,
        ("ps-1", "worker-0"): 2,
        ("ps-3", "worker-0"): 1,
    }


def test_without_ordering_the_critical_sections_of_all_servers_deadlock(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow's automatic order switched on again."""
    for module in (critical_section, variables):
        monkeypatch.setattr(module, "unordered", lambda emitted: emitted)
    *_, whole = step(client, mode="Async")
    assert [pair for pair in whole if pair[0] != "worker-0" and pair[1] != "worker-0"]


def test_servers_state_is_read_and_written_by_as_few_operations_as_there_are(client: Any) -> None:
    """Tracing costs a millisecond for each: an index of a record would take four, and a function has dozens of them."""
    import tensorflow as tf

    created: list[variables.PSVariable] = []
    with variables.variables_on(client.shards[0], container=client.container, prefix="few", created=created):
        record, vector = tf.Variable([1, 2, 3, 4, 5], dtype=tf.int64), tf.Variable([0, 0], dtype=tf.int64)

    def emit() -> Any:
        found = record.read_value()
        total = field(found, RecordField.STEP) + field(found, RecordField.DONE) + field(found, RecordField.STEP)
        with tf.control_dependencies([put(vector, tf.constant(1), total)]):
            return client.to_local((with_field(found, RecordField.GENERATION, total), vector.read_value()))

    def begin() -> Any:
        begun = [variable.assign(variable.initial(), read_value=False) for variable in created]
        return critical_section.with_dependencies(begun, critical_section.applied())

    client.call(tf.function(begin, autograph=False))
    function = tf.function(emit, autograph=False)
    changed, written = client.call(function)
    assert (changed.tolist(), written.tolist()) == ([1, 11, 3, 4, 5], [0, 11])
    kinds = Counter(operation.type for operation in function.get_concrete_function().graph.get_operations())
    assert len(changed) == RECORD_SIZE
    assert kinds - Counter(["VarHandleOp", "EnsureShape", "Identity"] * 2) == Counter(
        [
            "ReadVariableOp",
            "ReadVariableOp",
            "Unpack",
            "AddV2",
            "AddV2",
            "Const",
            "ResourceScatterUpdate",
            "NoOp",
            "Pack",
        ]
    )
