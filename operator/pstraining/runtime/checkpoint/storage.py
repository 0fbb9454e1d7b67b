"""Checkpoints: the state of training in a folder, whole or not there at all.

A checkpoint is a folder `ckpt-<step>` with `state.npz` (tensors by logical name) and `metadata.json`. It is written
under another name, forced to disk and renamed, so a reader sees all of it or nothing. Tensors are stored as the model
knows them, not as the servers hold them: any number of servers can take them up. One process writes, the chief.
"""

import errno
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.model.partition import Array, Layout
from pstraining.runtime.telemetry.events import event

FORMAT: Final = 1
ARRAYS: Final = "state.npz"
METADATA: Final = "metadata.json"
_NAME: Final = re.compile(r"ckpt-(\d{10})")
_TEMPORARY: Final = ".tmp-"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk or a quota that is full answers."""


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""


def name_of(step: int) -> str:
    """The folder's name; names sort like steps."""
    return f"ckpt-{step:010d}"


def step_of(name: str) -> int | None:
    """The step in a folder's name, None for other folders."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def superfluous(steps: Iterable[int], *, written: int, keep: int) -> list[int]:
    """Which checkpoints to delete after `written` was: all but the `keep` newest.

    Later ones belong to a history that training was set back from (they could not be read), so they go too.
    """
    ordered = sorted(set(steps), reverse=True)
    kept = [step for step in ordered if step <= written][:keep]
    return sorted(set(ordered) - set(kept))


class Checkpoints:
    """The checkpoints of a job in one folder."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self._keep = folder, keep

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, whether or not they can be read, in order."""
        if not self.folder.is_dir():
            return []
        found = (step_of(entry.name) for entry in self.folder.iterdir())
        return sorted(step for step in found if step is not None)

    def newest(self) -> State | None:
        """The newest state that can be read; tells of those that cannot."""
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except CorruptCheckpointError as error:
                event("checkpoint_unreadable", step=step, reason=str(error), path=str(self.folder / name_of(step)))
        return None

    def load(self, step: int) -> State:
        """The state of one checkpoint.

        Raises:
            CorruptCheckpointError: a part is missing, damaged or of another format.
        """
        path = self.folder / name_of(step)
        try:
            metadata = json.loads((path / METADATA).read_text(encoding="utf-8"))
            if metadata["format"] != FORMAT:
                raise CorruptCheckpointError(f"format {metadata['format']} is not known")
            if metadata["step"] != step:
                raise CorruptCheckpointError(f"the metadata is of step {metadata['step']}")
            with np.load(path / ARRAYS, allow_pickle=False) as arrays:
                if set(arrays.files) != set(metadata["arrays"]):
                    raise CorruptCheckpointError("the metadata names other tensors than there are")
                values = {name: _checked(name, arrays[name], expected) for name, expected in metadata["arrays"].items()}
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise CorruptCheckpointError(f"{type(error).__name__}: {error}") from error
        return _from_arrays(int(metadata["step"]), values)

    def ensure_folder(self) -> None:
        """Make the folder if it is not there.

        Raises:
            SettingsError: it cannot be written to. That it is full is no reason: room may be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial = self.folder / f"{_TEMPORARY}trial"
            trial.mkdir(exist_ok=True)
            trial.rmdir()
        except OSError as error:
            if error.errno not in FULL:
                raise SettingsError(
                    f"checkpoint.path: {self.folder} cannot be written to ({error.strerror}): mount a volume there, or "
                    "give another path"
                ) from None

    def save(self, state: State, *, term: int, layout: Layout) -> Path:
        """Write a checkpoint and delete superfluous ones; returns its folder.

        Raises:
            OSError: it could not be written; nothing is left of it, and what was there before still is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        try:
            return self._write(state, term, layout)
        except OSError:
            self._sweep()
            raise

    def _write(self, state: State, term: int, layout: Layout) -> Path:
        final = self.folder / name_of(state.step)
        temporary = self.folder / f"{_TEMPORARY}{final.name}"
        temporary.mkdir()
        arrays = _to_arrays(state)
        metadata = {
            "format": FORMAT,
            "step": state.step,
            "term": term,
            "arrays": {name: [str(value.dtype), list(value.shape)] for name, value in arrays.items()},
            "layout": _describe(layout),
        }
        _durable(temporary / ARRAYS, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        _durable(temporary / METADATA, lambda file: file.write(json.dumps(metadata, indent=1).encode()))
        sync_folder(temporary)
        if final.exists():  # of a history that could not be read; an older one is there as long as none is
            final.rename(self.folder / f"{_TEMPORARY}old-{final.name}")
        temporary.rename(final)
        sync_folder(self.folder)
        for step in superfluous(self.steps(), written=state.step, keep=self._keep):
            shutil.rmtree(self.folder / name_of(step), ignore_errors=True)
        self._sweep()
        return final

    def _sweep(self) -> None:
        """Remove what a writer that died left."""
        for entry in self.folder.iterdir():
            if entry.name.startswith(_TEMPORARY):
                shutil.rmtree(entry, ignore_errors=True)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make a file beside `path`, force it to disk and rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Force a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _durable(path: Path, write: Callable[[Any], Any]) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _to_arrays(state: State) -> dict[str, Array]:
    arrays = {f"model/{path}": value for path, value in state.variables.items()}
    for slot, values in state.slots.items():
        arrays |= {f"slot/{slot}/{path}": value for path, value in values.items()}
    return arrays | {f"scalar/{name}": np.asarray(value) for name, value in state.scalars.items()}


def _from_arrays(step: int, arrays: dict[str, Array]) -> State:
    state = State(step, {}, {}, {})
    for name, value in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            state.variables[rest] = value
        elif kind == "slot":
            slot, _, path = rest.partition("/")
            state.slots.setdefault(slot, {})[path] = value
        else:
            state.scalars[rest] = value
    return state


def _checked(name: str, value: Array, expected: Any) -> Array:
    if [str(value.dtype), list(value.shape)] != expected:
        raise CorruptCheckpointError(f"{name} is not what the metadata says")
    return value


def _describe(layout: Layout) -> Any:
    """The servers' segments at the time of saving, for people and tools; a restore does not need them."""
    return [
        {
            "ps": segment.ps,
            "group": segment.group,
            "dtype": segment.dtype,
            "pieces": [[layout.tensors[slice_.tensor].path, slice_.begin, slice_.end] for slice_ in segment.slices],
        }
        for segment in layout.segments
    ]
