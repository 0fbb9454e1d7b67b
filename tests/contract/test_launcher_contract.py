"""The launcher stands on the standard library and repeats the contract's literals: here both are held together."""

import pytest

from pstraining.api import contract, names
from pstraining.launcher import launch, members, sights


@pytest.mark.parametrize(
    "name",
    [
        "CLUSTER_FILE",
        "RUN_DIR",
        "SUCCESS_MARKER",
        "IN_SYNC_MARKER",
        "OWNED_MARKERS",
        "ENV_TERM",
        "ENV_NAMESPACE",
        "ENV_TASK_TYPE",
        "ENV_TASK_INDEX",
        "ENV_SERVER",
        "ENV_START_TIMEOUT",
        "ENV_RESTART_POLICY",
        "ENV_MEMBER",
        "FAILED_MARKER",
        "EXIT_START_TIMEOUT",
        "EXIT_BAD_CONTRACT",
        "PS_LOSS_GRACE_SECONDS",
    ],
)
def test_literals(name: str) -> None:
    assert getattr(launch, name) == getattr(contract, name)


def test_literals_of_hot_standbys() -> None:
    for name in ("ENV_NODE", "NODE_FILE", "DRAINING_MARKERS"):
        assert getattr(members, name) == getattr(contract, name)


def test_literals_of_what_is_looked_at() -> None:
    for name in ("TF_PORT", "STATUS_PORT"):
        assert getattr(sights, name) == getattr(contract, name)


def test_every_literal_of_the_launcher_is_held() -> None:
    shared = {name for name in vars(contract) if name.isupper() and hasattr(launch, name)}
    held = test_literals.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert shared == set(held)


def test_task_types() -> None:
    for kind in (names.CHIEF, names.WORKER, names.PS, "evaluator"):
        env = {contract.ENV_TASK_TYPE: kind, contract.ENV_TASK_INDEX: "0", contract.ENV_SERVER: "Program"}
        assert launch.read_task(env) == (kind, 0)


def test_the_map_lies_beside_the_launcher() -> None:
    command = ("python3", f"{contract.MOUNT_DIR}/{contract.LAUNCHER_FILE}", "--")
    assert command == contract.LAUNCH_COMMAND
    assert launch.__file__.endswith(f"/{contract.LAUNCHER_FILE}")
