"""Parameter servers write and read a checkpoint's large tensors themselves if they have access to its files.

A trial shows the access (`file_access`): before a save every server writes a file that the chief reads, and before a
restore every server reads a file of the checkpoint. Without access the tensors pass through the chief.
"""

import errno
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

import tensorflow as tf

from pstraining.runtime.checkpoint import checksums
from pstraining.runtime.checkpoint.parts import Parts, StoredParts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.state.file_access import FileAccess, access_to
from pstraining.runtime.chief.state.file_plan import ChangedPiece, FilePiece, PlannedChange, PlannedChanges, PlannedFile
from pstraining.runtime.model.tensor import Tensor, TracedFunction
from pstraining.runtime.ps.saving.part_files import PartFiles
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.store import int64
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import PSClient, ShardLostError

POLL: Final = 0.1
"""Seconds between two calls of `between` while servers write."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class ServerFiles:
    """The chief's functions over the files of all servers.

    Args:
        client: the connection to the servers.
        members: every shard's parts on its members, first the one whose state is saved.
        most: see `ShardParts.units`.
        demand: calls a function on all servers; raises `FencedError` if a server's result is not 1, its acceptance.
    """

    def __init__(
        self, client: PSClient, members: Sequence[Sequence[ShardParts]], most: int, demand: Callable[..., None]
    ) -> None:
        self._client, self._demand = client, demand
        self._members = [[PartFiles(member) for member in own] for own in members]
        at = dict(zip(client.shards, client.addresses, strict=True))
        self._addresses = [[at[member.shard.device] for member in own] for own in members]
        self._units = [own[0].units(most) for own in members]
        self._traced: dict[Hashable, TracedFunction] = {}
        self._reported: dict[str, str | None] = {}
        self._interrupted = False

    def write(
        self,
        place: PartPlace,
        planned: Mapping[str, Sequence[PlannedFile]],
        token: int,
        between: Callable[[], None],
        changes: PlannedChanges | None = None,
    ) -> dict[str, Parts]:
        """Let the servers write files of their copies to a place, and make them durable.

        Args:
            place: the place of the checkpoint that is being written.
            planned: the files of each tensor, by name.
            token: the copy's name.
            between: called repeatedly meanwhile; may raise to end the writing.
            changes: the files of changed rows; None for a complete copy.

        Returns:
            The files of each tensor, by name; empty if not all servers have access to the place.

        Raises:
            FencedError: a server no longer keeps the copy.
            OSError: a file could not be stored, or a server has no access to the place and the copy is incomplete.
        """
        if not planned and changes is None:
            return {}
        access = self._access(place)
        # An error of a volume may appear as the loss of a server, and would end every save. The save after such a loss
        # therefore passes through the chief.
        reason = "the servers' last save was interrupted" if self._interrupted else None
        self._interrupted = False
        try:
            if reason is None:
                reason = access.unavailable or self._why_not(access, between)
            _report(self._reported, "save", reason)
            if reason and changes is not None:
                raise OSError(errno.EIO, f"the servers cannot write the changed rows: {reason}")
            if reason:
                return {}
            files = [*(file for own in planned.values() for file in own), *(changes.files if changes else ())]
            written = self._write_all(access, files, token, between)
        except ShardLostError:
            self._interrupted = True
            raise
        except OSError:
            # What a trial does not show, such as a proxy's limit of a body's size, would end every save.
            self._interrupted = access.makes_copies
            raise
        found = {
            name: Parts(files[0].width, [one.file._replace(checksum=written[one.name]) for one in files])
            for name, files in planned.items()
        }
        return found | (_changed_parts(changes, written) if changes else {})

    def find_damaged(self, place: PartPlace, expected: Mapping[str, str]) -> list[str]:
        """Distribute files to the servers for reading, and return the files that do not have the given checksums.

        This process reads again the files that servers could not read, or found damaged.

        Raises:
            OSError: an object store does not answer at present.
        """
        suspects, access = list(expected), self._access(place)
        with suppress(ShardLostError):
            if self._all_read(access, suspects[0], expected[suspects[0]]):
                shares = [(shard, suspects[shard :: len(self._members)]) for shard in range(len(self._members))]
                found = _in_parallel(
                    {shard: share for shard, share in shares if share},
                    lambda shard, name: (name, self._checksum(access, shard, 0, name)),
                )
                suspects = [name for name, checksum in found if checksum != expected[name]]
        return checksums.find_damaged(place, {name: expected[name] for name in suspects})

    def load(
        self, stored: StoredParts | None, pieces: Sequence[FilePiece | ChangedPiece], fence: int, token: Tensor
    ) -> set[str]:
        """Let every member of each shard read its rows, between `begin` and `finish`.

        Args:
            stored: the files of the checkpoint; None if it has none.
            pieces: the rows that each shard reads.
            fence: the chief's fence.
            token: the token of `ShardParts.begin`. int64[].

        Returns:
            The names of the tensors that the servers now have; none if a server cannot read the files.

        Raises:
            FencedError: a server is under another term.
        """
        if not pieces or stored is None:
            return set()
        access, first, expected = self._access(stored.place), pieces[0].file, stored.checksums
        reason = access.unavailable
        if reason is None and not self._all_read(access, first, expected[first]):
            reason = "not every server reads a file"
        of_shards: dict[int, list[FilePiece | ChangedPiece]] = {}
        for piece in pieces:
            of_shards.setdefault(piece.shard, []).append(piece)
        if reason is None:
            try:
                _in_parallel(of_shards, lambda _, piece: self._load(access, expected, piece, fence, token))
            except OSError as error:
                reason = str(error)
        _report(self._reported, "restore", reason)
        return set() if reason else {piece.name for piece in pieces}

    def copy_file(self, shard: int, member: int, source: str, target: str) -> None:
        """Let a server copy a file.

        Raises:
            OSError: the server cannot.
        """
        self._call(("copy", shard, member), self._members[shard][member].copy, source, target)

    def put_file(self, shard: int, member: int, path: str, content: bytes) -> None:
        """Let a server replace a file.

        Raises:
            OSError: the server cannot.
        """
        self._call(("put", shard, member), self._members[shard][member].put, path, tf.constant(content))

    def _access(self, place: PartPlace) -> FileAccess:
        return access_to(place, self, self._addresses, self._client.cluster)

    def _why_not(self, access: FileAccess, between: Callable[[], None]) -> str | None:
        """Return why the files of a server do not reach a place; None if those of all servers do."""
        each = {shard: [access] for shard in range(len(self._members))}
        found = _in_parallel(each, lambda shard, access: (shard, access.why_not(shard)), between)
        return next((f"parameter server {shard}: {reason}" for shard, reason in found if reason), None)

    def _write_all(
        self, access: FileAccess, files: Sequence[PlannedFile | PlannedChange], token: int, between: Callable[[], None]
    ) -> dict[str, str]:
        """Let the servers write files, and return each file's checksum by its name."""
        of_shards: dict[int, list[PlannedFile | PlannedChange]] = {}
        for file in files:
            of_shards.setdefault(file.shard, []).append(file)
        return dict(_in_parallel(of_shards, lambda _, file: self._write(access, file, token), between))

    def _write(self, access: FileAccess, file: PlannedFile | PlannedChange, token: int) -> tuple[str, str]:
        member = self._members[file.shard][0]
        key, begin, end, emit = self._write_call(member, file)
        given = int64(token), int64(begin), int64(end), access.path(file.shard, file.name), tf.constant(file.header)
        is_there, checksum = self._call(key, emit, *given)
        if not is_there:
            raise FencedError(f"parameter server {file.shard} no longer keeps the copy that is being saved")
        access.store(file.shard, file.name, file.size)
        return file.name, checksums.as_text(checksum)

    def _write_call(
        self, member: PartFiles, file: PlannedFile | PlannedChange
    ) -> tuple[Hashable, int, int, Callable[..., object]]:
        """Return the key of a traced function that writes a file, the file's range of rows, and the operations."""
        if isinstance(file, PlannedChange):
            key = "write changed", file.shard, file.table, file.part
            return key, file.begin, file.begin + file.rows, partial(member.write_changed, file.table, file.part)
        window = file.window
        unit = self._units[window.shard][window.unit]
        return ("write", window.shard, window.unit), window.begin, window.end, partial(member.write, unit)

    def _load(
        self,
        access: FileAccess,
        expected: Mapping[str, str],
        piece: FilePiece | ChangedPiece,
        fence: int,
        token: Tensor,
    ) -> None:
        members, unit = self._members[piece.shard], self._units[piece.shard][piece.unit]
        is_changed = isinstance(piece, ChangedPiece)

        def load(*given: Tensor) -> list[Tensor]:
            emits = [partial(one.load_changed if is_changed else one.load, unit) for one in members]
            return [self._client.to_local(emit(*given)) for emit in emits]

        given: tuple[Tensor, ...]
        if isinstance(piece, ChangedPiece):
            names = [piece.file, piece.indices]
            files = tf.constant([access.path(piece.shard, name) for name in names])
            given = files, tf.constant(piece.skips, tf.int64), tf.constant(piece.numbers, tf.int64)
        else:
            names = [piece.file]
            file = tf.constant(access.path(piece.shard, piece.file))
            given = file, int64(piece.skip), tf.constant(piece.rows, tf.int64)
        there = [(member, name) for member in range(len(members)) for name in names]
        for member, name in there:
            access.fetch(piece.shard, member, name)
            if access.makes_copies and self._read_checksum(access, piece.shard, member, name) != expected[name]:
                raise OSError(errno.EIO, "a parameter server's copy does not match its checksum", name)
        with _file_errors():
            self._demand(
                self._function(("load", is_changed, piece.shard, piece.unit), load), int64(fence), token, *given
            )
        for member, name in there:
            access.release(piece.shard, member, name)

    def _all_read(self, access: FileAccess, name: str, checksum: str) -> bool:
        """Return whether every member of every shard reads a file with this checksum."""
        each = {shard: list(range(len(own))) for shard, own in enumerate(self._members)}
        found = _in_parallel(each, lambda shard, member: self._checksum(access, shard, member, name, is_trial=True))
        return set(found) == {checksum}

    def _checksum(self, access: FileAccess, shard: int, member: int, name: str, *, is_trial: bool = False) -> str:
        """Return the checksum of a file that a server reads; empty if the server cannot read the file."""
        with suppress(OSError):
            access.fetch(shard, member, name, is_trial=is_trial)
            found = self._read_checksum(access, shard, member, name)
            access.release(shard, member, name)
            return found
        return ""

    def _read_checksum(self, access: FileAccess, shard: int, member: int, name: str) -> str:
        emit = self._members[shard][member].checksum
        return checksums.as_text(self._call(("checksum", shard, member), emit, access.path(shard, name)))

    def _call(self, key: Hashable, emit: Callable[..., object], *arguments: object) -> Tensor:
        given = [tf.constant(argument) if isinstance(argument, str) else argument for argument in arguments]
        with _file_errors():
            return self._client.call(self._function(key, lambda *own: self._client.to_local(emit(*own))), *given)

    def _function(self, key: Hashable, emit: Callable[..., object]) -> TracedFunction:
        if key not in self._traced:
            self._traced[key] = tf.function(emit, autograph=False)
        return self._traced[key]


def _changed_parts(changes: PlannedChanges, written: Mapping[str, str]) -> dict[str, Parts]:
    """Return the files of changed rows with their checksums, by the tensors' names."""
    widths = {file.name: file.width for file in changes.files}
    return {
        name: Parts(
            widths[files[0].name] if files else 0,
            [],
            [one._replace(checksum=written[one.name], checksum_of_indices=written[one.indices]) for one in files],
        )
        for name, files in changes.tensors.items()
    }


def _in_parallel(
    items: Mapping[int, Sequence[Item]],
    work: Callable[[int, Item], Result],
    between: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Do work for all servers in parallel, for each server's items in sequence, and return all results.

    Args:
        items: each server's items, by the server's number.
        work: called with a server's number and an item.
        between: called repeatedly until all calls have ended. After an exception of `between` or `work` no further
            item is started.
    """
    over = threading.Event()

    def run(shard: int) -> list[Result]:
        return [work(shard, item) for item in items[shard] if not over.is_set()]

    with ThreadPoolExecutor(len(items), "pstraining-server-files") as pool:
        running = [pool.submit(run, shard) for shard in items]
        try:
            while (ended := wait(running, POLL, FIRST_EXCEPTION)).not_done:
                for done in ended.done:
                    done.result()
                between()
            return [result for done in running for result in done.result()]
        except BaseException:
            over.set()
            while wait(running, POLL).not_done:  # a transfer of another server may take half a minute
                between()
            raise


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise OSError instead of the error of TensorFlow's operations on files."""
    try:
        yield
    except tf.errors.OpError as error:
        code = errno.ENOSPC if isinstance(error, tf.errors.ResourceExhaustedError) else errno.EIO
        lines = [line.strip() for line in str(error.message).splitlines()]
        # One line has the file and its error. Other lines may precede it.
        raise OSError(code, next((line for line in lines if "; " in line), lines[0])) from None


def _report(reported: dict[str, str | None], what: str, reason: str | None) -> None:
    """Report whether servers or the chief write or read large tensors; each change is reported once."""
    if what not in reported or reported[what] != reason:
        reported[what] = reason
        event(
            "checkpoint_way", what=what, by="chief" if reason else "servers", **({"reason": reason} if reason else {})
        )
