"""An API server in this process that gives commands the answers that a test sets, and a kubeconfig for it."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import yaml

Answer = tuple[int, str]
NO_PAGE = (404, "404 page not found\n")


class Asked(NamedTuple):
    """A request that the server has received."""

    method: str
    path: str
    query: dict[str, list[str]]
    authorization: str
    kind: str
    """The body's content type."""
    body: Any


class Server(ThreadingHTTPServer):
    """Serves one answer per path; of a list of answers, each request gets the next one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer | list[Answer]] = {}
        self.asked: list[Asked] = []
        self.retry_after = ""
        """The header of answers with the codes 429 and 503."""


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        """Record a request, and answer it."""
        url, headers = urlsplit(self.path), self.headers
        sent = self.rfile.read(int(headers.get("Content-Length") or 0))
        kind, authorization = headers.get("Content-Type", ""), headers.get("Authorization", "")
        body = json.loads(sent or "null")
        self.server.asked.append(Asked(self.command, url.path, parse_qs(url.query), authorization, kind, body))
        found = self.server.answers.get(url.path, NO_PAGE)
        code, text = found.pop(0) if isinstance(found, list) else found
        self.send_response(code)
        self.send_header("Content-Type", "application/json" if text[:1] in ("{", "[") else "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        if self.server.retry_after and code in (429, 503):
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


def status(code: int, reason: str, message: str, **details: Any) -> Answer:
    """Return a Status object with which the API server rejects a request."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return code, json.dumps(body | {"code": code, "details": details})


def kubeconfig(folder: Path, url: str, **context: str) -> Path:
    """Return a kubeconfig whose context `test` is not the current context."""
    path = folder / "config"
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "jane", "user": {"token": "secret"}}],
        "contexts": [{"name": "test", "context": {"cluster": "here", "user": "jane", **context}}],
    }
    path.write_text(yaml.safe_dump(found))
    return path
