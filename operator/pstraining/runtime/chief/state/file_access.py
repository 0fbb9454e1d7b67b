"""The ways in which parameter servers reach the files of a checkpoint: a shared folder, or URLs that the chief signs.

In a shared folder, a server reads and writes the file itself. For an object store, the server's launcher moves the file
between the store and a folder of the server's pod. The chief signs a URL for each transfer, so a server needs no
credentials. It writes the URL through the server's own device, as it writes all of the server's state, and then starts
the transfer at the launcher's status port.
"""

import errno
import hashlib
import http.client
import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol

from pstraining.api import contract
from pstraining.launcher import keepalive
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.objects.place import ObjectsPlace
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace, PartPlace
from pstraining.runtime.config.cluster import Cluster

RETRY_SECONDS: Final = 60.0
"""Seconds in which a transfer is repeated, as the chief's own requests are."""
BACKOFF_SECONDS: Final = 0.25
"""Seconds between the first two attempts; they double with each attempt, up to LONGEST_BACKOFF."""
LONGEST_BACKOFF: Final = 5.0
CONNECT_SECONDS: Final = 5.0
TRANSFER_SECONDS: Final = 120.0
"""Time limit in seconds for one attempt at a transfer. The launcher gives up after 30 s without a byte."""
TRIAL_SECONDS: Final = 10.0
"""Time limit in seconds for one attempt at the upload of a trial: after its failure the chief still has to save."""
TRIAL_RETRY_SECONDS: Final = 2.0
"""Seconds in which the transfer of a trial is repeated."""
NO_ANSWER: Final = 0
"""The status of a transfer whose store, or launcher, did not answer."""
WORTH_A_RETRY: Final = (NO_ANSWER, 408, 429, 500, 502, 503, 504)
"""Statuses of transfers that may succeed later. A launcher without transfers answers 501."""


class ServerCalls(Protocol):
    """Operations on files that the servers run themselves. Servers are named by shard and member."""

    def copy_file(self, shard: int, member: int, source: str, target: str) -> None:
        """Let a server copy a file.

        Raises:
            OSError: the server cannot.
        """

    def put_file(self, shard: int, member: int, path: str, content: bytes) -> None:
        """Let a server replace a file.

        Raises:
            OSError: the server cannot.
        """


class FileAccess(Protocol):
    """The servers' access to the files of one place. Member 0 of a shard writes."""

    unavailable: str | None
    """Why no server has access; None if trials show it."""
    makes_copies: bool
    """Whether a server reads a copy of a file, which may have been damaged on its way."""

    def why_not(self, shard: int) -> str | None:
        """Return why the files that a server writes do not reach the place; None if they do, as a trial shows."""

    def path(self, shard: int, name: str) -> str:
        """Return the path at which the members of a shard read and write a file."""

    def store(self, shard: int, name: str, size: int) -> None:
        """Make a file durable that a server has written.

        Raises:
            OSError: the file has another size, or could not be stored.
        """

    def fetch(self, shard: int, member: int, name: str, *, is_trial: bool = False) -> None:
        """Bring a file to the path at which a server reads it; as a trial, without patience.

        Raises:
            OSError: the file is missing, or could not be brought.
        """

    def release(self, shard: int, member: int, name: str) -> None:
        """Free the space of a file that a server has read."""


class NoAccess:
    """No access, for a reason; see `FileAccess` for its methods, of which those that move files raise OSError."""

    makes_copies = False

    def __init__(self, reason: str) -> None:
        self.unavailable: str | None = reason

    def why_not(self, shard: int) -> str | None:
        """Return the reason."""
        return self.unavailable

    def path(self, shard: int, name: str) -> str:
        """Return the name, at which there is no file."""
        return name

    def store(self, shard: int, name: str, size: int) -> None:
        """Raise OSError."""
        raise OSError(errno.ENOTSUP, self.unavailable, name)

    def fetch(self, shard: int, member: int, name: str, *, is_trial: bool = False) -> None:
        """Raise OSError."""
        raise OSError(errno.ENOTSUP, self.unavailable, name)

    def release(self, shard: int, member: int, name: str) -> None:
        """Do nothing: there is no file."""


class SharedFolder:
    """Access to a folder of a volume that the servers mount as well; see `FileAccess` for its methods.

    Args:
        place: the folder.
        servers: the servers' operations on files.
    """

    makes_copies = False

    def __init__(self, place: FolderPlace, servers: ServerCalls) -> None:
        self._folder, self._servers = place.folder, servers
        self.unavailable: str | None = None
        """Trials show the access."""

    def why_not(self, shard: int) -> str | None:
        """Let a server copy a file that this process has just written, and compare the copy."""
        question, answer = (self._folder / f"{kind}-{shard}" for kind in ("question", "answer"))
        content = secrets.token_hex(16)
        question.write_text(content, encoding="ascii")
        try:
            self._servers.copy_file(shard, 0, str(question), str(answer))
            return None if answer.read_text(encoding="ascii") == content else "it has another volume"
        except OSError as error:
            return str(error)
        finally:
            answer.unlink(missing_ok=True)
            question.unlink()

    def path(self, shard: int, name: str) -> str:
        """Return the path of a file in the folder."""
        return str(self._folder / name)

    def store(self, shard: int, name: str, size: int) -> None:
        """Force a file to disk.

        Raises:
            OSError: the file has another size, or cannot be forced to disk.
        """
        path = self._folder / name
        with path.open("rb") as written:
            _check_size(os.fstat(written.fileno()).st_size, size, str(path))
            os.fsync(written.fileno())

    def fetch(self, shard: int, member: int, name: str, *, is_trial: bool = False) -> None:
        """Do nothing: the server reads the file in the folder."""

    def release(self, shard: int, member: int, name: str) -> None:
        """Do nothing: the file belongs to the checkpoint."""


class SignedTransfers:
    """Access to an object store by the servers' launchers; see `FileAccess` for its methods.

    Args:
        place: the objects of a checkpoint.
        servers: the servers' operations on files.
        addresses: TensorFlow's address of each member of every shard.
    """

    makes_copies = True

    def __init__(self, place: ObjectsPlace, servers: ServerCalls, addresses: Sequence[Sequence[str]]) -> None:
        self._place, self._servers, self._addresses = place, servers, addresses
        self.unavailable: str | None = None
        """Trials show the access."""
        self._nonce = secrets.token_bytes(16)  # two chiefs, or two operations, never use the same file

    def why_not(self, shard: int) -> str | None:
        """Let a server store a small file, and compare the object."""
        name, content = f"trial-{shard}", secrets.token_hex(16).encode()
        try:
            self._servers.put_file(shard, 0, self.path(shard, name), content)
            self._upload(shard, name, len(content), TRIAL_SECONDS, TRIAL_RETRY_SECONDS)
            found = self._place.content(name)
            self._place.remove(name)
            return None if found == content else "it stores another object"
        except (OSError, CorruptCheckpointError) as error:
            return str(error)

    def path(self, shard: int, name: str) -> str:
        """Return the path of a file in the folder of the server's pod."""
        return f"{contract.RUN_DIR}/{self._file(shard, name)}"

    def store(self, shard: int, name: str, size: int) -> None:
        """Let a server's launcher upload a file, and delete it.

        Raises:
            OSError: the file has another size, or could not be uploaded.
        """
        self._upload(shard, name, size, TRANSFER_SECONDS, RETRY_SECONDS)

    def fetch(self, shard: int, member: int, name: str, *, is_trial: bool = False) -> None:
        """Let a server's launcher download a file.

        Raises:
            OSError: the file is missing, or could not be downloaded.
        """
        self._transfer("GET", shard, member, name, TRANSFER_SECONDS, TRIAL_RETRY_SECONDS if is_trial else RETRY_SECONDS)

    def release(self, shard: int, member: int, name: str) -> None:
        """Empty a downloaded file. The launcher deletes empty files, like all others, when they are old."""
        self._servers.put_file(shard, member, self.path(shard, name), b"")

    def _upload(self, shard: int, name: str, size: int, limit: float, repeated: float) -> None:
        try:
            _check_size(self._transfer("PUT", shard, 0, name, limit, repeated), size, name)
        except OSError:
            # The answer to an attempt that has stored the file may be lost. No other file has the object's key.
            if self._size(name) != size:
                raise

    def _size(self, name: str) -> int | None:
        with suppress(OSError):
            return self._place.size(name)
        return None

    def _file(self, shard: int, name: str) -> str:
        digest = hashlib.blake2b(f"{shard}/{name}".encode(), digest_size=8, key=self._nonce).hexdigest()
        return f"{contract.TRANSFER_FILE}{digest}"

    def _transfer(
        self, method: Literal["GET", "PUT"], shard: int, member: int, name: str, limit: float, repeated: float
    ) -> int:
        """Carry out a transfer, in several attempts with a new URL each, and return the file's size in bytes.

        Args:
            method: whether the server's launcher downloads or uploads.
            shard, member: the server.
            name: the file's name.
            limit: time limit for one attempt, in seconds.
            repeated: seconds in which attempts are repeated.
        """
        end, pause = time.monotonic() + repeated, BACKOFF_SECONDS
        while True:
            request = {"method": method, "url": self._place.sign(method, name)}
            self._servers.put_file(shard, member, f"{self.path(shard, name)}.json", json.dumps(request).encode())
            status, message, size = _start(self._addresses[shard][member], self._file(shard, name), limit)
            if 200 <= status < 300:
                return size
            if status not in WORTH_A_RETRY or time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_BACKOFF)
        verb = "upload" if method == "PUT" else "download"
        reason = f"{status} {message}" if status else message
        raise OSError(errno.EIO, f"its launcher could not {verb} a file ({reason})", f"{self._place.store}/{name}")


def access_to(
    place: PartPlace, servers: ServerCalls, addresses: Sequence[Sequence[str]], cluster: Cluster
) -> FileAccess:
    """Return the servers' access to a place.

    Args:
        place: the place.
        servers: the servers' operations on files.
        addresses: TensorFlow's address of each member of every shard.
        cluster: the job.
    """
    if isinstance(place, FolderPlace):
        return SharedFolder(place, servers)
    if not isinstance(place, ObjectsPlace):
        return NoAccess("the place of the files is unknown")
    if not cluster.in_pod:
        return NoAccess("outside of pods, no launcher runs beside a parameter server")
    reason = place.why_unsigned()
    return NoAccess(reason) if reason else SignedTransfers(place, servers, addresses)


def _start(address: str, file: str, seconds: float) -> tuple[int, str, int]:
    """Start a transfer at a launcher, and wait for its end; return the store's status, a reason, and the file's size.

    Args:
        address: TensorFlow's address of the server.
        file: the name of the file in the folder of the server's pod.
        seconds: time limit for the transfer.
    """
    host, _, port = address.rpartition(":")
    number = int(port) + contract.STATUS_PORT - contract.TF_PORT
    connection = http.client.HTTPConnection(host.strip("[]"), number, timeout=CONNECT_SECONDS)
    began = False
    try:
        connection.connect()
        connection.sock.settimeout(seconds)
        keepalive.set_options(connection.sock, keepalive.PROBES)  # a lost node sends no end of the connection
        connection.request("POST", f"{contract.TRANSFERS_PATH}{file}", headers={"Content-Length": "0"})
        began = True
        answer = connection.getresponse()
        if answer.status != 200:
            return answer.status, "the launcher knows no such transfer", 0
        content = json.loads(answer.read())
        return int(content["status"]), str(content["message"]), int(content["size"])
    except (OSError, http.client.HTTPException) as error:
        if began and isinstance(error, TimeoutError):
            return NO_ANSWER, f"the store has not answered within {seconds:g} s", 0
        return NO_ANSWER, f"no answer on port {number}: {error}", 0
    except (ValueError, KeyError, TypeError):
        return NO_ANSWER, f"the answer on port {number} is not a launcher's", 0
    finally:
        connection.close()


def _check_size(found: int, expected: int, name: str) -> None:
    if found != expected:
        raise OSError(errno.EIO, "a parameter server has written another number of bytes", name)
