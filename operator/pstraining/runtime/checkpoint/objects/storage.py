"""Checkpoints below a prefix of an object store, each complete or absent.

A checkpoint's state is one file of tensors, `state.npz`, in segments, which passes through the chief in bounded memory.
Tensors that the servers wrote themselves are in separate objects (`parts`). The manifest `metadata.json` is written
last, and has sizes and checksums.

One chief writes at a time, as on a volume: keys contain the term of the prefix (`keys`), and the chief checks the
markers (`fencing`) before it writes a manifest or deletes.
"""

import errno
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Final, cast

from pstraining.runtime.checkpoint import arrays, files, manifest, naming
from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, none_readable, reporting_leftovers
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.fencing import BucketTerm, take
from pstraining.runtime.checkpoint.objects.keys import Attempt
from pstraining.runtime.checkpoint.objects.place import ObjectsPlace
from pstraining.runtime.checkpoint.objects.segments import SEGMENT_BYTES, SegmentedFile, SegmentWriter
from pstraining.runtime.checkpoint.parts import Parts, SavedParts, WritesParts, write_parts
from pstraining.runtime.checkpoint.state import StateBlocks
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.events import event

HURRIED: Final = (
    "Requests were repeated only while the pod had time to stop: for more, raise terminationGracePeriodSeconds in the "
    "template of the pod with the chief's work"
)
COPIES: Final = 8
"""Number of objects that are copied at once within the store."""


class BucketCheckpoints:
    """The checkpoints of a job below one prefix; see `CheckpointStorage` for its methods.

    Args:
        bucket: the prefix.
        keep: how many of the newest checkpoints are kept.
        writer: the identity of the chief that writes.
        damaged: reads the files that the servers wrote, and returns the damaged ones.
        links: whether saves may be incremental, which copies objects within the store.
        segment_bytes: size of the segments.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        keep: int,
        writer: Writer | None = None,
        damaged: FindDamaged = find_damaged,
        links: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._bucket, self._keep, self._writer, self._segment_bytes = bucket, keep, writer or Writer(), segment_bytes
        self._damaged, self._links = damaged, links
        self.location = bucket.url
        """The prefix as a URI."""
        self._term: BucketTerm | None = None
        self._last: SavedParts | None = None

    def open(self) -> None:
        """Take the prefix's next term, which shows that the store honors conditional writes.

        Raises:
            SettingsError: access is denied, there is no such bucket, or the store ignores conditions.
            SupersededError: the prefix belongs to a later chief.
            OSError: the store does not answer at present.
        """
        try:
            self._term = take(self._bucket, self._writer)
        except (PermissionError, FileNotFoundError) as error:
            raise SettingsError(
                f"checkpoint.path: {self.location} cannot be written to ({error.strerror}): give the chief's pod "
                "credentials by its environment or its service account, or give another URI"
            ) from None

    def hurry(self, seconds: float) -> None:
        """Bound the requests of the last save; see `RemoteStorage`."""
        with suppress(OSError):  # the environment has changed: the requests are not bounded
            self._bucket.hurry(seconds)

    def remedy(self, error: OSError) -> str:
        """Return what a user can do about a failed save."""
        if error.errno in files.FULL:  # of a result, which is first written to a local file
            return f"Make room in {gettempdir()}, the folder for temporary files"
        advice = f"Check that {self.location} can be written to, and that the credentials are valid"
        return f"{advice}. {HURRIED}" if self._bucket.is_hurried else advice

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, including unreadable ones, the newest last."""
        return [key.step for key in sorted({attempt.key for attempt in self._found()})]

    def newest(self) -> StoredState | None:
        """Return the newest readable state, with every byte checked, and report the unreadable ones.

        Returns:
            None without a checkpoint.

        Raises:
            UnusableCheckpointsError: no checkpoint can be read, or a later version wrote one.
            OSError: the store does not answer at present; an older checkpoint would lose steps.
        """
        tried: dict[Attempt, CorruptCheckpointError] = {}
        while listed := self._found():  # again each time: a superseded chief may still delete
            if not (found := listed - tried.keys()):
                raise none_readable(self.location, max(listed).key.step, tried[max(listed)])
            attempt = max(found)
            try:
                return self._load(attempt)
            except CorruptCheckpointError as error:
                tried[attempt] = error  # an attempt never changes
                if attempt in self._found():
                    path = f"{self.location}/{attempt.folder}"
                    event("checkpoint_unreadable", step=attempt.key.step, reason=str(error), path=path)
        return None

    def load(self, step: int) -> StoredState:
        """Return the state of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: a part is missing, damaged or of another format.
            OSError: the store does not answer at present.
        """
        return self._load(self._newest_of(step))

    @property
    def base(self) -> int | None:
        """The copy of the servers that an incremental save may continue; None: the next save is full."""
        return self._last.copy if self._last else None

    def save(self, state: StateBlocks, *, term: int, layout: Layout) -> str:
        """Write a checkpoint, delete superfluous ones, and return the new one's URI.

        Args:
            state: the state to save.
            term: the chief's term in its job, which the manifest has for human readers.
            layout: the layout of the state on the servers.

        Raises:
            OSError: the checkpoint could not be written. Earlier checkpoints are kept; its objects are deleted now or
                by the next save.
            SupersededError: the prefix belongs to another chief now, whose checkpoints are unchanged.
            Exception: the state's blocks could not be read.
        """
        own, (last, self._last) = self._own(), (self._last, None)
        with suppress(OSError):  # it repeats the end of the last save, which has reported the error
            self._sweep(own.number)
        try:
            return self._write(state, term, layout, own, last)
        except Exception:
            with suppress(OSError):  # the store may not answer: the next save deletes what is left
                own.check()
                self._sweep(own.number)
            raise

    def size(self, step: int) -> int:
        """Return the size of the newest checkpoint of a step in bytes."""
        return sum(self._bucket.sizes(self._newest_of(step).folder).values())

    def write_whole(self, name: str, write: Callable[[Path], object]) -> None:
        """Create or replace an object beside the checkpoints in one operation.

        Args:
            name: the object's name.
            write: writes the content to a path in the folder for temporary files.

        Raises:
            OSError: the object could not be written. A former one of this name is kept.
            SupersededError: the prefix belongs to another chief now.
        """
        own = self._own()
        with TemporaryDirectory(prefix="pstraining-") as folder:
            path = Path(folder) / name
            write(path)
            own.check()
            self._bucket.put_file(name, path)

    def write_folder_whole(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Create or replace objects beside the checkpoints, one after the other; others of that folder are deleted.

        Args:
            name: the beginning of their keys, before a slash.
            contents: the content of each object, by the rest of its key.

        Raises:
            OSError: an object could not be written. Some are the former ones then.
            SupersededError: the prefix belongs to another chief now.
        """
        self._own()
        for file, content in contents.items():
            self._bucket.put(f"{name}/{file}", content)
        self._bucket.delete(self._bucket.sizes(name).keys() - {f"{name}/{file}" for file in contents})

    def _own(self) -> BucketTerm:
        """Return this chief's term, after a check that it is the highest one."""
        self._term = self._term or take(self._bucket, self._writer)
        self._term.check()
        return self._term

    def _found(self) -> set[Attempt]:
        return keys.whole(self._bucket.sizes())

    def _newest_of(self, step: int) -> Attempt:
        found = [attempt for attempt in self._found() if attempt.key.step == step]
        if not found:
            raise CorruptCheckpointError(f"there is no checkpoint of step {step}")
        return max(found)

    def _load(self, attempt: Attempt) -> StoredState:
        try:
            text = bytes(self._bucket.get(attempt.manifest)).decode()
            described = manifest.decode(text, attempt.key)
            file = SegmentedFile(described.segments, lambda index: self._bucket.get(attempt.segment(index)))
            found = StoredState(file, attempt.key.step, described, ObjectsPlace(self._bucket, attempt.folder))
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"{error.filename} is missing") from None
        except (CorruptCheckpointError, FinalError, MemoryError, OSError):
            raise
        except Exception as error:  # a damaged byte makes the libraries raise errors of many kinds
            raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error
        found.check_parts(self._damaged)
        return found

    def _write(self, state: StateBlocks, term: int, layout: Layout, own: BucketTerm, last: SavedParts | None) -> str:
        key = Key(own.number, state.step)
        attempt = keys.next_attempt(self._bucket.sizes(key.name), key, secrets.token_hex(4))
        entries, place = state.entries, ObjectsPlace(self._bucket, attempt.folder)
        parts, rest = write_parts(state, place, last, partial(self._copy, attempt))
        with SegmentWriter(partial(self._put, attempt), self._segment_bytes) as file:
            arrays.write(cast(IO[bytes], file), rest)  # the archive needs no more than `write` and `flush`
            segments = file.finish()
        self._check_stored(attempt, parts)
        content = manifest.encode(key, term, entries, parts, layout, segments)
        own.check()
        self._bucket.put(attempt.manifest, content)
        with reporting_leftovers(key.step):
            own.check()
            self._retire(attempt, own.number)
        if self._links and parts and isinstance(state, WritesParts):
            self._last = SavedParts(state.copy, attempt.folder, parts)
        return f"{self.location}/{attempt.folder}"

    def _check_stored(self, attempt: Attempt, parts: Mapping[str, Parts]) -> None:
        """Raise OSError if an object of the parts is missing: others have stored them."""
        wanted = {f"{attempt.folder}/{file}" for own in parts.values() for file in own.checksums}
        if missing := wanted and wanted - self._bucket.sizes(attempt.folder).keys():
            raise OSError(errno.ENOENT, "an object was not stored", f"{self.location}/{min(missing)}")

    def _copy(self, attempt: Attempt, former: Mapping[str, str]) -> None:
        """Copy objects of an earlier checkpoint within the store."""
        with ThreadPoolExecutor(COPIES, "pstraining-copy") as pool:
            copies = [pool.submit(self._bucket.copy, key, f"{attempt.folder}/{file}") for file, key in former.items()]
        for copy in copies:
            copy.result()

    def _put(self, attempt: Attempt, index: int, content: bytearray) -> None:
        self._bucket.put(attempt.segment(index), content)

    def _retire(self, written: Attempt, term: int) -> None:
        """Delete superfluous checkpoints and earlier attempts at this one, their manifests first; then sweep."""
        listed = set(self._bucket.sizes())
        found = keys.whole(listed)
        gone = set(naming.superfluous({one.key for one in found}, written=written.key, keep=self._keep))
        former = [one for one in found if one.key == written.key and one < written]
        retired = {one.manifest for one in found if one.key in gone or one in former}
        self._bucket.delete(retired)
        self._bucket.delete(keys.orphans(listed - retired, term))

    def _sweep(self, term: int) -> None:
        """Delete the objects of this and earlier terms that belong to no checkpoint."""
        self._bucket.delete(keys.orphans(self._bucket.sizes(), term))
