"""A prefix of an object store behind a few operations. The only module that imports obstore.

The library retries server errors, throttling and interrupted bodies, and renews credentials that have a source. What is
left is an OSError here: a PermissionError for denied access, a FileNotFoundError for a missing object or bucket.
"""

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import obstore
from obstore import exceptions
from obstore.store import GCSStore, S3Store, from_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

RETRIES: "Final[RetryConfig]" = {
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    "retry_timeout": timedelta(seconds=60),
}
"""Repetitions of a request. The chief reports a failed save after a minute, and retries it later."""
TIMEOUTS: Final = ("AWS_TIMEOUT", "GOOGLE_TIMEOUT")
"""The library's variables with the time limit of one attempt at a request."""
PART_BYTES: Final = 8 << 20
"""Size of the parts in which `put_file` uploads a file."""
LIST_ATTEMPTS: Final = 3
"""Attempts at a list: the library continues an interrupted object, but not an interrupted list."""
ENCRYPTION: Final = ("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_")
"""Beginnings of the variables that request an encryption, which a signed URL does not contain."""
_IN_FLIGHT: Final = 2
_DENIED: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


class Bucket:
    """The objects below a prefix.

    Args:
        store: obstore's store, with the prefix.
        url: the prefix as a URI, for messages.
    """

    def __init__(self, store: "ObjectStore", url: str) -> None:
        self._store, self.url = store, url.rstrip("/")
        self.is_hurried, self._silence = False, ""

    @classmethod
    def at(cls, url: str, retries: "RetryConfig" = RETRIES) -> "Bucket":
        """Return the prefix of a URI. Credentials, region and endpoint come from the environment.

        Raises:
            OSError: the library does not accept the URI or the environment.
        """
        try:
            with _os_errors(url):
                if url.startswith("file:"):
                    return cls(from_url(url, mkdir=True), url)
                return cls(from_url(url, retry_config=retries), url)
        except ValueError as error:  # of the library's parser
            raise OSError(errno.EINVAL, str(error), url) from None

    def hurry(self, seconds: float) -> None:
        """Send no request for longer than some seconds, and no further request after one that was not answered.

        Raises:
            OSError: the library does not accept the environment any more.
        """
        if not self.url.startswith("file:"):
            retries: RetryConfig = {**RETRIES, "retry_timeout": timedelta(seconds=seconds / 2)}
            # As `client_options`, the timeout would replace the other options of the environment, such as a proxy.
            os.environ |= dict.fromkeys(TIMEOUTS, f"{round(500 * seconds)}ms")
            with _os_errors(self.url):
                self._store = from_url(self.url, retry_config=retries)
        self.is_hurried = True

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Create or replace an object in one operation."""
        with self._asking(self._of(key)):
            obstore.put(self._store, key, content, use_multipart=False)

    def create(self, key: str, content: bytes) -> bool:
        """Create an object in one operation; return False if there is one with this key.

        False may also be the reply to a repeated request whose first attempt succeeded.
        """
        try:
            with self._asking(self._of(key)):
                obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put_file(self, key: str, path: Path) -> None:
        """Create or replace an object by a file, in bounded memory; readers see all of it or none."""
        with self._asking(self._of(key)):
            obstore.put(
                self._store,
                key,
                path,
                use_multipart=path.stat().st_size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=_IN_FLIGHT,
            )

    def get(self, key: str) -> memoryview:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._asking(self._of(key)):
            return memoryview(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, begin: int, size: int) -> memoryview:
        """Return at most `size` bytes of an object from byte `begin` on, which the object has.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._asking(self._of(key)):
            return memoryview(obstore.get_range(self._store, key, start=begin, length=size))

    def size(self, key: str) -> int:
        """Return an object's size in bytes.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._asking(self._of(key)):
            return obstore.head(self._store, key)["size"]

    def why_unsigned(self) -> str | None:
        """Return why no URL can be signed that stores an object as `put` does; None if one can."""
        if not isinstance(self._store, S3Store | GCSStore):
            return "the store has no signed URLs"
        found = next((name for name in os.environ if name.upper().startswith(ENCRYPTION)), None)
        return f"a signed URL would not have the encryption that {found} requests" if found else None

    def sign(self, method: Literal["GET", "PUT"], key: str, seconds: float) -> str:
        """Return a URL with which an HTTP client without credentials can read or write an object for a time.

        Args:
            method: the HTTP method.
            key: the object's key.
            seconds: duration of the URL's validity.
        """
        if not isinstance(self._store, S3Store | GCSStore):
            raise OSError(errno.ENOTSUP, "the store has no signed URLs", self.url)
        with self._asking(self._of(key)):
            return obstore.sign(self._store, method, key, timedelta(seconds=seconds))

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object to a local file, in bounded memory.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._asking(self._of(key)):
            content = obstore.get(self._store, key).stream()
            with path.open("wb") as file:
                file.writelines(content)

    def sizes(self, folder: str | None = None) -> dict[str, int]:
        """Return the size of each object by its key: of all objects, or of those in a folder."""
        for attempt in range(LIST_ATTEMPTS):
            try:
                with self._asking(self.url):
                    listed = obstore.list(self._store, folder)
                    return {found["path"]: found["size"] for page in listed for found in page}
            except OSError as error:
                if error.errno != errno.EIO or attempt == LIST_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def copy(self, source: str, target: str) -> None:
        """Create or replace an object by another one, within the store.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._asking(self._of(source)):
            obstore.copy(self._store, source, target)

    def delete(self, keys: Collection[str]) -> None:
        """Delete objects; missing ones are no error."""
        if keys:
            with suppress(FileNotFoundError), self._asking(self.url):
                obstore.delete(self._store, sorted(keys))

    @contextmanager
    def _asking(self, place: str) -> Iterator[None]:
        """Raise the errors of a request as OSError. The process has no time for a second silent one once it hurries."""
        if self._silence:
            raise OSError(errno.EIO, self._silence, place)
        try:
            with _os_errors(place):
                yield
        except OSError as error:
            if self.is_hurried and error.errno == errno.EIO:
                self._silence = str(error.strerror)
            raise

    def _of(self, key: str) -> str:
        return f"{self.url}/{key}"


@contextmanager
def _os_errors(place: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(error), place) from None
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, _first_line(error), place) from None
    except _DENIED as error:
        raise PermissionError(errno.EACCES, _first_line(error), place) from None
    except exceptions.BaseError as error:
        raise OSError(errno.EIO, _first_line(error), place) from None


def _first_line(error: Exception) -> str:
    """Return the library's message without its appended structures."""
    return str(error).partition("\n\nDebug source")[0].strip()
