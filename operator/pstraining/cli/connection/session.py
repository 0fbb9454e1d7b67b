"""Requests to an API server: connections, TLS, proxies and time limits."""

import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlencode, urlsplit

import urllib3
from urllib3.util import Retry, Timeout

from pstraining.cli.connection import proxies
from pstraining.cli.connection.access import Access
from pstraining.cli.connection.credentials import Credentials, Pair, read
from pstraining.cli.errors import CommandError

CONNECT_SECONDS: Final = 10
PAUSES: Final = 10
"""Maximum number of pauses of one request, as in client-go."""
AT_ONCE: Final = 10
"""Maximum number of connections that are kept open."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_PROBES: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 9))
"""client-go's TCP keepalive, in seconds and tries: a command that follows a log detects a lost API server."""


class HttpSession:
    """A session of requests to an API server with the user's credentials.

    Raises:
        CommandError: the credentials or the certificates cannot be used.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self._credentials = Credentials(access)
        self._certificate: Pair | None = None
        self._pool: urllib3.PoolManager | None = None
        self._lock = threading.Lock()
        self._accepted = False  # whether the API server has accepted the credentials before
        if access.secure:
            # Report unusable certificates before the first request.
            self._tls(None)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        seconds: float | None,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the response, whose body is not read yet.

        Args:
            method: the HTTP method.
            path: the quoted path, from the server's root.
            query: the query's parameters.
            seconds: maximum time until the next byte; None without a limit.
            headers: headers beside those of the credentials.
            body: the request's body.

        Raises:
            CommandError: the credentials are not available.
            urllib3.exceptions.HTTPError: the server did not respond.
        """

        def send() -> urllib3.BaseHTTPResponse:
            sent = urllib3.HTTPHeaderDict(headers)
            for name, value in self._credentials.headers():
                sent.add(name, _line(name, value))
            url = f"{self.access.host}{path}{'?' if query else ''}{urlencode(query)}"
            answer = self._connected().request(
                method, url, body=body, headers=sent, preload_content=False, timeout=self._timeout(seconds)
            )
            if answer.status == 401:
                self._credentials.refused()
            return answer

        pauses = 0 if "/proxy/" in path else PAUSES  # a pod's answer: the API server itself is not overloaded
        answer = _accepted_later(send, pauses)
        if answer.status == 401 and self._accepted:
            # The token of a command that runs for hours has expired: kubectl's next request has a new one, too.
            answer.drain_conn()
            answer = _accepted_later(send, pauses)
        self._accepted = answer.status != 401
        return answer

    def _timeout(self, seconds: float | None) -> Timeout:
        limit = self.access.seconds
        return Timeout(connect=CONNECT_SECONDS if limit is None else limit or None, read=seconds)

    def _connected(self) -> urllib3.PoolManager:
        """Return connections that use the client's current certificate."""
        certificate = self._credentials.certificate() if self.access.secure else None
        with self._lock:
            if self._pool is None or certificate != self._certificate:
                self._certificate, self._pool = certificate, self._connections(certificate)
            return self._pool

    def _connections(self, certificate: Pair | None) -> urllib3.PoolManager:
        settings: dict[str, Any] = {
            # One retry suffices if the server has closed an idle connection.
            "retries": _Tries(1, respect_retry_after_header=False),
            "maxsize": AT_ONCE,
            "socket_options": _socket_options(),
        }
        if self.access.secure:
            settings["ssl_context"] = self._tls(certificate)
            if name := self.access.cluster.tls_server_name:
                settings["server_hostname"] = name
        proxy = self.access.proxy
        if not proxy:
            return urllib3.PoolManager(**settings)
        name, password = _login(proxy)
        if urlsplit(proxy).scheme.startswith("socks"):
            return _socks(proxy, settings | ({"username": name, "password": password} if name else {}))
        # As Go, encode them in UTF-8.
        pair = f"{name}:{password}".encode().decode("latin-1")
        headers = urllib3.make_headers(proxy_basic_auth=pair) if name else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)

    def _tls(self, certificate: Pair | None) -> ssl.SSLContext:
        cluster = self.access.cluster
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Like Go, trust every given certificate, even if it is not a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        authority = cluster.certificate_authority_data
        if cluster.certificate_authority:
            authority = read(cluster.certificate_authority, "certificate-authority")
        if cluster.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            # The user has configured it: do not warn about each request.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        elif authority:
            self._trust(context, authority)
        else:
            context.load_default_certs()
        if certificate is not None:
            _show(context, certificate, self.access)
        return context

    def _trust(self, context: ssl.SSLContext, bundle: bytes) -> None:
        """Trust the certificates in a bundle. As in Go, its other text and damaged certificates are ignored."""
        known = False
        for found in _CERTIFICATE.findall(bundle):
            with suppress(ssl.SSLError, ValueError):
                context.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(found.decode("ascii")))
                known = True
        if not known:
            raise CommandError(f"The kubeconfig's certificate authority for {self.access} is not PEM.")


def _accepted_later(send: Callable[[], urllib3.BaseHTTPResponse], pauses: int) -> urllib3.BaseHTTPResponse:
    """Send a request, and again after each of the pauses that an overloaded API server asks for, as kubectl does."""
    answer = send()
    for _ in range(pauses):
        if (pause := asked_pause(answer)) is None:
            break
        answer.drain_conn()
        time.sleep(pause)
        answer = send()
    return answer


class _Tries(Retry):
    """Retries after errors, except timeouts."""

    def increment(self, *args: Any, **details: Any) -> Self:
        if isinstance(error := details.get("error"), urllib3.exceptions.TimeoutError):
            raise error
        return super().increment(*args, **details)


def asked_pause(answer: urllib3.BaseHTTPResponse) -> float | None:
    """Return the seconds after which a response asks for the same request again; None if it does not."""
    given = str(answer.headers.get("Retry-After", ""))
    if not (answer.status == 429 or answer.status >= 500) or not (given.isascii() and given.isdigit()):
        return None
    return float(given) if len(given) < 3 else None


def _line(name: str, value: str) -> str:
    """Return a header's value for http.client, which sends its bytes, UTF-8 or not, as kubectl does."""
    if _CONTROL.search(value):
        raise CommandError(f"The value of {name} has control characters: correct the kubeconfig or the option.")
    return value.encode(errors="surrogateescape").decode("latin-1")  # http.client encodes headers as latin-1


def _show(context: ssl.SSLContext, certificate: Pair, access: Access) -> None:
    """Load the client's certificate into a context. Python's ssl reads it only from files."""
    with tempfile.TemporaryDirectory() as folder:  # readable only by its owner
        chain, key = Path(folder, "certificate"), Path(folder, "key")
        chain.write_bytes(certificate[0])
        key.write_bytes(certificate[1])
        try:
            context.load_cert_chain(chain, key)
        except (ssl.SSLError, ValueError) as error:
            user = access.user_name or "without a name"
            raise CommandError(f"The client certificate of user {user} and its key cannot be used: {error}.") from error


def _socket_options() -> list[tuple[int, int, int]]:
    found = [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _PROBES if hasattr(socket, name)]
    # These replace urllib3's default options.
    return [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *found,
    ]


def _login(proxy: str) -> tuple[str, str]:
    """Return the name and password in a proxy's URL, which escapes characters such as @; empty without them."""
    parts = urlsplit(proxy)
    return unquote(parts.username or ""), unquote(parts.password or "")


def _socks(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    if find_spec("socks") is None:
        shown = proxies.without_login(proxy)
        raise CommandError(f"The proxy {shown} needs the package PySocks: `pip install pysocks`.")
    from urllib3.contrib.socks import SOCKSProxyManager

    # As with kubectl, the proxy resolves names.
    return SOCKSProxyManager(proxy.replace("socks5://", "socks5h://", 1), **settings)
