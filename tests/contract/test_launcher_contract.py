"""The launcher imports only the standard library and repeats the contract's literals: both must be equal."""

import pytest

from pstraining.api import contract, names
from pstraining.launcher import contract as launcher_contract
from pstraining.launcher import launch

SHARED = sorted(name for name in vars(contract) if name.isupper() and hasattr(launcher_contract, name))


@pytest.mark.parametrize("name", SHARED)
def test_literals(name: str) -> None:
    assert getattr(launcher_contract, name) == getattr(contract, name)


def test_the_launcher_repeats_every_literal_that_it_reads() -> None:
    prefixes = ("ENV_", "EXIT_")
    own = {
        name
        for name in vars(launcher_contract)
        if name.startswith(prefixes) or name.endswith(("_MARKER", "_MARKERS", "_FILE"))
    }
    assert own - {"EXIT_MEANINGS"} <= set(SHARED)
    assert {"RUN_DIR", "TF_PORT", "STATUS_PORT", "PS_LOSS_GRACE_SECONDS"} <= set(SHARED)


def test_task_types() -> None:
    for kind in (names.CHIEF, names.WORKER, names.PS, "evaluator"):
        env = {contract.ENV_TASK_TYPE: kind, contract.ENV_TASK_INDEX: "0", contract.ENV_SERVER: "Program"}
        assert launcher_contract.read_task(env) == (kind, 0)


def test_the_map_lies_beside_the_launcher() -> None:
    command = ("python3", f"{contract.MOUNT_DIR}/{contract.LAUNCHER_FILE}", "--")
    assert command == contract.LAUNCH_COMMAND
    assert launch.__file__.endswith(f"/{contract.LAUNCHER_FILE}")
