"""The plugin connects to the same cluster as kubectl, in the same namespace and as the same user: row by row."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection import access
from pstraining.cli.errors import CommandError
from pstraining.cli.formatting import request_seconds
from pstraining.cli.options import Context, Namespace, with_connection
from tests.support.kubeconfigs import exec_row, printing
from tests.support.kubectl_rows import ANSWERS, Outcome, Rig, Row, laid_out, rig
from tests.support.kubectl_table import ROWS

KUBECTL: dict[str, Outcome] = json.loads(ANSWERS.read_text())
asked: list[float] = []
"""The timeouts of the requests."""


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


@pytest.mark.filterwarnings("error")  # insecure connections cause no warning either
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


def test_a_credential_plugins_output_is_shown_at_once(
    servers: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = [row for row in ROWS if row.name == "a plugin that fails"]
    answer(row, servers, tmp_path, monkeypatch)
    assert capsys.readouterr().err == "token expired: run `corp login`\n"


def test_a_process_that_a_credential_plugin_leaves_behind_is_not_awaited(
    servers: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'sleep 20 >/dev/null &\necho $! > "$0.agent"\n{printing("""{"token": "t"}""")}'
    environ, _ = laid_out(exec_row("", script), servers, tmp_path)
    monkeypatch.setenv("KUBECONFIG", environ["KUBECONFIG"])
    begin = time.monotonic()
    KubeconfigClient().read("/a")
    took = time.monotonic() - begin
    with suppress(ProcessLookupError):
        os.kill(int((tmp_path / "login.agent").read_text()), signal.SIGKILL)
    assert took < 15


@pytest.mark.parametrize(("expires", "runs"), [("2100", [1, 1, 2]), (None, [1, 1, 2])])
def test_a_plugin_is_called_again_after_its_token_is_rejected(
    servers: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: str | None, runs: list[int]
) -> None:
    cluster, count = with_plugin(servers, tmp_path, monkeypatch, expires)
    seen = []
    for refused in (False, False, True):
        if refused:
            cluster._session._credentials.refused()
        cluster.read("/a")
        seen.append(count())
    assert seen == runs


def test_a_plugin_is_called_again_after_its_token_has_expired(
    servers: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, count = with_plugin(servers, tmp_path, monkeypatch, "2020")
    cluster.read("/a")
    before = count()
    cluster.read("/a")
    assert count() > before


def with_plugin(
    servers: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch, expires: str | None
) -> tuple[KubeconfigClient, Callable[[], int]]:
    """Return a client with an exec plugin, and a function that counts the plugin's runs."""
    end = f', "expirationTimestamp": "{expires}-01-01T00:00:00Z"' if expires else ""
    row = exec_row("", f'echo run >> "$0.runs"\n{printing(f"""{{"token": "t"{end}}}""")}')
    environ, _ = laid_out(row, servers, folder)
    monkeypatch.setenv("KUBECONFIG", environ["KUBECONFIG"])
    return KubeconfigClient(), lambda: len((folder / "login.runs").read_text().split())
