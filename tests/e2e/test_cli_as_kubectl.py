"""The real kubectl gives the answers that the plugin's tests expect of it (tests/unit/cli/test_as_kubectl.py)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import cluster_command
from tests.support.kubectl_rows import ANSWERS, Rig, Row, of_kubectl, rig
from tests.support.kubectl_table import ROWS
from tests.support.soak_marks import in_all, some

EVERY = 7
"""`make test` takes one of this number of rows, because kubectl does not change."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Rig]:
    with rig() as made:
        yield made


@pytest.fixture(scope="module")
def kubectl() -> str:
    return cluster_command("tool", "kubectl")


@pytest.mark.parametrize(
    "row",
    some(
        ROWS,
        lambda row: ROWS.index(row) % EVERY == 0,
        in_all("tests/unit/cli/test_as_kubectl.py::test_a_row"),
    ),
    ids=[row.name for row in ROWS],
)
def test_what_kubectl_does(row: Row, servers: Rig, kubectl: str, tmp_path: Path) -> None:
    found = of_kubectl(kubectl, row, servers, tmp_path)
    expected = json.loads(ANSWERS.read_text())[row.name]
    # Its messages change with its version.
    assert found == expected or ("refused" in found and "refused" in expected)
