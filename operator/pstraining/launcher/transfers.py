"""Moves a file between this parameter server and an object store, by a URL that the chief has signed.

The chief writes the file and the request beside it through TensorFlow's server, as it writes all its markers. Only a
client that may use the server can therefore order a transfer; a POST to the status port merely starts it. The pod needs
no credentials for the object store.

This is one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Tuple  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import TRANSFER_FILE
else:
    from contract import TRANSFER_FILE

Answer = Tuple[int, "dict[str, object]"]  # noqa: UP006
"""HTTP status and content of the answer to a POST."""
NAME = re.compile(TRANSFER_FILE + "[0-9a-f]{16}")
TIMEOUT_SECONDS = 30.0
"""Seconds without a byte from the object store after which a transfer has failed."""
STALE_SECONDS = 600.0
"""Age in seconds from which a file of another transfer belongs to a chief that has ended."""
BLOCK_BYTES = 1 << 20


def transfer(folder: str, name: str) -> Answer:
    """Carry out a transfer once.

    The request `<name>.json` has the method, PUT or GET, and the URL. It is deleted before the transfer, an uploaded
    file after it. A download replaces the file, and a download that fails leaves it unchanged.

    Args:
        folder: the folder of the requests and the files.
        name: the file's name.

    Returns:
        404 without such a request. Otherwise 200, with the object store's HTTP status as `status`, a reason as
        `message`, and the file's bytes as `size`. The status is 0 if the store did not answer, and 404 if there is no
        file to upload.
    """
    if not NAME.fullmatch(name):
        return 404, {"message": "there is no such transfer"}
    remove_stale(folder, name)
    path = os.path.join(folder, name)
    try:
        with open(f"{path}.json", encoding="utf-8") as file:
            request = json.load(file)
        os.unlink(f"{path}.json")
        method, url = str(request["method"]), str(request["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return 404, {"message": "there is no such transfer"}
    # The messages must not contain the URL, which permits the transfer to anybody.
    if method not in ("PUT", "GET") or not url.startswith(("https://", "http://")):
        return _failed(0, "only PUT and GET with HTTP or HTTPS are possible")
    try:
        status, size = _upload(url, path) if method == "PUT" else _download(url, path)
        return 200, {"status": status, "message": "", "size": size}
    except urllib.error.HTTPError as error:
        return _failed(error.code, str(error.reason))
    except urllib.error.URLError as error:
        return _failed(0, str(error.reason))
    except FileNotFoundError:
        return _failed(404, "the file is missing")
    except OSError as error:
        return _failed(0, error.strerror or type(error).__name__)
    except (ValueError, http.client.HTTPException) as error:
        return _failed(0, type(error).__name__)


def _failed(status: int, message: str) -> Answer:
    return 200, {"status": status, "message": message, "size": 0}


def remove_stale(folder: str, name: str) -> None:
    """Delete the files that chiefs which have ended have left, except those of a transfer."""
    for other in os.listdir(folder):
        if other.startswith(TRANSFER_FILE) and not other.startswith(name):
            path = os.path.join(folder, other)
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > STALE_SECONDS:
                    os.unlink(path)


def _upload(url: str, path: str) -> tuple[int, int]:
    """Upload a file, delete it, and return the status and the size."""
    with open(path, "rb") as file:
        # A length in advance, because the stores accept no chunked encoding.
        size = os.fstat(file.fileno()).st_size
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with _opened(urllib.request.Request(url, data=file, headers=headers, method="PUT")) as answer:  # noqa: S310
            status = int(answer.status)
    with contextlib.suppress(FileNotFoundError):  # the chief started the upload again, and that one ended first
        os.unlink(path)
    return status, size


def _download(url: str, path: str) -> tuple[int, int]:
    """Replace a file by an object, and return the status and the size."""
    # The chief repeats a request whose answer it lost, and the earlier download may still run: each has its own file.
    new = f"{path}.{os.urandom(4).hex()}"
    try:
        with _opened(urllib.request.Request(url)) as answer:  # noqa: S310 - the scheme was checked
            expected = answer.headers.get("Content-Length")
            with open(new, "wb") as file:
                shutil.copyfileobj(answer, file, BLOCK_BYTES)
                size = file.tell()
            if expected is not None and size != int(expected):
                raise http.client.IncompleteRead(b"")
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
    return int(answer.status), size


def _opened(request: urllib.request.Request) -> Any:
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
