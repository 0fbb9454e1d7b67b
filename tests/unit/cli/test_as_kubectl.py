"""The plugin asks the cluster that kubectl asks, in the same namespace and as the same user: row by row."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection import access
from pstraining.cli.errors import CommandError
from pstraining.cli.formatting import request_seconds
from pstraining.cli.options import Context, Namespace, with_connection
from tests.support.kubectl_rows import ANSWERS, Outcome, Rig, Row, laid_out, rig
from tests.support.kubectl_table import ROWS

KUBECTL: dict[str, Outcome] = json.loads(ANSWERS.read_text())
asked: list[float] = []
"""The time limits of the requests."""


@with_connection
def ask(namespace: Namespace = None, context: Context = None) -> None:
    cluster = KubeconfigClient(context)
    cluster.read(f"/api/v1/namespaces/{namespace or cluster.namespace}/a")
    asked.append(cluster._access.seconds or 0)


app = typer.Typer()
app.command()(ask)
command = typer.main.get_command(app)


@pytest.fixture(scope="module")
def servers() -> Iterator[Rig]:
    with rig() as made:
        yield made


def answer(row: Row, servers: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    environ, options = laid_out(row, servers, folder)
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", folder / "serviceaccount")
    try:
        command.main(options, standalone_mode=False)
    except CommandError as error:
        assert not servers.kept(), "it is refused before anything is sent"
        return {"refused": str(error)}
    (found,) = servers.kept()
    return found | {"timeout": asked.pop()}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row(row: Row, servers: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, Any] = KUBECTL[row.name]
    found = answer(row, servers, tmp_path, monkeypatch)
    if row.differs:
        assert "refused" in expected
        assert "refused" not in found
    elif "refused" in expected:
        assert re.search(row.refused, found["refused"]), found
        assert row.refused
    else:
        assert found == expected | {"timeout": request_seconds(expected["timeout"] or "0")}
