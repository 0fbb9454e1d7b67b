"""Keeps status within etcd's limit: beyond FULL_RECORDS_MAX, the records of replicas are stored in columns.

etcd accepts objects of up to 1.5 MiB. A drain of all nodes gives each of up to 10,000 workers a record, and a full
record has 196 bytes. In columns a record has about 40 bytes. Packing is lossless, so the counters stay exact.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from pstraining.api.status import FULL_RECORDS_MAX, PackedRecords, PSTrainingJobStatus, ReplicaRecord

_SECOND = timedelta(seconds=1)


def packed(status: PSTrainingJobStatus) -> PSTrainingJobStatus:
    """Return a status in its stored form, with packed records beyond FULL_RECORDS_MAX."""
    if len(status.replica_records) <= FULL_RECORDS_MAX:
        return status
    full, rest = _split(status.replica_records)
    groups = groupby(sorted(rest, key=_key), key=lambda r: (r.role, r.member))
    return status.model_copy(update={"replica_records": full, "packed_records": [_pack([*g]) for _, g in groups]})


def unpacked(status: PSTrainingJobStatus) -> PSTrainingJobStatus:
    """Return a stored status with all its records in full, in the order of role, index and member.

    Raises:
        ValueError: a column does not fit the others.
    """
    if not status.packed_records:
        return status
    records = [*status.replica_records, *(r for group in status.packed_records for r in _unpack(group))]
    records.sort(key=lambda r: (r.role, r.index, r.member))
    return status.model_copy(update={"replica_records": records, "packed_records": []})


def numbers(ranges: str) -> Iterator[int]:
    """Yield the numbers of a text such as 0-57,60."""
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _split(records: Iterable[ReplicaRecord]) -> tuple[list[ReplicaRecord], list[ReplicaRecord]]:
    """Return the most relevant records, to store in full, and the records to pack."""
    ranked = sorted(records, key=lambda r: (_is_packable(r), not r.given_up, -r.failures, r.role, r.index, r.member))
    count = max(FULL_RECORDS_MAX, sum(not _is_packable(r) for r in ranked))
    return sorted(ranked[:count], key=lambda r: (r.role, r.index, r.member)), ranked[count:]


def _is_packable(record: ReplicaRecord) -> bool:
    """Return whether the columns can hold a record: Kubernetes' times are whole seconds, and its UIDs are UUIDs."""
    times = [record.pod_created, *record.failure_times]
    return all(t is not None and not t.microsecond for t in times) and _long(_short(record.pod_uid)) == record.pod_uid


def _key(record: ReplicaRecord) -> tuple[str, int, int]:
    return record.role, record.member, record.index


def _pack(records: Sequence[ReplicaRecord]) -> PackedRecords:
    """Pack records of one role and member in ascending order of their indexes."""
    created = [r.pod_created for r in records if r.pod_created is not None]
    since = min((*created, *(t for r in records for t in r.failure_times)))
    times = [[(t - since) // _SECOND for t in r.failure_times] for r in records]
    return PackedRecords(
        role=records[0].role,
        member=records[0].member,
        indexes=ranges(r.index for r in records),
        given_up=ranges(r.index for r in records if r.given_up),
        since=since,
        failures=[r.failures for r in records],
        failure_times=times if any(times) else [],
        restarts=[r.restarts for r in records],
        pod_uids=[_short(r.pod_uid) for r in records],
        pod_created=[(t - since) // _SECOND for t in created],
        ended=[r.ended for r in records],
    )


def _unpack(group: PackedRecords) -> Iterator[ReplicaRecord]:
    indexes, given_up = list(numbers(group.indexes)), frozenset(numbers(group.given_up))
    times = group.failure_times or [[] for _ in indexes]
    columns = (group.failures, times, group.restarts, group.pod_uids, group.pod_created, group.ended)
    for index, failures, failed_at, restarts, uid, created, ended in zip(indexes, *columns, strict=True):
        yield ReplicaRecord(
            role=group.role,
            index=index,
            member=group.member,
            failures=failures,
            failure_times=[_at(group.since, seconds) for seconds in failed_at],
            restarts=restarts,
            given_up=index in given_up,
            pod_uid=_long(uid),
            pod_created=_at(group.since, created),
            ended=ended,
        )


def _at(since: datetime, seconds: int) -> datetime:
    return since + seconds * _SECOND


def ranges(found: Iterable[int]) -> str:
    """Return numbers as a text such as 0-57,60."""
    parts: list[list[int]] = []
    for number in sorted(found):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _short(uid: str) -> str:
    """Return the 22 characters of base64 for the 36 of a UUID; any other text unchanged."""
    try:
        return b64encode(UUID(uid).bytes).decode().rstrip("=")
    except ValueError:
        return uid


def _long(text: str) -> str:
    try:
        return str(UUID(bytes=b64decode(text + "==", validate=True))) if len(text) == 22 else text
    except (binascii.Error, ValueError):
        return text
