"""Keys of a checkpoint's objects, and the choice of those that belong to no whole checkpoint.

A checkpoint is written under `ckpt-<step>-term-<n>/<attempt>/`, the manifest last: an attempt without a manifest is no
checkpoint. No two attempts have the same name, so nothing is replaced. The name of an attempt has the storage's term of
its chief, as the folders of a volume have (see `checkpoint.naming`).

Pure: no object store.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pstraining.runtime.checkpoint import manifest
from pstraining.runtime.checkpoint.arrays import ARRAYS
from pstraining.runtime.checkpoint.naming import Key, key_of, term_of_marker

TERMS: Final = "terms"
"""The folder of the markers of terms."""
_ATTEMPT: Final = re.compile(r"([1-9]\d{0,17})-([0-9a-f]+)", re.ASCII)


@dataclass(frozen=True, order=True)
class Attempt:
    """One attempt to write a checkpoint; ordered as checkpoints are, then by time."""

    key: Key
    number: int
    """The number among the attempts of this key, from 1 on."""
    nonce: str
    """Random hexadecimal digits, by which a delayed request of an ended process does no harm."""

    @property
    def folder(self) -> str:
        """The beginning of the keys of its objects, up to the last slash."""
        return f"{self.key.name}/{self.number}-{self.nonce}"

    @property
    def manifest(self) -> str:
        """The key of the manifest."""
        return f"{self.folder}/{manifest.NAME}"

    def segment(self, index: int) -> str:
        """Return the key of a segment of the file of tensors."""
        return f"{self.folder}/{ARRAYS}.{index:05d}"


def attempt_of(key: str) -> Attempt | None:
    """Return the attempt that an object belongs to; None for other objects."""
    name, _, rest = key.partition("/")
    found, match = key_of(name), _ATTEMPT.fullmatch(rest.partition("/")[0])
    return Attempt(found, int(match[1]), match[2]) if found and match else None


def whole(keys: Iterable[str]) -> set[Attempt]:
    """Return the attempts that have a manifest: these are the checkpoints."""
    return {attempt for key in keys if (attempt := attempt_of(key)) and key == attempt.manifest}


def next_attempt(keys: Iterable[str], key: Key, nonce: str) -> Attempt:
    """Return a new attempt at a checkpoint."""
    before = (attempt.number for attempt in map(attempt_of, keys) if attempt and attempt.key == key)
    return Attempt(key, 1 + max(before, default=0), nonce)


def orphans(keys: Iterable[str], term: int) -> list[str]:
    """Return the objects of attempts without a manifest, of this and earlier terms."""
    listed = list(keys)
    kept = whole(listed)
    found = ((key, attempt_of(key)) for key in listed)
    return [key for key, attempt in found if attempt and attempt.key.term <= term and attempt not in kept]


def written_term(keys: Iterable[str]) -> int:
    """Return the highest term of an attempt; 0 without one."""
    return max((attempt.key.term for key in keys if (attempt := attempt_of(key))), default=0)


def marker(term: int) -> str:
    """Return the key of a term's marker."""
    return f"{TERMS}/term-{term}"


def terms(keys: Iterable[str]) -> list[int]:
    """Return the terms of all markers."""
    found = (term_of_marker(key.removeprefix(f"{TERMS}/")) for key in keys)
    return [term for term in found if term is not None]
