"""The message about an API server that did not respond."""

import re
import ssl
from typing import Final
from urllib.parse import urlsplit

from urllib3.exceptions import ProxyError, SSLError

from pstraining.cli.connection import proxies
from pstraining.cli.connection.access import Access

_OPENSSL: Final = re.compile(r"^\[[^\]]*\] *| *\(_ssl\.c:\d+\)$")
"""OpenSSL's name of an error, and the place in Python's source."""
_PLAIN_HTTP: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's errors about a server that answers without TLS."""


def unreachable_message(where: Access, why: object) -> str:
    """Return the message about an API server that did not respond.

    Args:
        where: the server.
        why: urllib3's error.
    """
    cause = why.original_error if isinstance(why, ProxyError) else why
    reason = _last_part(cause)
    if where.unnamed:
        return (
            f"{where.unnamed}. kubectl's default address {where.host} did not respond: {reason}. Set KUBECONFIG or "
            "--kubeconfig."
        )
    failure = cause.args[0] if isinstance(cause, SSLError) and cause.args else None
    if isinstance(failure, ssl.SSLError) and not isinstance(failure, ssl.SSLCertVerificationError):
        return _without_tls(where, failure)
    if isinstance(cause, SSLError):
        return (
            f"The certificate of the API server {where} was not accepted: {_plain(reason)}. Correct the kubeconfig's "
            "cluster."
        )
    if where.proxy:
        return _through_proxy(where, reason)
    return (
        f"The API server {where} did not respond: {reason}. Check that this is the intended cluster and that it is "
        "running."
    )


def _without_tls(where: Access, failure: ssl.SSLError) -> str:
    """Return the message about a TLS connection that failed for another reason than the server's certificate."""
    head = f"TLS with the API server {where} failed: {_plain(str(failure))}."
    if failure.reason in _PLAIN_HTTP:
        return f"{head} Something answers there without TLS. Correct the server's URL: its port, or http for https."
    return f"{head} Check the server's URL, and the client certificate of the kubeconfig's user."


def _through_proxy(where: Access, reason: str) -> str:
    proxy = proxies.without_login(where.proxy)
    target = urlsplit(where.host)
    if where.cluster.proxy_url:
        way_out = "Correct proxy-url of the kubeconfig's cluster, or check that the proxy is running"
    else:
        variable = f"{target.scheme.upper()}_PROXY"
        way_out = f"Correct the variable {variable}, which names the proxy, or add {target.hostname} to NO_PROXY"
    return f"The API server {where} did not respond through the proxy {proxy}: {reason}. {way_out}."


def _last_part(error: object) -> str:
    """Return an error's cause without urllib3's names of its objects."""
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__


def _plain(reason: str) -> str:
    """Return OpenSSL's message alone."""
    return _OPENSSL.sub("", reason).rstrip(".")
