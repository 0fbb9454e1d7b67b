"""The messages of a step: every tensor between two machines is a call, and a step takes as long as their longest
chain.
"""

from collections import Counter
from typing import Any

import pytest

from pstraining.runtime.ps import critical_section, variables
from pstraining.runtime.ps.record import RECORD_SIZE, RecordField
from pstraining.runtime.ps.tensors import field, put, with_field
from tests.support.messages import Messages, messages_of
from tests.support.servers import Rig, batches, small
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("rewriting")]


def step(client: Any, *, mode: str = "Sync", **options: Any) -> list[Messages]:
    """Return the messages of a step's functions, those of the largest function last."""
    import keras

    rig = Rig(client, lambda: keras.optimizers.Adam(1e-2), ps=2, build=small, mode=mode, **options)
    rig.start()
    return sorted(messages_of(lambda: rig.train(batches(1))), key=lambda messages: sum(messages.values()))


def test_a_synchronous_step_pushes_one_gradient_to_each_server_and_pulls_its_parameters(client: Any) -> None:
    *_, whole = step(client)
    assert whole == {
        ("worker-0", "ps-0"): 2,  # the gradient and its header
        ("worker-0", "ps-1"): 2,
        ("ps-0", "ps-1"): 2,  # the arbiter has the gradient and has applied the step
        ("ps-1", "ps-0"): 1,  # the other server as well
        ("ps-0", "worker-0"): 3,  # the replies to the gradient and to the step, and the parameters
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
        ("ps-0", "ps-2"): 2,  # the step's inputs: a vector, and one tensor with all others
        ("ps-1", "ps-3"): 2,
        ("ps-3", "ps-2"): 1,  # staged; then the arbiter's standby decides
        **{("ps-2", f"ps-{number}"): 1 for number in (0, 1, 3)},
        ("ps-0", "worker-0"): 2,
        ("ps-1", "worker-0"): 2,
        ("ps-3", "worker-0"): 1,
    }


@in_all(
    "tests/training/test_runtime_messages.py::test_an_asynchronous_step_goes_to_all_servers_at_once"
)  # the reason for the order
def test_without_ordering_the_critical_sections_of_all_servers_deadlock(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ordering, the critical sections of all servers deadlock, as with TensorFlow's automatic order."""
    for module in (critical_section, variables):
        monkeypatch.setattr(module, "unordered", lambda emitted: emitted)
    *_, whole = step(client, mode="Async")
    assert [pair for pair in whole if pair[0] != "worker-0" and pair[1] != "worker-0"]


def test_servers_state_is_read_and_written_by_as_few_operations_as_there_are(client: Any) -> None:
    """Servers read and write their state with as few operations as it has variables. Tracing costs a millisecond per
    operation: indexing a record would take four, and a function has dozens.
    """
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
