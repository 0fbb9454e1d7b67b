"""Fencing of chiefs by the terms of a prefix: as by a folder's terms, with a conditional write instead of a rename.

The store creates a marker only if there is none of its key, so exactly one chief takes a term.
"""

import json
import secrets
from dataclasses import asdict, dataclass

from pstraining.runtime.checkpoint.fencing import Writer, decide, superseded_by, writer_of
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.config.settings import SettingsError


@dataclass(frozen=True)
class BucketTerm:
    """A term of a prefix that a chief has taken."""

    bucket: Bucket
    number: int

    def check(self) -> None:
        """Check that this is the prefix's highest term.

        Raises:
            SupersededError: the prefix has a higher term.
            OSError: the store does not answer.
        """
        newest = max(_terms(self.bucket), default=0)
        if newest > self.number:
            raise superseded_by(_read(self.bucket, newest), self.bucket.url, newest)


def take(bucket: Bucket, writer: Writer) -> BucketTerm:
    """Take the prefix's next term; a restarted process of the same chief gets its former term.

    Raises:
        SettingsError: the store ignores conditions, so two chiefs could take one term.
        SupersededError: a later chief of this job has a term, or another chief took one after this chief's.
        OSError: the marker could not be written.
    """
    while True:
        taken = {number: _read(bucket, number) for number in _terms(bucket)}
        number = decide(taken, writer, keys.written_term(bucket.sizes()))
        if number is None:
            raise superseded_by(taken[max(taken)], bucket.url, max(taken))
        if number in taken or _create(bucket, number, writer):
            break
    former = [
        keys.marker(other)
        for other, its in taken.items()
        if other < number and (its.job == writer.job or not its.has_order)
    ]
    bucket.delete(former)
    return BucketTerm(bucket, number)


def _create(bucket: Bucket, number: int, writer: Writer) -> bool:
    """Create a marker; return False if another chief has that term or a higher one."""
    key, content = keys.marker(number), json.dumps(asdict(writer) | {"nonce": secrets.token_hex(8)}).encode()
    # After a lost reply the library repeats the request, and finds the marker of its first attempt.
    if not bucket.create(key, content) and bytes(bucket.get(key)) != content:
        return False
    if bucket.create(key, content):
        raise SettingsError(
            f"checkpoint.path: the object store of {bucket.url} ignores conditional writes (If-None-Match), without "
            "which two chiefs could write the same checkpoints: use a store that honors them"
        )
    return max(_terms(bucket)) == number


def _terms(bucket: Bucket) -> list[int]:
    return keys.terms(bucket.sizes(keys.TERMS))


def _read(bucket: Bucket, number: int) -> Writer:
    try:
        return writer_of(bytes(bucket.get(keys.marker(number))))
    except FileNotFoundError:  # deleted meanwhile
        return Writer()
