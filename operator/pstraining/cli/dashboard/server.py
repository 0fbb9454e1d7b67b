"""The HTTP server of the page: read-only, on loopback, and protected by a secret that each start creates.

The path must begin with the secret, and the Host header must name loopback. This excludes other web pages in the same
browser, other users of the machine, and DNS rebinding. Responses are data, never HTML; the page inserts them as text,
and its Content-Security-Policy allows no other origin.
"""

import hmac
import json
import math
import secrets
import socketserver
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from pstraining.api.text import printable
from pstraining.cli.dashboard.content import Content
from pstraining.cli.errors import CommandError, DeniedError, RequestError

LOOPBACK: Final = "127.0.0.1"
HOSTS: Final = (LOOPBACK, "localhost")
"""Host names of the page, with any port, because `ssh -L` may forward another one."""
FILES: Final = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "curves.js": ("curves.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
"""Files and their media types, by the path after the secret."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the path has the secret
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class DashboardServer(ThreadingHTTPServer):
    """Serves the page.

    Args:
        content: handles the page's requests.
        port: 0 for any free one.

    Raises:
        OSError: the port cannot be used.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, content: Content, port: int = 0) -> None:
        self.content = content
        self.token = secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without the DNS lookup of HTTPServer."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, except of a connection that the browser closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    server_version, sys_version = "pstraining", ""
    timeout = 30

    def do_GET(self) -> None:
        """Send a file of the page, or the response to one of its requests."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"Not for this host name.\n")
            return
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"The address is not a URL.\n")
            return
        token, slash, rest = parts.path.removeprefix("/").partition("/")
        if not (slash and hmac.compare_digest(token.encode(), self.server.token.encode())):
            text = b"Use the address that `kubectl pstraining dashboard` printed last.\n"
            self._send(HTTPStatus.NOT_FOUND, "text/plain", text)
        elif found := FILES.get(rest):
            self._send(HTTPStatus.OK, found[1], files(__package__).joinpath(found[0]).read_bytes())
        else:
            status, answer = answered(self.server.content, rest, dict(parse_qsl(parts.query)))
            self._send(status, "application/json", json.dumps(shown(answer), allow_nan=False).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal only shows the address."""


def answered(content: Content, what: str, given: dict[str, str]) -> tuple[HTTPStatus, Any]:
    """Handle a request of the page.

    Args:
        content: the data of the page.
        what: name of the requested data.
        given: the request's parameters.
    """
    handlers: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "jobs": (content.jobs, ()),
        "job": (content.job, ("namespace", "name")),
        "curves": (content.curves, ("namespace", "name")),
        "log": (content.log, ("namespace", "name", "pod", "after", "previous")),
    }
    if what not in handlers:
        return HTTPStatus.NOT_FOUND, {"error": "There is nothing here."}
    answer, parameters = handlers[what]
    try:
        return HTTPStatus.OK, answer(*(given.get(name, "") for name in parameters))
    except DeniedError as error:
        return HTTPStatus.FORBIDDEN, {"error": str(error)}
    except RequestError as error:
        return HTTPStatus.BAD_GATEWAY, {"error": str(error)}
    except CommandError as error:
        return HTTPStatus.NOT_FOUND, {"error": str(error)}
    except ValueError as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error)}


def shown(answer: Any) -> Any:
    """Return an answer in which all texts are printable, and numbers that are not finite are None, as JSON requires."""
    if isinstance(answer, dict):
        return {key: shown(value) for key, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [shown(value) for value in answer]
    if isinstance(answer, str):
        return printable(answer, "\n\t")
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer
