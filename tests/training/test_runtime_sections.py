"""Every change of a server's state runs inside the server's critical section.

The tests check the graphs of traced functions, so that no test has to let two calls meet at one moment.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.state import SavePlan
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.servers import Rig
from tests.support.soak_marks import in_all, some
from tests.training.test_runtime_checkpoint_parts import small_files
from tests.training.test_runtime_checkpoint_pieces import adam, batches, model, pieces

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
__all__ = ["pieces", "small_files"]
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
"""Operations on a variable that do not change it."""
CONDITIONS = {"If", "StatelessIf"}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the graphs of the functions that are traced from now on, without those of branches."""
    from tensorflow.python.framework import func_graph

    traced: list[Any] = []
    begin = func_graph.FuncGraph.__init__

    def noted(graph: Any, *arguments: Any, **options: Any) -> None:
        begin(graph, *arguments, **options)
        if not isinstance(graph.outer_graph, func_graph.FuncGraph):
            traced.append(graph)

    monkeypatch.setattr(func_graph.FuncGraph, "__init__", noted)
    return traced


class Graph:
    """The nodes of a function or of a condition's branch, and the servers' variables that they can name.

    Args:
        nodes: the nodes.
        functions: the definitions of branches, by name.
        variables: the variables by the names of the nodes or arguments that are their handles.
    """

    def __init__(self, nodes: Iterable[Any], functions: dict[str, Any], variables: dict[str, str]) -> None:
        self.nodes, self._functions, self._variables = list(nodes), functions, variables
        self._inputs = {node.name: [source(name) for name in node.input] for node in self.nodes}

    @classmethod
    def traced(cls, graph: Any) -> "Graph":
        definition = graph.as_graph_def()
        functions = {function.signature.name: function for function in definition.library.function}
        handles = {
            node.name: node.attr["shared_name"].s.decode()
            for node in definition.node
            if node.op == "VarHandleOp" and "job:ps" in node.device
        }
        return cls(definition.node, functions, handles)

    def changes(self) -> Iterator[tuple[str, bool]]:
        """Yield the variables that the graph may change, and whether the change is inside a section."""
        inside = self._inside()
        for node in self.nodes:
            is_inside = node.name in inside
            given = [self._variables.get(source(name), "") for name in node.input if not name.startswith("^")]
            if not any(given) or node.op in READS:
                continue
            if node.op not in CONDITIONS:
                yield from ((name, is_inside) for name in given if name)
                continue
            for branch in ("then_branch", "else_branch"):
                function = self._functions[node.attr[branch].func.name]
                arguments = zip((argument.name for argument in function.signature.input_arg), given[1:], strict=True)
                names = {argument: name for argument, name in arguments if name}
                within = Graph(function.node_def, self._functions, names)
                yield from ((name, is_inside or at_once) for name, at_once in within.changes())

    def _inside(self) -> set[str]:
        """Return the nodes that run after a section is entered and before it is left."""
        outputs: dict[str, list[str]] = {}
        for name, inputs in self._inputs.items():
            for given in inputs:
                outputs.setdefault(given, []).append(name)
        entries = {node.name for node in self.nodes if node.op == "MutexLock"}
        exits = {node.name for node in self.nodes if node.op == "ConsumeMutexLock"}
        return reached(entries, outputs) & reached(exits, self._inputs)


def source(name: str) -> str:
    """Return the node or argument of an input."""
    return name.removeprefix("^").split(":")[0]


def reached(first: set[str], following: dict[str, list[str]]) -> set[str]:
    found, new = set(first), list(first)
    while new:
        new = [name for earlier in new for name in following.get(earlier, ()) if name not in found]
        found.update(new)
    return found


def changed(graphs: list[Any]) -> set[str]:
    return {name for graph in graphs for name, _ in Graph.traced(graph).changes()}


def outside(graphs: list[Any]) -> list[set[str]]:
    """Return the variables that each graph changes outside of a section, for graphs with such a change."""
    found = [{name for name, is_inside in Graph.traced(graph).changes() if not is_inside} for graph in graphs]
    return [late for late in found if late]


@pytest.mark.parametrize(
    ("mode", "members"),
    some(
        [("Async", 1), ("Sync", 2)],
        lambda mode, _: mode == "Sync",
        in_all("tests/training/test_runtime_sections.py::test_every_change_of_a_server_is_in_its_section"),
    ),
)
@pytest.mark.usefixtures("pieces", "small_files")
def test_every_change_of_a_server_is_in_its_section(
    client: Any, graphs: list[Any], tmp_path: Path, mode: str, members: int
) -> None:
    """Every change of a server is in its section: in training, in a save in pieces, and in its restore."""
    rig = Rig(client, adam, ps=1, members=members, build=model, loss="binary_crossentropy", mode=mode)
    rig.start()
    checkpoints = Checkpoints(tmp_path, keep=1, damaged=rig.control.find_damaged, links=True)
    for _ in range(2):
        rig.train(batches(1, seed=0))
        plan = SavePlan(checkpoints.base, recorded=True)
        with rig.control.copied(plan, fence=1, wait=lambda: None) as state:
            checkpoints.save(state, term=1, layout=rig.store.layout)
    assert state.base is not None, "the second save is incremental"
    rig.start(checkpoints.newest(), term=2)
    record, copy, rows = "0/0", "0/copy", "0/copy/rows/0"
    assert {record, copy, rows} <= changed(graphs)
    assert outside(graphs) == []


@pytest.mark.usefixtures("pieces")
def test_a_copy_outside_the_section_is_found(client: Any, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy outside the section is found: operations of a save are traced with the section and without it, and never
    run.
    """
    import tensorflow as tf

    from pstraining.runtime.ps.saving.parts import ShardParts

    shard = ShardParts(Rig(client, adam, ps=1, build=model, loss="binary_crossentropy", mode="Async").store.shards[0])
    number = tf.constant(1, tf.int64)
    operations = [
        lambda: shard.begin_copy(number, number),
        lambda: shard.keep(number, number),
        lambda: shard.keep_changed(list(shard.table_parts), number, number, number),
        lambda: shard.release(number),
    ]

    def trace() -> None:
        graphs.clear()
        for operation in operations:
            tf.function(operation, autograph=False).get_concrete_function()

    trace()
    assert outside(graphs) == []
    monkeypatch.setattr(shard, "critical", lambda inputs, body: body(*inputs))
    trace()
    assert len(outside(graphs)) == len(operations)
