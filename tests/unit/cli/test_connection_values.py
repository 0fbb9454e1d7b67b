"""Values of the connection that a library or the operating system cannot use are refused by name, or limited."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pstraining.cli.connection import exec_plugin
from pstraining.cli.connection.access import Access, Surroundings, chosen
from pstraining.cli.connection.kubeconfig import load, merged
from pstraining.cli.connection.models import ExecPlugin, KubeconfigCluster
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.connection.session import HttpSession
from pstraining.cli.errors import CommandError
from tests.support.kubeconfigs import config

WRONG = ["http://[::1", "http://a:b", "http://h:99999", "http://", "ftp://x", "http://a b", "//x"]


def accessed(environ: Mapping[str, str] | None = None, timeout: str = "", **cluster: Any) -> Access:
    text = json.dumps(config(server="http://api.invalid", cluster=cluster))
    around = Surroundings(dict(environ or {}), Path("none"))
    return chosen(merged([("config", text)]), Overrides(request_timeout=timeout), around)


@pytest.mark.parametrize("url", WRONG)
def test_a_proxy_that_is_not_a_url_is_named(url: str) -> None:
    with pytest.raises(CommandError, match=r"cluster first has the proxy-url .*: it must begin with http"):
        accessed(None, "", **{"proxy-url": url})
    with pytest.raises(CommandError, match=r"HTTP_PROXY has .*: it must begin with http.* or set NO_PROXY"):
        accessed({"HTTP_PROXY": url})


@pytest.mark.parametrize("login", ["me:pass", "me:p@/#?:s", "me"])
@pytest.mark.parametrize("url", ["ftp://{}@host", "http://{}@h:99999", "{}@h:99999", "socks4://{}@host", "http://{}@"])
def test_no_message_has_the_login_of_a_proxy(url: str, login: str) -> None:
    given = url.format(login)
    for environ, cluster in (({"HTTP_PROXY": given}, {}), ({}, {"proxy-url": given})):
        with pytest.raises(CommandError) as raised:
            accessed(environ, "", **cluster)
        assert "me" not in str(raised.value).partition(": it must begin")[0].split(" has ")[1], raised.value


def test_any_timeout_of_a_request_that_kubectl_knows_is_accepted() -> None:
    for given in ("9" * 30, "2562047h"):
        access = accessed(timeout=given)
        timeout = HttpSession(access)._timeout(access.seconds)
        with socket.socket() as sock:
            sock.settimeout(timeout.connect_timeout)  # type: ignore[arg-type]  # urllib3's sentinel is not used
            assert (sock.gettimeout() or 0) > 86400


def test_a_plugin_that_is_not_executable_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("#!/bin/sh\n")
    given = {"command": str(tmp_path / "login"), "apiVersion": exec_plugin.VERSIONS[0], "installHint": "Install it."}
    with pytest.raises(CommandError, match=r"Permission denied\. Make it executable, or correct its command\.$"):
        exec_plugin.run(ExecPlugin.model_validate(given), KubeconfigCluster(), "jane", {})


@pytest.mark.parametrize(
    "given",
    [
        {"env": [{"name": "A=B", "value": "c"}]},
        {"env": [{"name": "A\0", "value": "c"}]},
        {"env": [{"name": "A", "value": "\0"}]},
        {"args": ["\0"]},
        {"command": "./login\0"},
    ],
)
def test_texts_that_no_program_can_be_given_are_refused(given: dict[str, Any]) -> None:
    plugin = ExecPlugin.model_validate({"command": "true", "apiVersion": exec_plugin.VERSIONS[0], **given})
    with pytest.raises(CommandError, match=r"of user jane cannot be run: .*\. Correct its command, args or env\.$"):
        exec_plugin.run(plugin, KubeconfigCluster(), "jane", {})


def test_a_user_without_a_home_has_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user whom the system does not know
    assert load(Overrides(), {}).missing == ("~/.kube/config",)


def test_groups_without_a_user_are_refused_in_a_pod_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    pod = Surroundings({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    with pytest.raises(CommandError, match="name that user with as or --as"):
        chosen(merged([]), Overrides(impersonate_groups=("viewers",)), pod)
    assert chosen(merged([]), Overrides(impersonate="jane", impersonate_groups=("viewers",)), pod).user.impersonate


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_kubeconfig_in_each_encoding_that_kubectl_reads(encoding: str, tmp_path: Path) -> None:
    """PowerShell's `kubectl config view --raw > config` writes UTF-16."""
    file = tmp_path / "config"
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    text = json.dumps(
        {"current-context": "größe", "users": [{"name": "a", "user": {"token": "ä"}}]}, ensure_ascii=False
    )
    file.write_bytes(f"{mark}{text}\r\n".encode(encoding))
    found = load(Overrides(kubeconfig=str(file)), {})
    assert (found.current_context, found.users["a"].token) == ("größe", "ä")
