"""The sources that `-f` can name, as in kubectl: files, folders, patterns, URLs, and - for standard input."""

import base64
import codecs
import glob
import os
import re
import string
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import quote, unquote_to_bytes, urlsplit

from pstraining.cli.errors import ArgumentError, CommandError

STDIN = "-"
EXTENSIONS = (".json", ".yaml", ".yml")
"""Extensions of the files that are read in a folder."""
_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 30.0
_LOGIN = re.compile(r"(?<=:)//[^/?#]*@")
"""The login of a URL, which no message has."""
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

_PACKED = {
    b"\x1f\x8b": "Unpack it first, with gunzip; render a Helm chart (.tgz) with `helm template`.",
    b"PK\x03\x04": "Unpack it first, with unzip.",
}
"""The first bytes of packed files, and what to do."""


@dataclass(frozen=True)
class ManifestSource:
    """The text of a source."""

    name: str
    """The source's name, for messages."""
    text: str


def sources(named: Iterable[str], recursive: bool) -> Iterator[ManifestSource | CommandError]:
    """Yield the texts that `-f` names, in order, and an error for each unreadable one.

    Args:
        named: the values of `-f`; a value may list several names, separated by commas.
        recursive: whether to read subfolders of folders.

    Raises:
        ArgumentError: standard input is named twice.
    """
    every = [part for value in named for part in _split(value)]
    if every.count(STDIN) > 1:
        raise ArgumentError("Standard input can be read once: remove the second -f -.")
    for name in every:
        if name == STDIN:
            yield _standard_input()
        elif name.startswith(("http://", "https://")):
            yield _downloaded(name)
        else:
            yield from _files(name, recursive)


def _standard_input() -> ManifestSource | CommandError:
    name = "standard input"
    try:
        # Without a standard input (<&-), Python has no stream for it.
        return _decoded(name, sys.stdin.buffer.read() if sys.stdin else b"")
    except OSError as error:
        return CommandError(f"{name} cannot be read: {error.strerror or error}")


def _split(value: str) -> list[str]:
    """Split a value at commas, as kubectl does, unless it is a URL or an existing file."""
    if "," not in value or os.path.exists(value) or value.startswith(("http://", "https://")):
        return [value]
    return [part for part in value.split(",") if part]


def _files(name: str, recursive: bool) -> Iterator[ManifestSource | CommandError]:
    matches = [name] if os.path.exists(name) else sorted(glob.glob(name, include_hidden=True))
    if not matches:
        yield CommandError(f"{name} cannot be read: no such file or folder, and no file matches it as a pattern.")
    for match in matches:
        if os.path.isdir(match):
            yield from _folder(match, recursive)
        else:
            yield _file(match)


def _folder(folder: str, recursive: bool) -> Iterator[ManifestSource | CommandError]:
    found, errors = False, list[OSError]()
    for place, below, names in os.walk(folder, onerror=errors.append):
        below[:] = sorted(below) if recursive else []
        for name in sorted(names):
            if name.endswith(EXTENSIONS):
                found = True
                yield _file(os.path.join(place, name))
    # Without them, a part of the manifests would be missing in silence.
    yield from (CommandError(f"{error.filename} cannot be read: {error.strerror}.") for error in errors)
    if not (found or errors):
        hint = "" if recursive else " With -R, its subfolders are also read."
        yield CommandError(f"{folder} has no file that ends in {', '.join(EXTENSIONS)}.{hint}")


def _file(name: str) -> ManifestSource | CommandError:
    try:
        with open(name, "rb") as file:
            return _decoded(name, file.read())
    except OSError as error:
        return CommandError(f"{name} cannot be read: {error.strerror or error}")


def text_of(data: bytes) -> str:
    """Return a file's text: UTF-8, or UTF-16 with a byte order mark, which editors and PowerShell of Windows write.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    encoding = next((found for mark, found in _MARKS.items() if data.startswith(mark)), "utf-8")
    return data.decode(encoding)


def _decoded(name: str, data: bytes) -> ManifestSource | CommandError:
    try:
        return ManifestSource(name, text_of(data))
    except UnicodeDecodeError as error:
        if way_out := next((way for mark, way in _PACKED.items() if data.startswith(mark)), ""):
            return CommandError(f"{name} cannot be read: it is compressed. {way_out}")
        line = data[: error.start].count(b"\n") + 1
        return CommandError(
            f"{name} cannot be read: line {line} has the byte 0x{data[error.start]:02x}, which is not UTF-8. Save the "
            "file as UTF-8."
        )


def _request(url: str) -> urllib.request.Request:
    """Return kubectl's request: spaces and characters beyond ASCII are escaped, and a login is a header."""
    parts = urlsplit(url)
    path, query = (quote(part, safe=string.punctuation, errors="surrogateescape") for part in (parts.path, parts.query))
    login, _, host = parts.netloc.rpartition("@")
    found = urllib.request.Request(parts._replace(netloc=host, path=path, query=query).geturl())  # noqa: S310 - http(s)
    if login:
        pair = unquote_to_bytes(login if ":" in login else f"{login}:")
        found.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    return found


def _downloaded(url: str) -> ManifestSource | CommandError:
    why, shown = "", _LOGIN.sub("//", url)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            with urllib.request.urlopen(_request(url), timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - http(s)
                return _decoded(shown, answer.read())
        except urllib.error.HTTPError as error:
            why = f"the server responded with {error.code} {error.reason}"
            if error.code < 500:
                break
        except urllib.error.URLError as error:
            why = str(error.reason)
        except (OSError, HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
    return CommandError(f"{shown} cannot be read: {why}.")
