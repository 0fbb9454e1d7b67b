"""The folder of TensorBoard's event files, and their uploads to an object store. Imports no TensorFlow."""

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from pstraining.runtime.telemetry.events import event

FOLDER: Final = "tensorboard"
"""Name of the folder beside the checkpoints."""
UPLOAD_SECONDS: Final = 30.0
"""Seconds from one upload of a file to the next. An object cannot grow, so each upload has the whole file."""
LEAVE_SECONDS: Final = 5.0
"""Seconds for the last upload, at the end of the process."""

Upload = Callable[[str, Path], None]
"""Creates or replaces an object beside the checkpoints from a file, by its key; may raise OSError."""


class SummariesFolder:
    """A folder for event files; a context manager that ends its uploads.

    Args:
        path: the folder; None: no event files are written.
        uploads: the uploads of the folder to an object store; None: the files stay in the folder.
    """

    def __init__(self, path: Path | None = None, uploads: "SummaryUploads | None" = None) -> None:
        self.path, self._uploads = path, uploads

    def leave(self) -> None:
        """Upload what has not been uploaded yet, within LEAVE_SECONDS, and end the uploads."""
        if self._uploads is not None:
            self._uploads.close(LEAVE_SECONDS)

    def __enter__(self) -> "SummariesFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.leave()


def summaries_folder(
    given: str | Path | bool | None, checkpoints: str | None, upload: Callable[[str], Upload]
) -> SummariesFolder:
    """Return the folder for event files.

    Args:
        given: the program's folder; False: none; None or True: beside the checkpoints.
        checkpoints: the folder or URI of the checkpoints.
        upload: returns the upload to a URI of an object store.
    """
    if isinstance(given, str | Path):
        return SummariesFolder(Path(given))
    if given is True and not checkpoints:
        event("no_summaries", reason="tensorboard=True is a folder beside the checkpoints, and there is none: name one")
    if not checkpoints or given is False:
        return SummariesFolder()
    if "://" not in checkpoints:
        return SummariesFolder(Path(checkpoints) / FOLDER)
    send = upload(checkpoints)  # before the folder exists: it may raise
    try:
        folder = Path(tempfile.mkdtemp(prefix="pstraining-summaries-"))
    except OSError as error:
        event("no_summaries", reason=f"there is no folder for temporary files: {error}")
        return SummariesFolder()
    return SummariesFolder(folder, SummaryUploads(folder, send))


class SummaryUploads:
    """Uploads a folder of growing event files in a separate thread, and deletes the folder at the end.

    The files of each process have their own names, so that a superseded chief replaces no file of its successor. A
    failed upload is reported and repeated; training is not affected.

    Args:
        folder: the folder of event files.
        upload: the upload of a file.
        period: seconds from one upload of a file to the next.
    """

    def __init__(self, folder: Path, upload: Upload, period: float = UPLOAD_SECONDS) -> None:
        self._folder, self._upload, self._period = folder, upload, period
        self._uploaded: dict[Path, int] = {}
        """The size of each file at its last upload."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pstraining-summaries", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Upload what has not been uploaded yet, and return within this number of seconds."""
        self._closing.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._period)
            try:
                self._upload_changes()
            except OSError as error:
                again = "" if is_last else f", next attempt in {self._period:.0f} s"
                event("summaries_not_uploaded", reason=f"{error}{again}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _upload_changes(self) -> None:
        """Upload the files that have grown.

        Raises:
            OSError: a file could not be uploaded.
        """
        for path in sorted(self._folder.rglob("*")):
            size = path.stat().st_size
            if path.is_file() and size != self._uploaded.get(path):
                self._upload(f"{FOLDER}/{path.relative_to(self._folder).as_posix()}", path)
                self._uploaded[path] = size
