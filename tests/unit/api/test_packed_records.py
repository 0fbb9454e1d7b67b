"""Packing of replica records loses nothing, and keeps the records that users read in full."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.api.packed_records import numbers, packed, unpacked
from pstraining.api.status import FULL_RECORDS_MAX, PSTrainingJobStatus, ReplicaRecord

START = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
TIMES = st.integers(0, 10**7).map(lambda seconds: START + timedelta(seconds=seconds))
UIDS = st.one_of(st.uuids().map(str), st.sampled_from(["", "job-a", "a" * 22, str(UUID(int=7)).upper()]))


def record(index: int, *, failures: int = 0, given_up: bool = False) -> ReplicaRecord:
    return ReplicaRecord(
        role="worker",
        index=index,
        failures=failures,
        restarts=failures + 1,
        given_up=given_up,
        pod_uid=str(UUID(int=index)),
        pod_created=START,
        ended=1,
    )


@st.composite
def records(draw: st.DrawFn) -> list[ReplicaRecord]:
    keys = draw(st.sets(st.tuples(st.sampled_from(["ps", "worker"]), st.integers(0, 9999), st.integers(0, 2))))
    extra = draw(st.integers(0, 2 * FULL_RECORDS_MAX))
    keys |= {("worker", index, 0) for index in range(extra)}
    values = st.builds(
        ReplicaRecord,
        role=st.just(""),
        index=st.just(0),
        failures=st.integers(0, 3),
        failure_times=st.lists(TIMES, max_size=2),
        restarts=st.integers(0, 9),
        given_up=st.booleans(),
        pod_uid=UIDS,
        pod_created=st.one_of(st.none(), TIMES),
        ended=st.integers(0, 3),
    )
    pool = draw(st.lists(values, min_size=1, max_size=5))
    return [
        pool[n % len(pool)].model_copy(update={"role": role, "index": index, "member": member})
        for n, (role, index, member) in enumerate(sorted(keys))
    ]


@given(records())
def test_packing_loses_nothing(some: list[ReplicaRecord]) -> None:
    stored = packed(PSTrainingJobStatus(replica_records=some)).model_dump_json(by_alias=True)
    assert unpacked(PSTrainingJobStatus.model_validate_json(stored)).replica_records == some


def test_few_records_are_stored_in_full() -> None:
    status = PSTrainingJobStatus(replica_records=[record(i) for i in range(FULL_RECORDS_MAX)])
    assert packed(status) == status


def test_records_with_failures_stay_in_full() -> None:
    count = FULL_RECORDS_MAX + 50
    some = [record(i, failures=i == 240, given_up=i == 249) for i in range(count)]
    status = packed(PSTrainingJobStatus(replica_records=some))
    full = [r.index for r in status.replica_records]
    assert full == [*range(FULL_RECORDS_MAX - 2), 240, 249]
    assert status.packed_records[0].indexes == "198-239,241-248"


def test_given_up_workers_beyond_the_full_records_are_listed() -> None:
    some = [record(i, given_up=i != 5) for i in range(FULL_RECORDS_MAX + 10)]
    status = packed(PSTrainingJobStatus(replica_records=some))
    assert status.packed_records[0].indexes == "5,201-209"
    assert list(numbers(status.packed_records[0].given_up)) == [*range(201, 210)]


def test_columns_of_different_lengths_are_rejected() -> None:
    status = packed(PSTrainingJobStatus(replica_records=[record(i) for i in range(FULL_RECORDS_MAX + 3)]))
    broken = status.packed_records[0].model_copy(update={"ended": [1]})
    with pytest.raises(ValueError, match="shorter"):
        unpacked(status.model_copy(update={"packed_records": [broken]}))
