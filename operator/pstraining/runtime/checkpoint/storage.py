"""Checkpoints: folders with the state of training, each complete or absent.

A checkpoint is a folder `ckpt-<step>-term-<n>`. `state.npz` has the tensors by logical name, further files have rows
that the servers wrote themselves, and `metadata.json` lists both. An incremental save writes only the rows of tables
that have changed, and links the files of the checkpoint before: every folder is whole without any other. The folder is
written under another name, forced to disk and renamed, which is atomic for readers. Tensors are stored in the model's
shapes, not in the servers' slices, and therefore restore to any number of servers.

One chief writes at a time. A superseded chief that has not noticed it yet neither deletes nor replaces checkpoints of
a later one: names contain the term (`naming`), and the chief checks the markers (`fencing`) before it writes,
renames and deletes.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from pstraining.runtime.checkpoint import arrays, files, manifest, naming
from pstraining.runtime.checkpoint.arrays import ARRAYS, StoredState
from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.errors import (
    CorruptCheckpointError,
    none_readable,
    not_writable,
    reporting_leftovers,
)
from pstraining.runtime.checkpoint.fencing import FolderTerm, Writer, markers, take
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.parts import SavedParts, WritesParts, write_parts
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace
from pstraining.runtime.checkpoint.ports.ranges import OpenFile
from pstraining.runtime.checkpoint.state import StateBlocks
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.events import event

_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between the attempts at a volume that does not answer."""
_TRIALS: Final = 3
"""Maximum number of trials: another chief that starts at the same time may delete a trial's folder."""
_Found = TypeVar("_Found")


class Checkpoints:
    """The checkpoints of a job in one folder; `open` it to write.

    Args:
        folder: the folder of the checkpoints.
        keep: how many of the newest checkpoints are kept.
        writer: the identity of the chief that writes.
        damaged: reads the files that the servers wrote, and returns the damaged ones.
        links: whether saves may be incremental, which links files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        writer: Writer | None = None,
        damaged: FindDamaged = find_damaged,
        links: bool = False,
    ) -> None:
        self.folder, self._keep, self._writer = folder, keep, writer or Writer()
        self.location = str(folder)
        """The folder, for messages."""
        self._damaged, self._links = damaged, links
        self._term: FolderTerm | None = None
        self._last: SavedParts | None = None

    def remedy(self, error: OSError) -> str:
        """Return what a user can do about a failed save."""
        full = error.errno in files.FULL
        return f"Make room in {self.folder}" if full else f"Check that {self.folder} can be written to"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, including unreadable ones, the newest last."""
        return [key.step for key in sorted(self._found())]

    def path(self, step: int) -> Path:
        """Return the folder of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: the step has no checkpoint.
        """
        return self._newest_of(step)[1]

    def newest(self) -> StoredState | None:
        """Return the newest readable state, with every byte checked, and report the unreadable ones.

        Returns:
            None without a checkpoint.

        Raises:
            UnusableCheckpointsError: no checkpoint can be read, or a later version wrote one.
            OSError: the volume does not answer at present, or denies access; an older checkpoint would lose steps.
        """
        # A superseded chief may still replace or delete checkpoints: the folder is listed again after each failure.
        tried: dict[tuple[Path, int], CorruptCheckpointError] = {}
        while found := {key: (path, _identity(path)) for key, path in self._found().items()}:
            key = max((key for key, one in found.items() if one not in tried), default=None)
            if key is None:
                raise none_readable(self.location, max(found).step, tried[found[max(found)]])
            path, identity = found[key]
            try:
                return self._load(key, path)
            except CorruptCheckpointError as error:
                if identity == _identity(path) != 0:
                    event("checkpoint_unreadable", step=key.step, reason=str(error), path=str(path))
                    tried[path, identity] = error
        return None

    def load(self, step: int) -> StoredState:
        """Return the state of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: a part is missing, damaged or of another format.
        """
        return self._load(*self._newest_of(step))

    def open(self) -> None:
        """Create the folder if it is missing, check that its volume can hold checkpoints, and take its next term.

        A full disk is not an error: it may have room again before the first save. A volume that does not answer gets
        about a minute.

        Raises:
            SettingsError: the folder cannot be written to, or its volume lacks an operation.
            SupersededError: the folder belongs to a later chief.
            OSError: the volume does not answer at present, or has become read-only; another pod may mount it again.
        """
        try:
            cannot = _patiently(self._prepare)
        except OSError as error:
            if error.errno != errno.EIO:  # which a volume may have for good
                raise
            raise not_writable(self.folder, error) from None
        if cannot is not None and cannot.startswith(files.LINK):
            raise SettingsError(
                f"checkpoint.fullEvery: the volume of {self.folder} cannot {cannot}, which incremental saves need: "
                "remove the field, or mount another volume"
            )
        if cannot is not None:
            raise SettingsError(
                f"checkpoint.path: the volume of {self.folder} cannot {cannot}, which every checkpoint needs: mount "
                "one with a file system that can (a block volume, NFS, CephFS; not an object store) there, or give "
                "another path"
            )

    def _prepare(self) -> str | None:
        """Try all operations of a save, and take the folder's next term; return the operation that fails.

        Raises:
            OSError: see `open`.
        """
        try:
            files.make_folder(self.folder)
            cannot = self._rehearse()
            if cannot is None:
                self._term = take(self.folder, self._writer)
        except OSError as error:
            if error.errno in files.FULL:
                return None
            if error.errno in files.PASSING:
                raise
            raise not_writable(self.folder, error) from None
        return cannot

    @property
    def base(self) -> int | None:
        """The copy of the servers that an incremental save may continue; None: the next save is full."""
        return self._last.copy if self._last else None

    def save(self, state: StateBlocks, *, term: int, layout: Layout) -> Path:
        """Write a checkpoint, delete superfluous ones, and return the new one's folder.

        Args:
            state: the state to save.
            term: the chief's term in its job, which the manifest has for human readers.
            layout: the layout of the state on the servers.

        Raises:
            OSError: the checkpoint could not be written. Its files are deleted, and earlier checkpoints are kept.
            SupersededError: the folder belongs to another chief now, whose checkpoints are unchanged.
            Exception: the state's blocks could not be read. The files of the checkpoint are deleted.
        """
        own, (last, self._last) = self._own(), (self._last, None)
        self._sweep(own.number)
        try:
            return self._write(state, term, layout, own, last)
        except Exception as error:  # also of the state's blocks, such as after the loss of a server
            with suppress(OSError):  # the first error names the cause; the next save deletes what is left
                if isinstance(error, OSError):
                    own.check()  # a later chief deletes the files of an earlier one's save: report that instead
                self._sweep(own.number)
            raise

    def size(self, step: int) -> int:
        """Return the size of the newest checkpoint of a step in bytes."""
        return sum(file.stat().st_size for file in self.path(step).iterdir())

    def write_whole(self, name: str, write: Callable[[Path], object]) -> None:
        """Create or replace a file beside the checkpoints in one operation.

        Args:
            name: the file's name.
            write: writes the content to a path.

        Raises:
            OSError: the file could not be written. A former file of this name is kept.
            SupersededError: the folder belongs to another chief now.
        """
        own = self._own()
        temporary = self.folder / naming.temporary(own.number, name)
        try:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            own.check()
            temporary.replace(self.folder / name)
        except OSError:
            with suppress(OSError):
                own.check()
            raise
        finally:
            files.remove(temporary)
        files.sync_folder(self.folder)

    def write_folder_whole(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Create or replace a folder of files beside the checkpoints; readers see all of the new files or none.

        Args:
            name: the folder's name.
            contents: the content of each file, by name.

        Raises:
            OSError: a file could not be written. A former folder of this name is kept.
            SupersededError: the folder belongs to another chief now.
        """
        own = self._own()
        final = self.folder / name
        temporary, aside = (self.folder / naming.temporary(own.number, f"{kind}-{name}") for kind in ("new", "former"))
        files.remove(temporary)  # an interrupted call may have left it
        try:
            temporary.mkdir()
            for file, content in contents.items():
                files.write_durably(temporary / file, partial(_fill, content=content))
            files.sync_folder(temporary)
            own.check()
            files.replace_folder(temporary, final, aside=aside)
        except OSError:
            with suppress(OSError):
                own.check()
            with suppress(OSError):
                if aside.exists() and not final.exists():
                    os.rename(aside, final)
            raise
        finally:
            files.remove(temporary)
            files.remove(aside)
        files.sync_folder(self.folder)

    def _own(self) -> FolderTerm:
        """Return this chief's term, which is taken now if the folder was not opened, or its disk was full then."""
        files.make_folder(self.folder)
        self._term = self._term or take(self.folder, self._writer)
        self._term.check()
        return self._term

    def _found(self) -> dict[Key, Path]:
        """Return the folder of each checkpoint. One has a temporary name if its writer crashed while replacing it."""
        if not self.folder.is_dir():
            return {}
        names = os.listdir(self.folder)
        named = {naming.key_of(name): self.folder / name for name in names}
        aside = {naming.set_aside(name): self.folder / name for name in names}
        return {key: path for key, path in (aside | named).items() if key is not None}

    def _load(self, key: Key, path: Path) -> StoredState:
        """Return a stored state. A volume that does not answer gets about a minute: an older state would lose steps.

        Raises:
            CorruptCheckpointError: a part is missing, damaged, of another format, or unreadable for all that time.
            OSError: the file may be whole, see `files.NO_DAMAGE`.
        """
        try:
            return _patiently(lambda: self._try_to_load(key, path))
        except OSError as error:
            if error.errno != errno.EIO:  # which damaged sectors have, too
                raise
            raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error

    def _try_to_load(self, key: Key, path: Path) -> StoredState:
        try:
            described = manifest.decode((path / manifest.NAME).read_text(encoding="utf-8"), key)
            found = StoredState(OpenFile(path / ARRAYS), key.step, described, FolderPlace(path))
        except (CorruptCheckpointError, FinalError, MemoryError):
            raise
        except Exception as error:  # a damaged byte makes the libraries raise errors of many kinds
            if isinstance(error, OSError) and error.errno in files.NO_DAMAGE:
                raise
            raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error
        found.check_parts(self._damaged)
        return found

    def _newest_of(self, step: int) -> tuple[Key, Path]:
        found = [item for item in self._found().items() if item[0].step == step]
        if not found:
            raise CorruptCheckpointError(f"there is no checkpoint of step {step}")
        return max(found)

    def _rehearse(self) -> str | None:
        for trial in range(_TRIALS):
            term = max(markers(self.folder), default=0) + 1  # chiefs of the present terms do not delete its folder
            folder = self.folder / naming.temporary(term, f"trial-{secrets.token_hex(4)}")
            try:
                return files.rehearse(folder, links=self._links)
            except FileNotFoundError:
                if trial == _TRIALS - 1:
                    raise
            finally:
                files.remove(folder)
        return None

    def _write(self, state: StateBlocks, term: int, layout: Layout, own: FolderTerm, last: SavedParts | None) -> Path:
        key = Key(own.number, state.step)
        final = self.folder / key.name
        temporary = self.folder / naming.temporary(own.number, f"{secrets.token_hex(4)}-{final.name}")
        temporary.mkdir()
        entries = state.entries
        parts, rest = write_parts(state, FolderPlace(temporary), last, partial(_link, temporary))
        files.write_durably(temporary / ARRAYS, lambda file: arrays.write(file, rest))
        content = manifest.encode(key, term, entries, parts, layout)
        files.write_durably(temporary / manifest.NAME, lambda file: file.write(content))
        files.sync_folder(temporary)
        own.check()
        files.replace_folder(temporary, final, aside=self.folder / naming.aside(own.number, final.name))
        files.sync_folder(self.folder)
        with reporting_leftovers(key.step):
            own.check()
            found = self._found()
            for other in naming.superfluous(found, written=key, keep=self._keep):
                files.remove(found[other])
            self._sweep(own.number)
        if self._links and parts and isinstance(state, WritesParts):
            self._last = SavedParts(state.copy, str(final), parts)
        return final

    def _sweep(self, term: int) -> None:
        """Remove temporary files of this and earlier terms; restore the name of a checkpoint that was set aside."""
        for name in os.listdir(self.folder):
            theirs = naming.term_of_temporary(name)
            if theirs is None or theirs > term:
                continue
            meant = naming.set_aside(name)
            if meant is not None and not os.path.lexists(self.folder / meant.name):
                with suppress(OSError):
                    os.rename(self.folder / name, self.folder / meant.name)
            else:
                files.remove(self.folder / name)


def _patiently(call: Callable[[], _Found]) -> _Found:
    """Return what a function returns, which is called again for about a minute while it raises OSError."""
    waits = iter(_WAITS)
    while True:
        try:
            return call()
        except OSError as error:
            if (wait := next(waits, None)) is None or error.errno == errno.EROFS:
                raise
            event("waiting", what="the volume of the checkpoints", reason=str(error), seconds=wait)
        time.sleep(wait)


def _fill(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def _identity(path: Path) -> int:
    """Return the inode number of a folder or a link, which distinguishes it from its replacement; 0 if it is gone."""
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def _link(folder: Path, former: Mapping[str, str]) -> None:
    """Link files of an earlier checkpoint into a folder."""
    for file, path in former.items():
        os.link(path, folder / file)
