"""The message about an API server that did not respond names what to correct: the server, its proxy or TLS."""

import json
import ssl
from pathlib import Path

import pytest
from urllib3.exceptions import SSLError

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection.access import Access, Surroundings, chosen
from pstraining.cli.connection.kubeconfig import merged
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.connection.unreachable import unreachable_message
from pstraining.cli.errors import RequestError
from tests.support.kubeconfigs import config
from tests.support.ports import free_port

SERVER = "https://api.invalid"


def accessed() -> Access:
    text = json.dumps(config(server=SERVER))
    return chosen(merged([("config", text)]), Overrides(), Surroundings({}, Path("none")))


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_proxy_that_is_down_is_named_without_its_password(
    by_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_port()}"
    given = f"http://jane:secret@{address}"
    path = tmp_path / "config"
    path.write_text(json.dumps(config(server=SERVER, cluster={} if by_variable else {"proxy-url": given})))
    monkeypatch.setenv("KUBECONFIG", str(path))
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if by_variable:
        monkeypatch.setenv("HTTPS_PROXY", given)
    with pytest.raises(RequestError) as caught:
        KubeconfigClient().jobs(None)
    said = str(caught.value)
    start = f"The API server {SERVER} (context first) did not respond through the proxy http://{address}: [Errno 111] "
    assert said.startswith(f"{start}Connection refused. Correct ")
    way_out = "the variable HTTPS_PROXY, which names the proxy, or add api.invalid to NO_PROXY"
    assert (way_out if by_variable else "proxy-url of the kubeconfig's cluster") in said


def test_an_error_of_tls_is_not_said_to_be_one_of_the_servers_certificate() -> None:
    where = accessed()
    for reason, text, todo in (
        (
            "WRONG_VERSION_NUMBER",
            "wrong version number",
            "Something answers there without TLS. Correct the server's URL",
        ),
        (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "tlsv13 alert certificate required",
            "Check the server's URL, and the client",
        ),
    ):
        error = ssl.SSLError(1, f"[SSL: {reason}] {text} (_ssl.c:1006)")
        error.reason = reason
        said = unreachable_message(where, SSLError(error))
        assert said.startswith(f"TLS with the API server {SERVER} (context first) failed: {text}. {todo}")
    wrong = ssl.SSLCertVerificationError(1, "[SSL: X] certificate verify failed: unable to get it (_ssl.c:1006)")
    assert unreachable_message(where, SSLError(wrong)) == (
        f"The certificate of the API server {SERVER} (context first) was not accepted: unable to get it. "
        "Correct the kubeconfig's cluster."
    )
