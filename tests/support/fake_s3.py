"""An S3 server in memory, on loopback, whose replies a test can spoil.

It implements what `pstraining.runtime.checkpoint.objects` needs, by the S3 API's reference: PutObject with
If-None-Match, CopyObject, GetObject, ListObjectsV2 in pages, DeleteObject, DeleteObjects and multipart uploads.
"""

import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 50
"""Number of keys in a page of a list."""


class Request(NamedTuple):
    """A request, as a fault sees it."""

    method: str
    key: str
    query: Mapping[str, str]


@dataclass
class Fault:
    """How the server spoils a reply."""

    status: int = 200
    code: str = ""
    """S3's name of the error."""
    after: bool = False
    """Whether the request has its effect first."""
    cut: int | None = None
    """Number of bytes after which the body ends, and the connection."""
    flip: bool = False
    """Whether one bit of the body differs."""


DENIED = Fault(403, "AccessDenied")
EXPIRED = Fault(400, "ExpiredToken")
SLOW_DOWN = Fault(503, "SlowDown")
BROKEN = Fault(500, "InternalError")


@dataclass
class FakeS3:
    """The objects of one bucket, the requests so far, and the fault of each next request."""

    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    fault: Callable[[Request], Fault | None] = lambda _: None
    ignores_conditions: bool = False
    """Whether the store ignores If-None-Match, as old stores do."""
    url: str = ""
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that uses this store."""
        return environment(self.url)


def environment(url: str) -> dict[str, str]:
    """Return the environment of a program that uses the store at `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def serving(host: str = "127.0.0.1", port: int = 0) -> Iterator[FakeS3]:
    """Serve an empty store, with the path-style address `<url>/<bucket>/<key>`, until the context ends.

    Args:
        host: address to listen on.
        port: port to listen on; 0: a free one.
    """
    store = FakeS3()
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    store.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: FakeS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_PUT(self) -> None:
        self._serve()

    do_GET = do_HEAD = do_DELETE = do_POST = do_PUT  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Request(self.command, key, query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.store.lock:
            self.store.requests.append(request)
            fault = self.store.fault(request) if self._is_signed(request) else DENIED
            if fault is None or fault.after or fault.status == 200:
                status, content = self._effect(request, body)
            if fault is not None and fault.status != 200:
                status, content = fault.status, _error(fault.code)
        if self.command == "GET" and status == 200 and (range_ := self.headers.get("Range")):
            begin, end = range_.removeprefix("bytes=").split("-")
            last = min(int(end or len(content)), len(content) - 1)
            self._reply(206, content[int(begin) : last + 1], fault, f"bytes {begin}-{last}/{len(content)}")
        else:
            self._reply(status, content, fault)

    def _is_signed(self, request: Request) -> bool:
        """Whether the request has a signature, in a header or in its URL. The server does not verify it."""
        return "Authorization" in self.headers or "X-Amz-Signature" in request.query

    def _reply(self, status: int, content: bytes, fault: Fault | None, range_: str = "") -> None:
        if fault is not None and fault.flip and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if range_:
            self.send_header("Content-Range", range_)
        self.send_header("ETag", '"etag"')
        self.send_header("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is not None and fault.cut is not None:
            self.wfile.write(content[: fault.cut])
            self.close_connection = True
            return
        self.wfile.write(content)

    def _effect(self, request: Request, body: bytes) -> tuple[int, bytes]:
        objects, query = self.store.objects, request.query
        if request.method == "POST":
            return self._post(request, body)
        if request.method == "PUT" and "uploadId" in query:
            self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, b""
        if request.method == "PUT":
            conditional = self.headers.get("If-None-Match") == "*" and not self.store.ignores_conditions
            if conditional and request.key in objects:
                return 412, _error("PreconditionFailed")
            if source := self.headers.get("x-amz-copy-source"):
                content = objects.get(unquote(source).lstrip("/").partition("/")[2])
                if content is None:
                    return 404, _error("NoSuchKey")
                objects[request.key] = content
                return 200, b'<CopyObjectResult><ETag>"etag"</ETag></CopyObjectResult>'
            objects[request.key] = body
            return 200, b""
        if request.method == "DELETE":
            (self.store.uploads if "uploadId" in query else objects).pop(query.get("uploadId", request.key), None)
            return 204, b""
        if "list-type" in query:
            return 200, self._list(query)
        if request.key not in objects:
            return 404, _error("NoSuchKey")
        return 200, objects[request.key]

    def _post(self, request: Request, body: bytes) -> tuple[int, bytes]:
        if "delete" in request.query:
            keys = [element.text or "" for element in ET.fromstring(body).iter() if element.tag.endswith("Key")]
            for key in keys:
                self.store.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode()
        if "uploads" in request.query:
            upload = f"upload-{len(self.store.requests)}"
            self.store.uploads[upload] = {}
            content = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return 200, content.encode()
        parts = self.store.uploads.pop(request.query["uploadId"])
        self.store.objects[request.key] = b"".join(parts[number] for number in sorted(parts))
        return 200, b'<CompleteMultipartUploadResult><ETag>"etag"</ETag></CompleteMultipartUploadResult>'

    def _list(self, query: Mapping[str, str]) -> bytes:
        after = query.get("continuation-token") or query.get("start-after") or ""
        found = sorted(key for key in self.store.objects if key.startswith(query.get("prefix", "")) and key > after)
        page = found[:PAGE]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
            '<LastModified>2026-11-27T00:00:00.000Z</LastModified><ETag>"etag"</ETag></Contents>'
            for key in page
        )
        more = len(found) > PAGE
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{truncated}{token}{contents}</ListBucketResult>".encode()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>fake</Message></Error>".encode()
