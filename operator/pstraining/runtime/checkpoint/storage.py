"""Checkpoints: the state of training in a folder, whole or not there at all.

A checkpoint is a folder `ckpt-<step>-term-<n>` with `state.npz` (tensors by logical name), a file for some rows of each
tensor that the servers wrote themselves, and `metadata.json`. It is written under another name, forced to disk and
renamed, so a reader sees all of it or nothing. Tensors are stored as the model knows them, not as the servers hold
them: any number of servers can take them up.

One chief writes at a time. One that was superseded, and does not know it yet, deletes and replaces nothing of a later
one's: names carry the term (`naming`), and it looks at the markers (`fencing`) before it writes, renames and deletes.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from pstraining.runtime.checkpoint import arrays, files, manifest, naming
from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.fencing import FolderTerm, Writer, markers, take
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.parts import WritesParts
from pstraining.runtime.checkpoint.state import StateBlocks
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.events import event

ARRAYS: Final = "state.npz"
_TRIALS: Final = 3
"""How often the rehearsal is tried: another chief that starts at the same time may sweep it away."""


class Checkpoints:
    """The checkpoints of a job in one folder; `open` it to write.

    Args:
        folder: where they are.
        keep: how many of the newest stay.
        writer: the identity of the chief that writes.
        damaged: reads what the servers wrote, and finds what is damaged.
    """

    def __init__(
        self, folder: Path, *, keep: int, writer: Writer | None = None, damaged: FindDamaged = find_damaged
    ) -> None:
        self.folder, self._keep, self._writer = folder, keep, writer or Writer()
        self._damaged = damaged
        self._term: FolderTerm | None = None

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, whether or not they can be read, the newest last."""
        return [key.step for key in sorted(self._found())]

    def path(self, step: int) -> Path:
        """The folder of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: there is none.
        """
        return self._newest_of(step)[1]

    def newest(self) -> StoredState | None:
        """Return the newest state that can be read, with every byte checked; report those that cannot.

        The folder is looked at again after each: a chief that has yet to notice that it is superseded may have
        replaced the one that could not be read by the next.
        """
        tried: set[tuple[Path, int]] = set()
        while True:
            found = {key: path for key, path in self._found().items() if (path, _identity(path)) not in tried}
            if not found:
                return None
            key = max(found)
            identity = _identity(found[key])
            try:
                return self._load(key, found[key])
            except CorruptCheckpointError as error:
                if identity == _identity(found[key]) != 0:
                    event("checkpoint_unreadable", step=key.step, reason=str(error), path=str(found[key]))
                    tried.add((found[key], identity))

    def load(self, step: int) -> StoredState:
        """The state of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: a part is missing, damaged or of another format.
        """
        return self._load(*self._newest_of(step))

    def open(self) -> None:
        """Make the folder if it is not there, see that it can hold checkpoints, and take its next term.

        Raises:
            SettingsError: it cannot hold them. That it is full is no reason: room may be made.
            SupersededError: it is a later chief's.
        """
        try:
            files.make_folder(self.folder)
            cannot = self._rehearse()
            if cannot is None:
                self._term = take(self.folder, self._writer)
        except OSError as error:
            if error.errno in files.FULL:
                return
            raise SettingsError(
                f"checkpoint.path: {self.folder} cannot be written to ({error.strerror or error}): mount a volume "
                "there, or give another path"
            ) from None
        if cannot is not None:
            raise SettingsError(
                f"checkpoint.path: the volume of {self.folder} cannot {cannot}, which every checkpoint needs: mount "
                "one with a file system that can (a block volume, NFS, CephFS; not an object store) there, or give "
                "another path"
            )

    def save(self, state: StateBlocks, *, term: int, layout: Layout) -> Path:
        """Write a checkpoint and delete superfluous ones; returns its folder.

        Args:
            state: what is saved.
            term: the chief's, as its job counts; it is written down for people.
            layout: of the state on the servers.

        Raises:
            OSError: it could not be written; nothing is left of it, and what was there before still is.
            SupersededError: the folder is another chief's by now, whose checkpoints are as they were.
            Exception: the state's own, when its blocks cannot be read; nothing is left either.
        """
        files.make_folder(self.folder)
        own = self._own()
        self._sweep(own.number)
        try:
            return self._write(state, term, layout, own)
        except OSError:
            own.check()  # a later chief has swept away what was being written
            self._sweep(own.number)
            raise
        except Exception:  # the state cannot be read any more
            self._sweep(own.number)
            raise

    def write_whole(self, name: str, write: Callable[[Path], Any]) -> None:
        """Let `write` make a file beside the checkpoints, whole or not at all; another one of that name is replaced.

        Raises:
            OSError: it could not be written; what was there before still is.
            SupersededError: the folder is another chief's by now.
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
            own.check()
            raise
        finally:
            files.remove(temporary)
        files.sync_folder(self.folder)

    def write_folder_whole(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Write files in a folder beside the checkpoints, all or none; another folder of that name is replaced.

        Args:
            name: of the folder.
            contents: of the files, by name.

        Raises:
            OSError: it could not be written; what was there before still is.
            SupersededError: the folder is another chief's by now.
        """
        own = self._own()
        final = self.folder / name
        temporary, aside = (self.folder / naming.temporary(own.number, f"{kind}-{name}") for kind in ("new", "former"))
        files.remove(temporary)  # of a save that was cut off
        try:
            temporary.mkdir()
            for file, content in contents.items():
                files.write_durably(temporary / file, partial(_fill, content=content))
            files.sync_folder(temporary)
            own.check()
            files.replace_folder(temporary, final, aside=aside)
        except OSError:
            own.check()
            if aside.exists() and not final.exists():
                os.rename(aside, final)
            raise
        finally:
            files.remove(temporary)
            files.remove(aside)
        files.sync_folder(self.folder)

    def _own(self) -> FolderTerm:
        """This chief's term, taken now if the disk was full before."""
        self._term = self._term or take(self.folder, self._writer)
        self._term.check()
        return self._term

    def _found(self) -> dict[Key, Path]:
        """Where each checkpoint is: one that was being replaced, when its writer died, has another name."""
        if not self.folder.is_dir():
            return {}
        names = os.listdir(self.folder)
        named = {naming.key_of(name): self.folder / name for name in names}
        aside = {naming.set_aside(name): self.folder / name for name in names}
        return {key: path for key, path in (aside | named).items() if key is not None}

    def _load(self, key: Key, path: Path) -> StoredState:
        try:
            said = manifest.decode((path / manifest.NAME).read_text(encoding="utf-8"), key)
            found = StoredState(path / ARRAYS, key.step, said)
        except (CorruptCheckpointError, MemoryError):
            raise
        except Exception as error:  # a damaged byte makes the libraries raise errors of many kinds
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
            term = max(markers(self.folder), default=0) + 1  # so that no chief that is there sweeps it
            folder = self.folder / naming.temporary(term, f"trial-{secrets.token_hex(4)}")
            try:
                return files.rehearse(folder)
            except FileNotFoundError:
                if trial == _TRIALS - 1:
                    raise
            finally:
                files.remove(folder)
        return None

    def _write(self, state: StateBlocks, term: int, layout: Layout, own: FolderTerm) -> Path:
        key = Key(own.number, state.step)
        final = self.folder / key.name
        temporary = self.folder / naming.temporary(own.number, f"{secrets.token_hex(4)}-{final.name}")
        temporary.mkdir()
        entries = state.entries
        parts = state.write_parts(temporary) if isinstance(state, WritesParts) else {}
        rest = state.without(parts) if isinstance(state, WritesParts) else state
        files.write_durably(temporary / ARRAYS, lambda file: arrays.write(file, rest))
        content = manifest.encode(key, term, entries, parts, layout)
        files.write_durably(temporary / manifest.NAME, lambda file: file.write(content))
        files.sync_folder(temporary)
        own.check()
        files.replace_folder(temporary, final, aside=self.folder / naming.aside(own.number, final.name))
        files.sync_folder(self.folder)
        own.check()
        found = self._found()
        for other in naming.superfluous(found, written=key, keep=self._keep):
            files.remove(found[other])
        self._sweep(own.number)
        return final

    def _sweep(self, term: int) -> None:
        """Remove what a writer of this or an earlier term left; a checkpoint that it was replacing gets its name."""
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


def _fill(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def _identity(path: Path) -> int:
    """Return a folder's identity, which a later folder of its name does not share; 0 without a folder."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
