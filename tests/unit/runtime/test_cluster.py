"""A task reads its role, index and addresses from a pod's environment, or names the missing setting."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.runtime.config.cluster import (
    ClusterError,
    Task,
    is_layout_ending,
    later_layout,
    next_layout,
    note_layout,
    read,
)
from pstraining.runtime.errors import FinalError

CLUSTER = {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2333"], "ps": ["p0:2222"]}


def environment(task: tuple[str, int] = ("worker", 1), cluster: Any = CLUSTER, **more: str) -> dict[str, str]:
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    return {"TF_CONFIG": json.dumps(config), "PSTRAINING_CLUSTER_FILE": "/nonexistent", **more}


def test_a_worker_listens_on_its_own_port_at_the_pods_address() -> None:
    cluster = read(environment(PSTRAINING_POD_IP="10.0.0.7", PSTRAINING_JOB="digits"))
    assert cluster.task == Task("worker", 1)
    assert cluster.own_address == "10.0.0.7:2333"
    assert (cluster.job, cluster.workers, cluster.ps, cluster.is_chief) == ("digits", 2, ("p0:2222",), False)
    assert read(environment(PSTRAINING_POD_IP="fd00::7")).own_address == "[fd00::7]:2333"
    assert read(environment()).own_address == "127.0.0.1:2333"


@pytest.mark.parametrize(
    ("task", "roles", "expected"),
    [
        (("chief", 0), ("chief", "worker", "ps"), True),
        (("worker", 0), ("chief", "worker", "ps"), False),
        (("worker", 0), ("worker", "ps"), True),
        (("worker", 1), ("worker", "ps"), False),
    ],
)
def test_worker_zero_is_chief_where_there_is_none(task: tuple[str, int], roles: Any, expected: bool) -> None:
    cluster = read(environment(task, {role: CLUSTER[role] for role in roles}))
    assert cluster.is_chief is expected


def test_the_cluster_file_brings_the_jobs_settings(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(
        json.dumps(
            {
                "job": "digits",
                "training": {"steps": 5},
                "checkpoint": {"path": "/checkpoints", "keep": 2, "volume": {"emptyDir": {}}},
            }
        )
    )
    cluster = read(environment(PSTRAINING_CLUSTER_FILE=str(file)))
    assert (cluster.job, cluster.training) == ("digits", {"steps": 5})
    assert cluster.checkpoint == {"path": "/checkpoints", "keep": 2}
    moved = read(environment(PSTRAINING_CLUSTER_FILE=str(file), PSTRAINING_CHECKPOINT_DIR="/elsewhere"))
    assert moved.checkpoint["path"] == "/elsewhere"


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ({"witnesses": ["w:1"], "seats": ["w:1"]}, ("w:1",)),
        ({"witnesses": ["w:1"]}, ("w:1",)),
        ({"seats": ["w:1"]}, ("w:1",)),
        ({"witnesses": [], "seats": ["w:1"]}, ()),
        ({}, ()),
    ],
)
def test_witnesses_are_read_from_the_map_of_any_operator(tmp_path: Path, shared: Any, expected: Any) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(shared))
    assert read(environment(PSTRAINING_CLUSTER_FILE=str(file))).witnesses == expected


@pytest.mark.parametrize(
    ("shared", "ends"),
    [
        ({}, False),
        ({"nextLayout": 2}, True),
        ({"layout": 2, "nextLayout": 2}, False),
        ({"layout": 2, "nextLayout": 3}, True),
        ({"nextLayout": "soon"}, False),
    ],
)
def test_the_map_asks_the_chief_to_save_for_another_layout(tmp_path: Path, shared: Any, ends: bool) -> None:
    file = tmp_path / "cluster.json"
    found = environment(PSTRAINING_CLUSTER_FILE=str(file))
    file.write_text(json.dumps({name: number for name, number in shared.items() if name == "layout"}))
    cluster = read(found)
    assert (cluster.layout, cluster.first_term) == (shared.get("layout", 1), 1)
    file.write_text(json.dumps(shared))
    assert is_layout_ending(cluster, found) is ends
    file.unlink()
    assert not is_layout_ending(cluster, found), "no map asks for nothing"


NEXT = ["p0:2222", "p1:2222"]
LISTED = {"layout": 1, "nextLayout": 2, "nextServers": NEXT}
IN_USE = {"layout": 2, "cluster": {"ps": NEXT}}


@pytest.mark.parametrize(
    ("shared", "is_next", "is_later"),
    [
        (LISTED, True, True),
        (IN_USE, False, True),
        ({**IN_USE, "layout": 1}, False, False),
        ({"layout": 1, "nextLayout": 2}, False, False),
        ({"nextLayout": 2, "nextServers": []}, False, False),
        ({"nextLayout": 2, "nextServers": ["one", "two", "three"], "layout": 1}, False, False),
        ({"layout": "2", "cluster": NEXT}, False, False),
        ("{", False, False),
    ],
)
def test_another_layout_is_read_from_the_map(tmp_path: Path, shared: Any, is_next: bool, is_later: bool) -> None:
    """A process that starts during a change knows the former layout, and the map may list the next one as in use."""
    file = tmp_path / "cluster.json"
    found = environment(cluster={**CLUSTER, "ps": ["p0:2222", "p2:2222"]}, PSTRAINING_CLUSTER_FILE=str(file))
    file.write_text(json.dumps({"members": 2}))
    cluster = read(found)
    file.write_text(shared if isinstance(shared, str) else json.dumps(shared))
    for layout, expected in ((next_layout(cluster, found), is_next), (later_layout(cluster, found), is_later)):
        assert (layout is not None) is expected
        assert layout is None or (layout.layout, layout.ps) == (2, tuple(NEXT))
    file.unlink()
    assert later_layout(cluster, found) is None


def test_addresses_by_index_are_put_in_order() -> None:
    sparse = {"worker": {"1": "b:1", "0": "a:1"}, "ps": ["p:1"]}
    assert read(environment(("worker", 1), sparse)).own_address == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "TF_CONFIG is not set"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not what"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG is not what"),
        (environment(("worker", 2)), "no address for its own task worker 2"),
        (environment(("master", 0)), "no address for its own task master 0"),
        (environment(("master", 0), {**CLUSTER, "master": ["m:1"]}), "tasks of type master are not supported"),
        (environment(cluster={"worker": ["a:1", "b:1"]}), "no parameter server"),
        (environment(PSTRAINING_TERM="0"), "PSTRAINING_TERM"),
        (environment(PSTRAINING_TERM="first"), "PSTRAINING_TERM"),
    ],
)
def test_missing_settings_are_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read(env)


@pytest.mark.parametrize("cluster", [CLUSTER, {**CLUSTER, "evaluator": ["e:1"]}])
def test_an_evaluator_ends_the_job_with_the_way_out(cluster: dict[str, list[str]]) -> None:
    """As the evaluator, the program fails in each run, until the failure budget is spent."""
    with pytest.raises(ClusterError, match=r"spec.evaluator: .* leave the field out") as raised:
        read(environment(("evaluator", 0), cluster))
    assert isinstance(raised.value, FinalError)


def test_a_launcher_never_reads_half_of_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end a program that has followed, as one of which nothing is known."""
    monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path))
    file = tmp_path / contract.LAYOUT_FILE
    file.write_text("1")
    with file.open() as reader:
        note_layout(replace(read(environment(PSTRAINING_POD_NAME="w-1")), layout=12))
        assert (reader.read(), file.read_text()) == ("1", "12")
    assert list(tmp_path.iterdir()) == [file]
